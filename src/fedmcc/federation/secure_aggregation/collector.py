"""The side of the server: it passes messages on, adds masked vectors, and unmasks their sum."""

from collections.abc import Mapping

import numpy as np

from fedmcc.federation.secure_aggregation import keys, shamir
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.masks import Integers, add_mask, subtract_mask
from fedmcc.federation.secure_aggregation.participant import (
    OWN,
    PAIR,
    PublicKeys,
    Revealed,
    Shares,
    commitment,
    quorum,
    seed_of_pair,
)


class Collector:
    """One attempt at a round at the server; of the vectors it stores their sum only."""

    def __init__(self, context: bytes, everyone: Mapping[int, PublicKeys], length: int) -> None:
        self.context, self.keys = context, dict(everyone)
        self.threshold = quorum(len(self.keys))
        self.received: set[int] = set()  # those whose masked vectors are in the sum
        self._closed = False
        self._shares: dict[int, Shares] = {}
        self._sum: Integers = np.zeros(length, np.uint32)
        self._pair: dict[int, dict[int, bytes]] = {}  # by owner and holder
        self._own: dict[int, dict[int, bytes]] = {}

    def add_shares(self, owner: int, shares: Shares) -> None:
        """Store the shares of a participant, which must be for all others."""
        if (
            not shares.sealed.keys() == shares.commitments.keys() == self.keys.keys()
            or owner not in self.keys
        ):
            raise ProtocolError(f"Participant {owner} has not shared its secrets with everyone.")
        self._shares[owner] = shares

    def sealed_for(self, holder: int) -> dict[int, bytes]:
        """The encrypted shares for a participant, of all who have shared their secrets."""
        if holder not in self._shares:
            raise ProtocolError(f"Participant {holder} has not shared its secrets.")
        if len(self._shares) < self.threshold:
            raise ProtocolError(
                f"{len(self._shares)} of {len(self.keys)} participants have shared their secrets, "
                f"but {self.threshold} are needed."
            )
        return {owner: shares.sealed[holder] for owner, shares in self._shares.items()}

    def add_masked(self, owner: int, masked: Integers) -> None:
        """Add the masked vector of a participant to the sum."""
        unexpected = self._closed or owner not in self._shares or owner in self.received
        if unexpected or masked.shape != self._sum.shape:
            raise ProtocolError(f"Participant {owner} sent a vector that does not belong to this round.")
        self._sum += masked
        self.received.add(owner)

    def close(self) -> list[int]:
        """The participants whose vectors were received; later vectors are refused."""
        self._closed = True
        return sorted(self.received)

    def add_revealed(self, holder: int, revealed: Revealed) -> None:
        """Store the shares that a participant reveals; raises ProtocolError if one is not as committed."""
        if holder not in self.received:
            raise ProtocolError(f"Participant {holder} reveals shares without a vector.")
        for kind, shares in ((PAIR, revealed.pair), (OWN, revealed.own)):
            for owner, share in shares.items():
                if owner not in self._shares or (owner in self.received) is not (kind == OWN):
                    raise ProtocolError(f"Participant {holder} reveals a share that nobody asked for.")
                committed = self._shares[owner].commitments[holder][kind == OWN]
                if commitment(self.context, kind, share, owner, holder) != committed:
                    raise ProtocolError(f"Participant {holder} reveals a wrong share of participant {owner}.")
        for owner, share in revealed.pair.items():
            self._pair.setdefault(owner, {})[holder] = share
        for owner, share in revealed.own.items():
            self._own.setdefault(owner, {})[holder] = share

    def total(self) -> Integers:
        """The sum of the received vectors without masks; raises ProtocolError if too few shares are known."""
        total = self._sum.copy()
        for owner in sorted(self.received):
            seed = self._join(owner, self._own)
            if commitment(self.context, "seed", seed, owner) != self._shares[owner].seed:
                raise ProtocolError(f"The shares of participant {owner} do not give its seed.")
            subtract_mask(total, seed)
        for owner in sorted(self._shares.keys() - self.received):
            self._remove_pairs(total, owner)
        return total

    def _remove_pairs(self, total: Integers, dropped: int) -> None:
        """Remove the masks that a participant without a vector has in common with the others."""
        private = self._join(dropped, self._pair)
        if keys.public_key(private) != self.keys[dropped].masking:
            raise ProtocolError(f"The shares of participant {dropped} do not give its key.")
        for other in self.received:
            seed = seed_of_pair(private, self.keys[other].masking, self.context, dropped, other)
            (subtract_mask if other < dropped else add_mask)(total, seed)

    def _join(self, owner: int, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        shares = revealed.get(owner, {})
        if len(shares) < self.threshold:
            raise ProtocolError(
                f"{len(shares)} shares of participant {owner} are known, but {self.threshold} are needed."
            )
        return shamir.join(dict(list(shares.items())[: self.threshold]))
