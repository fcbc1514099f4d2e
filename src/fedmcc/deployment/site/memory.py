"""What a site keeps on its disk between the rounds of a run, and the errors that it reports to the server."""

import json
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from fedmcc.deployment.setup.layout import PRIVATE_MODE
from fedmcc.errors import InputError
from fedmcc.messages import StageRound
from fedmcc.numerics.state_dicts import State
from fedmcc.storage.atomic_files import make_folder, try_lock, write_atomically
from fedmcc.storage.safetensor_files import load_state, save_state

POLL_SECONDS = 0.2  # between two attempts to get the lock
LOCK, SECRET, MASKS = "lock", "random.secret", "masks.secret"  # files of a run besides its states


class RefusalError(Exception):
    """A site cannot do its task; the message contains nothing private and is sent to the server."""


class LostStateError(RefusalError):
    """The state of the site from an earlier round is missing or damaged."""


class SiteMemory:
    """The states of a site in one run: after the last round that was averaged, and after the one since.

    The server names the averaged round in each task: a state whose update was not averaged is then ignored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self, expires: float | None) -> Iterator[None]:
        """Hold the lock of this run, which the operating system releases if the process is killed.

        This waits until the task expires (None: does not wait). An expired task is refused, since it would
        overwrite the state of a later one.
        """
        make_folder(self.folder, "the site's state")
        with (self.folder / LOCK).open("w") as file:
            while not try_lock(file.fileno()):
                if expires is None or time.time() > expires:
                    raise RefusalError("The site is still busy with an earlier task.")
                time.sleep(POLL_SECONDS)
            if expires is not None and time.time() > expires:
                raise RefusalError("The task expired before it was started.")
            yield

    def secret_seed(self) -> int:
        """A random seed that only this site has, for all rounds of the run.

        With the recipe's seed, the server could repeat views and batches and test a guess of the images.
        """
        path = self.folder / SECRET
        if not path.exists():
            write_atomically(path, token_bytes(32), mode=0o600)
        return int.from_bytes(path.read_bytes())

    def load(self, after: StageRound) -> State:
        """The state after a round; raises LostStateError if it is missing or damaged."""
        path = self._file(after)
        if not path.exists():
            raise LostStateError(f"The site has lost its state after {after.stage}, round {after.round}.")
        try:
            return load_state(path)
        except InputError:
            raise LostStateError("The state of the site is damaged.") from None

    def save(self, after: StageRound, state: State, base: StageRound | None) -> None:
        """Save the state after a round, and delete all others except that of the averaged round `base`."""
        new = self._file(after)
        save_state(new, state)
        kept = {new, self._file(base) if base else new}
        for path in self.folder.iterdir():  # temporary files of a crash are deleted too
            if path not in kept and path.name not in (LOCK, SECRET, MASKS):
                path.unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete all states of the run, but not what it has revealed."""
        shutil.rmtree(self.folder)

    def require_unrevealed(self, place: StageRound, names: Collection[str]) -> None:
        """Raise RefusalError if this site has revealed shares for a sum of other sites in this round."""
        if self._revealed().get(place.stage, {}).get(str(place.round), _members(names)) != _members(names):
            raise RefusalError(
                f"The site has revealed shares for {place.stage}, round {place.round}, with other sites: "
                "the difference of two sums would show single updates."
            )

    def mark_revealed(self, place: StageRound, names: Collection[str]) -> None:
        """Store for ever that this site reveals shares for the sum of these sites in this round."""
        revealed = self._revealed()
        revealed.setdefault(place.stage, {})[str(place.round)] = _members(names)
        write_atomically(self._revealed_file, json.dumps(revealed), PRIVATE_MODE)

    def _revealed(self) -> dict[str, dict[str, str]]:
        """A hash of the members of every sum for which this site has revealed shares, by stage and round."""
        try:
            revealed: dict[str, dict[str, str]] = json.loads(self._revealed_file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise RefusalError("The file of revealed rounds is damaged: the site needs a new run.") from None
        return revealed

    @property
    def _revealed_file(self) -> Path:
        # Beside the folder of the run: whoever controls the server can have that one deleted.
        return self.folder.with_name(f"{self.folder.name}.revealed.json")

    def _file(self, after: StageRound) -> Path:
        return self.folder / f"{after.stage}-{after.round:06}.safetensors"


def _members(names: Collection[str]) -> str:
    return sha256(json.dumps(sorted(set(names))).encode()).hexdigest()
