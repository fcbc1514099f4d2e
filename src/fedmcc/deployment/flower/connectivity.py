"""Whether a site could reach its server, and if not why; asked before Flower tries for ever."""

import socket
import ssl
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from fedmcc.errors import InputError

SECONDS = 10.0
EXPIRED, NOT_YET = 10, 9  # verification codes of OpenSSL


class AbsentError(Exception):
    """Nobody answers: the server may come later."""


def check_connection(server: str, authority: Path) -> None:
    """Shake hands with the server; what waiting does not mend is the operator's or the site's to mend."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        raise InputError(f"{authority} is no certificate: ask the operator for a whole copy.") from None
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise InputError(_refusal(server, error)) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # a proxy whose server is away does so
        raise AbsentError("it hangs up") from None
    except ssl.SSLError:
        raise InputError(
            f"{server} does not speak TLS: nothing was sent. Ask the operator whether the address is right."
        ) from None
    except OSError as error:
        raise AbsentError(error.strerror or str(error)) from None


def healthy(port: int, authority: Path) -> bool:
    """Whether Flower's server on this machine is ready."""
    context = ssl.create_default_context(cafile=str(authority))
    direct = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with direct.open(f"https://127.0.0.1:{port}/health", timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _refusal(server: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == EXPIRED:
        return (
            f"The certificate of {server} has expired: nothing was sent. "
            "The operator renews it with `fedmcc federation renew`."
        )
    if error.verify_code == NOT_YET:
        return f"The certificate of {server} is not valid yet: set the clock of this machine."
    if "match" in error.verify_message.lower():
        return f"The certificate of {server} is for another host: ask the operator for the right address."
    return (
        f"The certificate of {server} is not by the authority that this site trusts: nothing was sent. "
        "Ask the operator for the current ca.crt, and do not go on if that is unexpected."
    )
