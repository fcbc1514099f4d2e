"""Checks whether the server can be reached and trusted, before Flower's own endless retries start."""

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from fedmcc.deployment.setup import certificates
from fedmcc.errors import InputError

TIMEOUT_SECONDS = 10.0
CERTIFICATE_NOT_YET_VALID, CERTIFICATE_EXPIRED = 9, 10  # verification codes of OpenSSL


class UnreachableError(Exception):
    """The server does not answer; a later attempt may succeed."""


class ExpiredError(InputError):
    """The certificate of the server has expired; a later attempt succeeds if the operator renews it."""


def check_connection(server: str, authority: Path) -> None:
    """Complete a TLS handshake with the server; raises InputError for faults that waiting does not fix."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        raise InputError(f"{authority} is not a certificate: ask the operator for a new copy.") from None
    try:
        with (
            socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == CERTIFICATE_EXPIRED:
            raise ExpiredError(_explain_expiry(server, host, int(port))) from None
        raise InputError(_explain(server, error)) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # e.g. a proxy whose server is down
        raise UnreachableError("the connection was closed") from None
    except ssl.SSLError:
        raise InputError(
            f"{server} does not use TLS: nothing was sent. Ask the operator whether the address is correct."
        ) from None
    except OSError as error:
        raise UnreachableError(error.strerror or str(error)) from None


def is_ready(port: int, authority: Path) -> bool:
    """Whether Flower's server on this machine accepts requests."""
    context = ssl.create_default_context(cafile=str(authority))
    direct = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with direct.open(f"https://127.0.0.1:{port}/health", timeout=TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _explain_expiry(server: str, host: str, port: int) -> str:
    """When the certificate of the server expired, and the remedy."""
    try:
        end = certificates.expiry_of(ssl.get_server_certificate((host, port), timeout=TIMEOUT_SECONDS))
    except (OSError, ValueError):
        end = None
    if end and end > datetime.now(UTC):
        return (
            f"The authority that certifies {server} has expired: nothing was sent. "
            "The operator creates a new federation with new folders for all sites."
        )
    return (
        f"The certificate of {server} has expired{f' on {end:%Y-%m-%d}' if end else ''}: nothing was sent. "
        "The operator renews it with `fedmcc federation renew`."
    )


def _explain(server: str, error: ssl.SSLCertVerificationError) -> str:
    """Why the certificate of the server is refused, and the remedy."""
    if error.verify_code == CERTIFICATE_NOT_YET_VALID:
        return f"The certificate of {server} is not valid yet: correct the clock of this machine."
    if "match" in error.verify_message.lower():
        return f"The certificate of {server} is for another host: ask the operator for the correct address."
    return (
        f"The certificate of {server} was not issued by the authority that this site trusts: nothing was "
        "sent. Ask the operator for the current ca.crt; if the operator did not replace it, do not connect."
    )
