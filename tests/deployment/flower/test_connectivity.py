"""A site connects over real sockets to servers that it must not trust: each is refused with its reason."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedmcc.deployment.flower.connectivity import ExpiredError, UnreachableError, check_connection
from fedmcc.deployment.setup.certificates import CertifiedKey, certify_server, create_authority
from fedmcc.errors import InputError

Listen = Callable[..., str]


@pytest.fixture(scope="module")
def authority() -> CertifiedKey:
    return create_authority()


@pytest.fixture
def trusted(authority: CertifiedKey, tmp_path: Path) -> Path:
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)
    return tmp_path / "ca.crt"


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Start a server for some connections, with a certificate or without TLS; returns its address."""
    threads, sockets = [], []

    def start(server: CertifiedKey | None, connections: int = 1) -> str:
        listener = socket.create_server(("", 0))
        sockets.append(listener)
        threads.append(
            threading.Thread(
                target=_serve, args=(listener, _context(server, tmp_path), connections), daemon=True
            )
        )
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread, listener in zip(threads, sockets, strict=True):
        thread.join(10)
        listener.close()


def _context(server: CertifiedKey | None, folder: Path) -> ssl.SSLContext | None:
    if server is None:
        return None
    (folder / "both.pem").write_bytes(server.key_pem + server.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


def _serve(listener: socket.socket, context: ssl.SSLContext | None, connections: int) -> None:
    for _ in range(connections):
        connection, _ = listener.accept()
        with connection:
            if context is None:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nplain text here")
                continue
            with suppress(OSError):  # the site has closed the connection
                context.wrap_socket(connection, server_side=True).close()


def test_a_server_of_the_trusted_authority_is_accepted(
    listen: Listen, authority: CertifiedKey, trusted: Path
) -> None:
    check_connection(listen(certify_server(authority, "127.0.0.1", 1)), trusted)


def test_an_expired_certificate_is_refused(listen: Listen, authority: CertifiedKey, trusted: Path) -> None:
    end = datetime.now(UTC) - timedelta(days=1)
    old = certify_server(authority, "127.0.0.1", 30, end - timedelta(days=30))
    with pytest.raises(ExpiredError, match=rf"has expired on {end:%Y-%m-%d}: .*federation renew"):
        check_connection(listen(old, 2), trusted)


def test_an_expired_authority_is_not_taken_for_the_certificate(listen: Listen, tmp_path: Path) -> None:
    ancient = create_authority(datetime.now(UTC) - timedelta(days=5000))
    (tmp_path / "ca.crt").write_bytes(ancient.certificate_pem)
    with pytest.raises(ExpiredError, match=r"authority that certifies .* has expired: .*new federation"):
        check_connection(listen(certify_server(ancient, "127.0.0.1", 30), 2), tmp_path / "ca.crt")


def test_another_authority_is_refused(listen: Listen, trusted: Path) -> None:
    with pytest.raises(InputError, match="not issued by the authority"):
        check_connection(listen(certify_server(create_authority(), "127.0.0.1", 1)), trusted)


def test_a_server_without_tls_is_refused(listen: Listen, trusted: Path) -> None:
    with pytest.raises(InputError, match="does not use TLS"):
        check_connection(listen(None), trusted)


def test_a_certificate_of_another_host_is_refused(
    listen: Listen, authority: CertifiedKey, trusted: Path
) -> None:
    address = listen(certify_server(authority, "fed.example.org", 1))
    elsewhere = address.replace("127.0.0.1", "127.0.0.2")  # also this machine, but not in the certificate
    with pytest.raises(InputError, match="another host"):
        check_connection(elsewhere, trusted)


@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_closes_the_connection_counts_as_unreachable(trusted: Path, reset: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close() -> None:
            connection, _ = listener.accept()
            if not reset:
                connection.recv(10_000)  # closing with unread data sends a reset
            connection.close()

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        with pytest.raises(UnreachableError):
            check_connection(f"127.0.0.1:{listener.getsockname()[1]}", trusted)
        thread.join(10)


def test_a_closed_port_counts_as_unreachable(trusted: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UnreachableError):
        check_connection(address, trusted)
