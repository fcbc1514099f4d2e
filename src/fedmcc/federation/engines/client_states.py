"""The states of simulated clients: in memory up to a limit, beyond it in files.

A run saves these states after each round. Saved states are not written again, and only those of the last
round's clients stay in memory, so that the other clients need none.
"""

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from fedmcc.numerics.state_dicts import State, size_in_bytes
from fedmcc.storage.safetensor_files import encoded_chunks, load_state

Key = tuple[int, bool]  # a client, and whether the state is pending


class ClientStates(Mapping[int, State]):
    """Committed states by client; the least recently used are moved from memory to files first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self._in_memory: OrderedDict[Key, State] = OrderedDict()
        self._bytes = 0
        self._files: dict[Key, Path] = {}
        self._folder: Path | None = None
        self._recent: frozenset[int] = frozenset()  # clients of the last commit

    def __getitem__(self, client: int) -> State:
        return self._get((client, False))

    def __iter__(self) -> Iterator[int]:
        keys = dict.fromkeys((*self._files, *self._in_memory))
        return (client for client, pending in keys if not pending)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def in_memory(self) -> int:
        """The number of states in memory."""
        return len(self._in_memory)

    def begin(self, folder: Path, files: Mapping[int, Path]) -> None:
        """Start from the states in these files, read on demand; `folder` is for additional files."""
        self.close()
        self._folder = folder / "beyond-memory"
        self.mark_saved(files)

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Record that the states of these clients are saved in these files."""
        for client, path in files.items():
            self._remove_file((client, False), keep=path)
            self._files[client, False] = path
        for key in [key for key in self._in_memory if key in self._files and key[0] not in self._recent]:
            self._evict(key)

    def set_pending(self, client: int, state: State) -> None:
        """Store a client's new state, beside its committed one."""
        self._delete((client, True))
        self._in_memory[client, True] = state
        self._bytes += size_in_bytes(state)
        while self._bytes > self.limit:
            self._evict(next(iter(self._in_memory)))

    def commit(self, accepted: Collection[int]) -> None:
        """Commit the pending states of these clients and delete all other pending states."""
        self._recent = frozenset(accepted)
        for client, pending in list(dict.fromkeys((*self._in_memory, *self._files))):
            if pending and client in accepted:
                self._delete((client, False))
                if (state := self._in_memory.pop((client, True), None)) is not None:
                    self._in_memory[client, False] = state
                if (path := self._files.pop((client, True), None)) is not None:
                    self._files[client, False] = path
            elif pending:
                self._delete((client, True))

    def close(self) -> None:
        """Delete all states in memory, and the files that were not written by the run."""
        self._in_memory.clear()
        self._files.clear()
        self._bytes = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _get(self, key: Key) -> State:
        if key in self._in_memory:
            self._in_memory.move_to_end(key)
            return self._in_memory[key]
        return load_state(self._files[key])

    def _evict(self, key: Key) -> None:
        """Remove a state from memory, and write it to a file if there is none."""
        state = self._in_memory.pop(key)
        self._bytes -= size_in_bytes(state)
        if key not in self._files:
            self._files[key] = self._write(key[0], state)

    def _write(self, client: int, state: State) -> Path:
        """Write a temporary file, without flushing, because no other process needs it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedmcc-"))
        self._folder.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=f"client-{client}-")
        with os.fdopen(handle, "wb") as file:
            file.writelines(encoded_chunks(state))
        return Path(name)

    def _delete(self, key: Key) -> None:
        if (state := self._in_memory.pop(key, None)) is not None:
            self._bytes -= size_in_bytes(state)
        self._remove_file(key)

    def _remove_file(self, key: Key, keep: Path | None = None) -> None:
        path = self._files.pop(key, None)
        if path is not None and path != keep and path.parent == self._folder:
            path.unlink(missing_ok=True)
