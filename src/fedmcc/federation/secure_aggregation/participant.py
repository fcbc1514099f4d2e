"""The side of a client: it masks its vector so that only the sum over all clients can be unmasked."""

import json
import secrets
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple

from fedmcc.federation.secure_aggregation import keys, shamir
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.masks import Integers, add_mask, subtract_mask

PAIR, OWN = "pair", "own"  # whose seed a share belongs to: masks of pairs, or the mask of one participant


class PublicKeys(NamedTuple):
    """The public keys of a participant in one round."""

    sealing: bytes  # for shares that others send to it
    masking: bytes  # for the masks of pairs


class Shares(NamedTuple):
    """What a participant sends so that others can help to unmask the sum."""

    sealed: dict[int, bytes]  # for each holder, its two shares, encrypted
    commitments: dict[int, tuple[bytes, bytes]]  # for each holder, hashes of its shares (PAIR, OWN)
    seed: bytes  # hash of the seed of its own mask

    @property
    def bytes(self) -> int:
        """Bytes that are sent."""
        hashes = [each for pair in self.commitments.values() for each in pair]
        return sum(map(len, [*self.sealed.values(), *hashes, self.seed]))


class Revealed(NamedTuple):
    """The shares that a participant reveals: for each owner one of its two, never both."""

    pair: dict[int, bytes]  # of those that dropped out
    own: dict[int, bytes]  # of those whose masked vectors were received

    @property
    def bytes(self) -> int:
        """Bytes that are sent."""
        return sum(map(len, [*self.pair.values(), *self.own.values()]))


def quorum(participants: int) -> int:
    """The smallest number of participants that is more than two thirds of them.

    If so many must confirm the list of received vectors, a server can have two different lists confirmed only
    with more than a third of the participants on its side.
    """
    return 2 * participants // 3 + 1


def commitment(context: bytes, kind: str, secret: bytes, owner: int, holder: int = -1) -> bytes:
    """A hash that reveals nothing about a random secret and binds its owner to it."""
    return sha256(b"\0".join((b"commitment", context, f"{kind} {owner} {holder}".encode(), secret))).digest()


def seed_of_pair(private: bytes, public: bytes, context: bytes, first: int, second: int) -> bytes:
    """The seed of the mask that two participants share, whichever of them computes it."""
    low, high = sorted((first, second))
    return keys.agree(private, public, context + f" mask {low} {high}".encode())


