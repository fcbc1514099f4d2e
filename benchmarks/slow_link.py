"""A relay in front of a server that forwards a limited number of bytes per second in each direction."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = 4096  # bytes that are forwarded at once


@contextmanager
def slow_link(port: int, rate: float) -> Iterator[int]:
    """Relay connections to a port of this machine; yields the port of the relay."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _use_small_buffers(server)  # those of accepted connections are the same
        threading.Thread(target=_accept, args=(server, port, _Clock(rate)), daemon=True).start()
        yield server.getsockname()[1]


class _Clock:
    """Delays bytes so that all connections together stay below a rate."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free, self.lock = rate, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        """Wait until this number of bytes may be forwarded."""
        with self.lock:
            self.free = max(self.free, time.monotonic()) + size / self.rate
            delay = self.free - time.monotonic()
        time.sleep(max(0.0, delay))


def _accept(server: socket.socket, port: int, upload: _Clock) -> None:
    download = _Clock(upload.rate)
    with suppress(OSError):  # the server is closed
        while True:
            near = server.accept()[0]
            far = socket.create_connection(("127.0.0.1", port))
            for arguments in ((near, far, upload), (far, near, download)):
                threading.Thread(target=_forward, args=arguments, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, clock: _Clock) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE):
            clock.wait(len(piece))
            target.sendall(piece)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _use_small_buffers(server: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        server.setsockopt(socket.SOL_SOCKET, option, 16 * PIECE)
