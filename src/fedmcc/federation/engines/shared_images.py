"""The images of all clients in one file that all worker processes map, without copies."""

import os
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from fedmcc.data.base import Images
from fedmcc.federation.client import Client


class SharedImages:
    """Images in an unnamed temporary file, which is deleted when the last process closes it.

    Pickling passes the open file to a process that is being started.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.bounds = [0, *accumulate(len(client.images) for client in clients)]
        self.shape = clients[0].images.shape[1:]
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        for client in clients:
            self.file.write(np.ascontiguousarray(client.images).data)
        self.file.flush()

    def parts(self) -> list[Images]:
        """The images of each client, mapped from the file."""
        images = np.memmap(self.file, np.uint8, "r", shape=(self.bounds[-1], *self.shape))
        return [images[start:end] for start, end in zip(self.bounds, self.bounds[1:], strict=False)]

    def close(self) -> None:
        """Close the file; images that are already mapped stay readable."""
        self.file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "file": DupFd(self.file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, file=os.fdopen(state["file"].detach(), "rb"))
