"""The part of a site in secure aggregation: five messages, between which its secrets are on its disk."""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedmcc.config import Config
from fedmcc.deployment.flower.masking_records import (
    MASKED,
    peers_table,
    read_attempt,
    read_peers,
    read_sealed,
)
from fedmcc.deployment.flower.signatures import are_signed_survivors
from fedmcc.deployment.messages import Attempt, Peer, SiteTask
from fedmcc.deployment.setup.layout import PRIVATE_MODE
from fedmcc.deployment.site.memory import MASKS, RefusalError, SiteMemory
from fedmcc.deployment.site.peers import PeerBook
from fedmcc.federation.public_average import counters
from fedmcc.federation.secure_aggregation.participant import (
    Participant,
    PublicKeys,
    Revealed,
    Shares,
    quorum,
)
from fedmcc.federation.secure_aggregation.vectors import Weighting, hash_of_sent, layout_of
from fedmcc.messages import StageRound, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import select
from fedmcc.storage.atomic_files import write_atomically

log = logging.getLogger(__name__)

Hide = Callable[[Update], Update]


@dataclass
class Secrets:
    """What a site stores between the messages of an attempt, and with which sites it shares secrets."""

    person: Participant
    peers: dict[int, Peer] = field(default_factory=dict)

    def dump(self) -> str:
        """Everything as JSON."""
        return json.dumps({"participant": self.person.dump(), "peers": peers_table(self.peers)})

    @classmethod
    def load(cls, text: str) -> "Secrets":
        """The secrets of a `dump`."""
        table = json.loads(text)
        return cls(Participant.load(table["participant"]), read_peers(table["peers"]))

    def names(self, clients: Collection[int]) -> list[str]:
        """The names of these clients, all of which take part."""
        return [self.peers[client].name for client in clients]


@dataclass(frozen=True)
class MaskedRound:
    """A site in one run; without a book of peers, the sites are simulated and have no keys of their own."""

    memory: SiteMemory
    name: str
    minimum: int  # sites whose updates must be in a sum
    peers: PeerBook | None

    def keys(self, attempt: Attempt, client: int, expires: float) -> tuple[PublicKeys, bytes]:
        """Begin an attempt: new public keys, and this site's signature under them."""
        if client not in attempt.images:
            raise RefusalError("The attempt does not name this site.")
        with self.memory.locked(expires):
            person = Participant(client, attempt.context)
            self._save(Secrets(person))
        signature = self.peers.sign(attempt.context, self.name, person.public_keys) if self.peers else b""
        return person.public_keys, signature

    def shares(self, attempt: Attempt, peers: Mapping[int, Peer], expires: float) -> Shares:
        """Share the secrets of this attempt among sites whose keys are genuine."""
        self._check_count(len(peers))
        if not peers.keys() <= attempt.images.keys():
            raise RefusalError("The server names a site that is not in the attempt.")
        if self.peers:
            self.peers.check(attempt.context, peers)
        with self.memory.locked(expires), self._secrets(attempt) as secrets:
            secrets.peers = dict(peers)
            keys = {client: peer.keys for client, peer in peers.items()}
            return secrets.person.share(keys, quorum(len(peers)))

    def masking(self, config: Config, stage: Stage, site_task: SiteTask, samples: int) -> Hide:
        """How the update of a task is hidden; a task that would send it openly is refused before training."""
        if not config.federation.secure_aggregation:
            return lambda update: update
        if stage.additive(select(site_task.task.weights, stage.shared)) is None:
            return _open(config, stage)
        if site_task.masking is None:
            raise RefusalError(
                "The recipe has secure aggregation, but the task would send the update openly."
            )
        attempt, content = read_attempt(site_task.masking)
        _check_place(attempt, site_task, samples)
        if attempt.sent != hash_of_sent(stage, site_task.task):
            raise RefusalError("The task has another model than that of the other sites.")
        weighting = Weighting(attempt.images, config.privacy.clip)
        layout, sealed = layout_of(stage, site_task.task.weights, weighting), read_sealed(content)

        def hide(update: Update) -> Update:
            with self._secrets(attempt) as secrets:
                masked = secrets.person.mask(layout.encode(update), sealed)
            vector = torch.from_numpy(masked.view(np.int32))
            return replace(update, weights={**counters(update.weights), MASKED: vector}, extras={})

        return hide

    def confirm(self, attempt: Attempt, received: Collection[int], expires: float) -> bytes:
        """The signature of this site under the list of sites in the sum; empty in a simulation."""
        self._check_count(len(set(received)))
        with self.memory.locked(expires), self._secrets(attempt) as secrets:
            secrets.person.confirm(received)
            self.memory.require_unrevealed(_place(attempt), secrets.names(received))
        return self.peers.confirm(attempt.context, self.name, received) if self.peers else b""

    def reveal(self, attempt: Attempt, signatures: Mapping[int, bytes], expires: float) -> Revealed:
        """Reveal the shares that unmask the sum, and delete all secrets of the attempt.

        The signatures are those of the sites that have confirmed the list of sites in the sum.
        """
        with self.memory.locked(expires):
            with self._secrets(attempt) as secrets:
                survivors = secrets.person.survivors
                revealed = secrets.person.reveal(self._confirming(attempt, secrets, signatures))
                names = secrets.names(survivors)
                self.memory.require_unrevealed(_place(attempt), names)
                self.memory.mark_revealed(_place(attempt), names)
            (self.memory.folder / MASKS).unlink()
        return revealed

    def _confirming(self, attempt: Attempt, secrets: Secrets, signatures: Mapping[int, bytes]) -> list[int]:
        """The clients that signed the list that this site has confirmed."""
        return [
            client
            for client, signature in signatures.items()
            if client in secrets.peers
            and (
                self.peers is None
                or are_signed_survivors(
                    attempt.context, secrets.peers[client], secrets.person.survivors, signature
                )
            )
        ]

    def _check_count(self, sites: int) -> None:
        if sites < self.minimum:
            raise RefusalError(f"A sum of {sites} sites would reveal too much: {self.minimum} are needed.")

    @contextmanager
    def _secrets(self, attempt: Attempt) -> Iterator[Secrets]:
        """The secrets of this attempt, which are on disk before an answer is sent."""
        file = self.memory.folder / MASKS
        secrets = Secrets.load(file.read_text()) if file.exists() else None
        if secrets is None or secrets.person.context != attempt.context:
            raise RefusalError("The site has no keys of this attempt.")
        yield secrets
        self._save(secrets)

    def _save(self, secrets: Secrets) -> None:
        write_atomically(self.memory.folder / MASKS, secrets.dump(), PRIVATE_MODE)


def _open(config: Config, stage: Stage) -> Hide:
    """Send the statistics of a stage as they are, if the recipe allows it."""
    if not config.federation.open_statistics:
        raise RefusalError(f"In the stage {stage.name}, sites send statistics that cannot be added up.")
    log.warning("The stage %s sends statistics of this site that the server can read.", stage.name)
    return lambda update: update


def _check_place(attempt: Attempt, site_task: SiteTask, samples: int) -> None:
    task = site_task.task
    if (attempt.run, attempt.stage, attempt.round) != (site_task.run, task.stage, task.round):
        raise RefusalError("The attempt belongs to another round.")
    if attempt.images.get(task.client) != samples:
        raise RefusalError("The site has another number of images than the server uses.")


def _place(attempt: Attempt) -> StageRound:
    return StageRound(attempt.stage, attempt.round)
