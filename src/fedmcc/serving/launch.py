"""Starts the service on a socket of this machine."""

import socket
import warnings
from collections.abc import Callable

import uvicorn

from fedmcc.errors import InputError
from fedmcc.runs.directory import Run
from fedmcc.serving.app import create_app
from fedmcc.serving.limits import Limits
from fedmcc.serving.security import Access, is_loopback, new_token
from fedmcc.serving.service import Service


def serve(run: Run, host: str, port: int, announce: Callable[[str, str, bool], None]) -> None:
    """Serve a run until the process is interrupted.

    `announce` gets the address, the token and whether only this machine can connect.
    """
    limits, token = Limits(), new_token()
    listening = _bind(host, port)
    with listening:
        access = Access(is_loopback(host), token)
        app = create_app(Service(run, limits), access)
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=limits.connections,
            timeout_keep_alive=5,
        )
        warnings.simplefilter("ignore")  # Pillow warns about unusual files; failures are answered
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{listening.getsockname()[1]}/", token, access.loopback)
        uvicorn.Server(settings).run(sockets=[listening])


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens; raise InputError if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"Cannot listen on {host}, port {port}: {reason}. Choose others with --host and --port."
        ) from None
