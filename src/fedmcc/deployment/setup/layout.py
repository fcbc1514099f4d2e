"""The folders of a federation: the operator's with `federation.toml`, and one to hand to each site."""

import ipaddress
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

PRIVATE = 0o600
NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
LONGEST = 3650  # days that a certificate may last


@dataclass(frozen=True)
class FederationSpec:
    """What the operator decides: who takes part, and where the server is reached."""

    host: str
    port: int
    control_port: int  # Flower's own server, on this machine alone
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.sites:
            if not NAME.fullmatch(name):
                raise InputError(
                    f"'{name}' names no site: use small letters, digits, - and _, such as site-a."
                )
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise InputError("Name every site once, such as --sites north,south.")
        if not _is_address(self.host) and not HOST.fullmatch(self.host):
            raise InputError(
                f"'{self.host}' is no host: give a name such as fed.example.org, or an IP address."
            )
        for port in (self.port, self.control_port):
            if not _is_port(port):
                raise InputError(f"{port} is no port: give a number from 1 to 65535.")
        if self.port == self.control_port:
            raise InputError(f"Both ports are {self.port}: give --control-port another number.")

    @property
    def address(self) -> str:
        """Where sites reach the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Operator:
    """The folder of whoever runs the server; it holds the authority's key and stays there."""

    path: Path

    @property
    def terms_file(self) -> Path:
        """Who takes part, and where."""
        return self.path / "federation.toml"

    @property
    def authority_key(self) -> Path:
        """What certifies servers: it never leaves this folder."""
        return self.path / "authority" / "ca.key"

    @property
    def authority_certificate(self) -> Path:
        """What sites trust."""
        return self.path / "authority" / "ca.crt"

    @property
    def server(self) -> Path:
        """What the server needs, and its logs."""
        return self.path / "server"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.server / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.server / "server.key"

    @property
    def proxy_file(self) -> Path:
        """The configuration of nginx."""
        return self.server / "nginx.conf"

    @property
    def home(self) -> Path:
        """Where Flower's programs keep their own files."""
        return self.server / "flower"

    @property
    def logs(self) -> Path:
        """What the server's programs say."""
        return self.server / "logs"

    @property
    def runs(self) -> Path:
        """The run directories, unless another place is asked for."""
        return self.path / "runs"

    def public_key(self, site: str) -> Path:
        """How the server knows a site."""
        return self.server / "keys" / f"{site}.pub"

    def site(self, name: str) -> "SiteFolder":
        """The folder to hand to a site."""
        return SiteFolder(self.path / "sites" / name)

    def terms(self) -> FederationSpec:
        """What was decided, refused in a sentence where there is nothing."""
        table = _read(self.terms_file, "`fedmcc federation init` makes one")
        try:
            return FederationSpec(**{**table, "sites": tuple(table["sites"])})
        except (KeyError, TypeError):
            raise InputError(f"{self.terms_file} is damaged: restore it from a copy.") from None

    def decide(self, terms: FederationSpec) -> None:
        """Write down what was decided."""
        write_atomically(self.terms_file, tomli_w.dumps(asdict(terms)))


@dataclass(frozen=True)
class SiteFolder:
    """The folder that a site was handed."""

    path: Path

    @property
    def file(self) -> Path:
        """The site's name, and where the server is."""
        return self.path / "site.toml"

    @property
    def authority_certificate(self) -> Path:
        """What the server must be certified by."""
        return self.path / "ca.crt"

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.path / "site.key"

    @property
    def home(self) -> Path:
        """Where Flower's programs keep their own files."""
        return self.path / "flower"

    @property
    def state(self) -> Path:
        """What the site remembers between rounds."""
        return self.path / "state"

    @property
    def logs(self) -> Path:
        """What the site's programs say."""
        return self.path / "logs"

    def read(self) -> tuple[str, str]:
        """The site's name and the server's address."""
        table = _read(self.file, "ask the operator for the folder of this site")
        name, server = table.get("name"), table.get("server")
        if not isinstance(name, str) or not isinstance(server, str):
            raise InputError(f"{self.file} needs `name` and `server`: ask the operator for a whole copy.")
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not _is_port(int(port)):
            raise InputError(f"{self.file} has the server '{server}': write it as fed.example.org:8000.")
        for file in (self.authority_certificate, self.key):
            if not file.exists():
                raise InputError(f"{file} is missing: ask the operator for the whole folder of this site.")
        return name, server


def make_private(folders: Sequence[Path]) -> None:
    """Folders that nobody else may look into."""
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"There is no {path}: {remedy}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None


def _is_port(number: int) -> bool:
    return 1 <= number <= 65535


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
