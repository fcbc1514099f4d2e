"""What the clients of a simulation remember: in memory up to a limit, beyond it in files.

A run writes these states to its own files after each round. What lies there is not written again, and
memory keeps it only for the clients of the last round: others cost nothing, however many there are.
"""

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from fedmcc.numerics.state_dicts import State, size_in_bytes
from fedmcc.storage.safetensor_files import encoded_chunks, load_state

Key = tuple[int, bool]  # a client, and whether its state is only proposed


class Store(Mapping[int, State]):
    """Client states by client; the ones used longest ago leave memory first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self._held: OrderedDict[Key, State] = OrderedDict()
        self._bytes = 0
        self._files: dict[Key, Path] = {}
        self._folder: Path | None = None
        self._recent: frozenset[int] = frozenset()  # whose states were settled last

    def __getitem__(self, client: int) -> State:
        return self._get((client, False))

    def __iter__(self) -> Iterator[int]:
        keys = dict.fromkeys((*self._files, *self._held))
        return (client for client, proposed in keys if not proposed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def held(self) -> int:
        """How many states are in memory."""
        return len(self._held)

    def begin(self, folder: Path, files: Mapping[int, Path]) -> None:
        """Start from the states in these files, to be read when they are needed; the folder is for more."""
        self.close()
        self._folder = folder / "beyond-memory"
        self.mark_saved(files)

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Know that what these clients remember lies in these files too."""
        for client, path in files.items():
            self._remove_file((client, False), but=path)
            self._files[client, False] = path
        for key in [key for key in self._held if key in self._files and key[0] not in self._recent]:
            self._let_go(key)

    def propose(self, client: int, state: State) -> None:
        """Keep what a client would remember, beside what it remembers."""
        self._drop((client, True))
        self._held[client, True] = state
        self._bytes += size_in_bytes(state)
        while self._bytes > self.limit:
            self._let_go(next(iter(self._held)))

    def settle(self, accepted: Collection[int]) -> None:
        """The proposed states of these clients count from now on; all others are forgotten."""
        self._recent = frozenset(accepted)
        for client, proposed in list(dict.fromkeys((*self._held, *self._files))):
            if proposed and client in accepted:
                self._drop((client, False))
                if (state := self._held.pop((client, True), None)) is not None:
                    self._held[client, False] = state
                if (path := self._files.pop((client, True), None)) is not None:
                    self._files[client, False] = path
            elif proposed:
                self._drop((client, True))

    def close(self) -> None:
        """Forget everything, and remove the files that are the store's own."""
        self._held.clear()
        self._files.clear()
        self._bytes = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _get(self, key: Key) -> State:
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        return load_state(self._files[key])

    def _let_go(self, key: Key) -> None:
        """Out of memory, into a file unless it is in one."""
        state = self._held.pop(key)
        self._bytes -= size_in_bytes(state)
        if key not in self._files:
            self._files[key] = self._write(key[0], state)

    def _write(self, client: int, state: State) -> Path:
        """Not flushed: it is of no use to another process."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedmcc-"))
        self._folder.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=f"client-{client}-")
        with os.fdopen(handle, "wb") as file:
            file.writelines(encoded_chunks(state))
        return Path(name)

    def _drop(self, key: Key) -> None:
        if (state := self._held.pop(key, None)) is not None:
            self._bytes -= size_in_bytes(state)
        self._remove_file(key)

    def _remove_file(self, key: Key, but: Path | None = None) -> None:
        path = self._files.pop(key, None)
        if path is not None and path != but and path.parent == self._folder:
            path.unlink(missing_ok=True)
