"""What a server with secure aggregation has on disk of a round between its unmasking and its checkpoint.

Sites reveal one sum of a round. A server that loses it must not ask again with other sites, and cannot.
Checkpoints delete both files, with everything else in their folder that belongs to an earlier round.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmcc.deployment.setup.layout import PRIVATE_MODE
from fedmcc.errors import InputError
from fedmcc.federation.public_average import PublicAverage
from fedmcc.messages import StageRound, Update
from fedmcc.numerics.state_dicts import add_prefix, strip_prefix
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.storage.safetensor_files import encoded_chunks, load_metadata, load_state

ASKED, SUM = "unmasking.json", "unmasked.safetensors"


@dataclass(frozen=True)
class UnmaskedRound:
    """The round in the folder of the checkpoints."""

    folder: Path

    def ask(self, place: StageRound, clients: Sequence[int]) -> None:
        """Store that these clients are asked to reveal their sum."""
        write_atomically(self.folder / ASKED, json.dumps([*place, list(clients)]))

    def asked(self, place: StageRound) -> list[int] | None:
        """The clients that were asked to reveal their sum in this round; None if none were."""
        if not (self.folder / ASKED).exists():
            return None
        stage, number, clients = json.loads((self.folder / ASKED).read_text())
        return list(clients) if StageRound(stage, number) == place else None

    def save(self, average: PublicAverage, updates: Sequence[Update]) -> None:
        """Store the average of updates, and everything else of them."""
        facts = [[each.client, each.stage, each.round, each.samples, each.loss] for each in updates]
        state = add_prefix("weights", average.weights) | add_prefix("extras", average.extras)
        for update in updates:
            state |= add_prefix(f"client-{update.client}", update.weights)
        metadata = {"updates": json.dumps(facts), "sums": json.dumps(sorted(average.sums))}
        write_atomically(self.folder / SUM, encoded_chunks(state, metadata), PRIVATE_MODE)

    def load(self, place: StageRound) -> list[Update]:
        """The updates of this round with their average as weights; empty if they are not stored."""
        path = self.folder / SUM
        if not path.exists():
            return []
        try:
            metadata, state = load_metadata(path), load_state(path)
        except InputError:  # written atomically, so that the disk has damaged it
            return []
        sums = frozenset(json.loads(metadata["sums"]))
        average = PublicAverage(strip_prefix("weights", state), strip_prefix("extras", state), sums)
        updates = [
            Update(client, stage, number, samples, loss, strip_prefix(f"client-{client}", state))
            for client, stage, number, samples, loss in json.loads(metadata["updates"])
        ]
        return [average.replace_in(each) for each in updates if (each.stage, each.round) == place]
