"""Who may use the service: checks of host, origin and token before a request is read, and headers."""

import ipaddress
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREDICT = "/api/predict"  # the only request with a large body; it changes nothing
MAX_BODY = 16_384  # bytes of all other requests
READING = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Access:
    """The rules: on loopback only changes need the token, elsewhere every request to the API."""

    loopback: bool
    token: str = field(repr=False)

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Status and sentence for a request that is refused; None if it is allowed."""
        host = headers.get("host", "")
        if self.loopback and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return 400, "The host is not this machine: use the address that was printed."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "Other pages may not use this service: use its own page."
        changes = method not in READING and path != PREDICT
        if (changes or (not self.loopback and path.startswith("/api"))) and not self._has_token(headers):
            return 401, "This needs the token that was printed when the service started."
        length = headers.get("content-length", "")
        if changes and not (length.isdecimal() and int(length) <= MAX_BODY):
            return 413, f"The request is too large or has no length: send at most {MAX_BODY:,} bytes."
        return None

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(given.encode(), self.token.encode())


class Guard:
    """Refuses requests before their body is read, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self.access.refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refused is None:
            await self.app(scope, receive, send_with_headers)
            return
        status, sentence = refused
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"detail": sentence}, status, headers)(scope, receive, send_with_headers)