class Participant:
    """One client in one attempt at a round; `context` must be different in every attempt."""

    def __init__(self, index: int, context: bytes) -> None:
        self.index, self.context = index, context
        self._sealing, self._masking = keys.create_key_pair(), keys.create_key_pair()
        self._seed = secrets.token_bytes(shamir.SECRET_BYTES)
        self._keys: dict[int, PublicKeys] = {}
        self._sealed: dict[int, bytes] = {}
        self._threshold = 0
        self.survivors: list[int] = []  # whose vectors were received, once this participant has confirmed it
        self._masked = self._revealed = False

    def dump(self) -> str:
        """Everything about the participant as JSON, with its secrets: a process can end between two steps."""
        keys_ = {str(client): [key.hex() for key in pair] for client, pair in self._keys.items()}
        return json.dumps(
            {
                "index": self.index,
                "context": self.context.hex(),
                "private": [self._sealing.private.hex(), self._masking.private.hex(), self._seed.hex()],
                "keys": keys_,
                "sealed": {str(client): each.hex() for client, each in self._sealed.items()},
                "progress": [self._threshold, self.survivors, self._masked, self._revealed],
            }
        )

    @classmethod
    def load(cls, text: str) -> "Participant":
        """The participant of a `dump`."""
        table = json.loads(text)
        loaded = cls(table["index"], bytes.fromhex(table["context"]))
        sealing, masking, loaded._seed = map(bytes.fromhex, table["private"])
        loaded._sealing = keys.KeyPair(sealing, keys.public_key(sealing))
        loaded._masking = keys.KeyPair(masking, keys.public_key(masking))
        loaded._keys = {
            int(client): PublicKeys(*map(bytes.fromhex, pair)) for client, pair in table["keys"].items()
        }
        loaded._sealed = {int(client): bytes.fromhex(each) for client, each in table["sealed"].items()}
        loaded._threshold, loaded.survivors, loaded._masked, loaded._revealed = table["progress"]
        return loaded

    @property
    def public_keys(self) -> PublicKeys:
        """The keys that the others need."""
        return PublicKeys(self._sealing.public, self._masking.public)

    def share(self, everyone: Mapping[int, PublicKeys], threshold: int) -> Shares:
        """Share the two secrets among all participants, of which `threshold` can recover one of them."""
        self._check_keys(everyone, threshold)
        self._keys, self._threshold = dict(everyone), threshold
        pair = shamir.split(self._masking.private, threshold, everyone)
        own = shamir.split(self._seed, threshold, everyone)
        return Shares(
            sealed={
                holder: keys.seal(
                    self._key(holder), pair[holder] + own[holder], self._route(self.index, holder)
                )
                for holder in everyone
            },
            commitments={
                holder: (self._commit(PAIR, pair[holder], holder), self._commit(OWN, own[holder], holder))
                for holder in everyone
            },
            seed=commitment(self.context, "seed", self._seed, self.index),
        )

    def mask(self, values: Integers, sealed: Mapping[int, bytes]) -> Integers:
        """The vector with its masks; `sealed` has the shares of all who take part, for this participant."""
        if self._masked or not self._keys:
            raise ProtocolError("A participant masks one vector, after it has shared its secrets.")
        if not sealed.keys() <= self._keys.keys() or self.index not in sealed:
            raise ProtocolError("Shares of participants without keys were received.")
        if len(sealed) < self._threshold:
            raise ProtocolError(f"{len(sealed)} participants are left, but {self._threshold} are needed.")
        self._masked, self._sealed = True, dict(sealed)
        masked = values.copy()
        add_mask(masked, self._seed)
        for other in sealed.keys() - {self.index}:
            seed = seed_of_pair(
                self._masking.private, self._keys[other].masking, self.context, self.index, other
            )
            (add_mask if self.index < other else subtract_mask)(masked, seed)
        return masked

    def confirm(self, received: Collection[int]) -> None:
        """Accept the list of received vectors, before its owner signs it; no other list is accepted later."""
        survivors = sorted(set(received))
        if not self._masked or self.survivors not in ([], survivors):
            raise ProtocolError("A participant confirms one list of vectors, after it has sent its own.")
        if not set(survivors) <= self._sealed.keys() or self.index not in survivors:
            raise ProtocolError("The server names participants that do not take part.")
        if len(survivors) < self._threshold:
            raise ProtocolError(f"{len(survivors)} vectors were received, but {self._threshold} are needed.")
        self.survivors = survivors

    def reveal(self, confirming: Collection[int]) -> Revealed:
        """The shares that unmask the sum of the confirmed list, once; never both shares of one owner.

        `confirming` are the participants whose signatures under the same list were checked.
        """
        if self._revealed or not self.survivors:
            raise ProtocolError("A participant reveals its shares once, after it has confirmed the list.")
        survivors, signed = set(self.survivors), set(confirming)
        if len(signed & survivors) < self._threshold:
            raise ProtocolError(
                f"{len(signed & survivors)} participants have confirmed the list of received vectors, "
                f"but {self._threshold} are needed."
            )
        self._revealed = True
        opened = {owner: share for owner in self._sealed if (share := self._open(owner)) is not None}
        return Revealed(
            pair={owner: share[0] for owner, share in opened.items() if owner not in survivors},
            own={owner: share[1] for owner, share in opened.items() if owner in survivors},
        )

    def _check_keys(self, everyone: Mapping[int, PublicKeys], threshold: int) -> None:
        if self._keys:
            raise ProtocolError("A participant shares its secrets once.")
        if everyone.get(self.index) != self.public_keys:
            raise ProtocolError("The server has changed a public key.")
        if len({key for pair in everyone.values() for key in pair}) != 2 * len(everyone):
            raise ProtocolError("Two participants have the same public key.")
        if not quorum(len(everyone)) <= threshold <= len(everyone) or len(everyone) < 2:
            raise ProtocolError(
                f"{threshold} of {len(everyone)} participants could unmask a vector: "
                "more than two thirds must be needed."
            )

    def _open(self, owner: int) -> tuple[bytes, bytes] | None:
        """The two shares of an owner; None if they cannot be decrypted: others may still have theirs."""
        try:
            text = keys.unseal(self._key(owner), self._sealed[owner], self._route(owner, self.index))
        except ProtocolError:
            return None
        return text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]

    def _key(self, other: int) -> bytes:
        """The key for shares between this participant and another one."""
        low, high = sorted((self.index, other))
        return keys.agree(
            self._sealing.private, self._keys[other].sealing, self.context + f" shares {low} {high}".encode()
        )

    def _route(self, owner: int, holder: int) -> bytes:
        return self.context + f" from {owner} to {holder}".encode()

    def _commit(self, kind: str, share: bytes, holder: int) -> bytes:
        return commitment(self.context, kind, share, self.index, holder)
