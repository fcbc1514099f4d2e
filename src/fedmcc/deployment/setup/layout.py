"""The folders of a federation: the operator's, with `federation.toml`, and one for each site."""

import ipaddress
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

PRIVATE_MODE = 0o600
OTHERS_MODE = 0o077  # what users other than the owner may do with a file
SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
MAX_CERTIFICATE_DAYS = 3650


@dataclass(frozen=True)
class FederationSpec:
    """The sites of a federation and the address of its server."""

    host: str
    port: int
    control_port: int  # of Flower's server, which listens on 127.0.0.1 only
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.sites:
            if not SITE_NAME.fullmatch(name):
                raise InputError(
                    f"Invalid site name '{name}': use lower-case letters, digits, - and _, such as site-a."
                )
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise InputError("Name every site once, such as --sites north,south.")
        if not is_address(self.host) and not HOST_NAME.fullmatch(self.host):
            raise InputError(
                f"Invalid host '{self.host}': give a name such as fed.example.org, or an IP address."
            )
        for port in (self.port, self.control_port):
            if not _is_port(port):
                raise InputError(f"Invalid port {port}: give a number from 1 to 65535.")
        if self.port == self.control_port:
            raise InputError(f"Both ports are {self.port}: choose another --control-port.")

    @property
    def address(self) -> str:
        """Host and port under which sites reach the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TlsFiles(NamedTuple):
    """The files with which a program accepts TLS connections."""

    authority: Path  # the certificate that its clients trust
    certificate: Path
    key: Path


@dataclass(frozen=True)
class OperatorFolder:
    """The folder of the operator, who runs the server; it holds the authority's key and is not shared."""

    path: Path

    @property
    def spec_file(self) -> Path:
        """The file that stores the `FederationSpec`."""
        return self.path / "federation.toml"

    @property
    def authority_key(self) -> Path:
        """The key that signs server certificates; it never leaves this folder."""
        return self.path / "authority" / "ca.key"

    @property
    def authority_certificate(self) -> Path:
        """The certificate that sites trust."""
        return self.path / "authority" / "ca.crt"

    @property
    def server(self) -> Path:
        """The folder with the files and logs of the server."""
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
    def public_tls(self) -> TlsFiles:
        """The files of the program to which sites connect."""
        return TlsFiles(self.authority_certificate, self.certificate, self.key)

    @property
    def loopback_tls(self) -> TlsFiles:
        """The files of Flower's server behind nginx, written at every start: they do not expire in a run."""
        folder = self.server / "loopback"
        return TlsFiles(folder / "ca.crt", folder / "server.crt", folder / "server.key")

    @property
    def proxy_file(self) -> Path:
        """The nginx configuration."""
        return self.server / "nginx.conf"

    @property
    def flower_home(self) -> Path:
        """The folder for the files of Flower's programs (FLWR_HOME)."""
        return self.server / "flower"

    @property
    def logs(self) -> Path:
        """The logs of the server's programs."""
        return self.server / "logs"

    @property
    def nodes_file(self) -> Path:
        """The file with Flower's node id of each site, written whenever sites are registered."""
        return self.server / "nodes.json"

    @property
    def audit_book(self) -> Path:
        """The file in which the server records its messages."""
        return self.server / "audit.jsonl"

    @property
    def runs(self) -> Path:
        """The default folder for run directories."""
        return self.path / "runs"

    def public_key(self, site: str) -> Path:
        """The public key of a site."""
        return self.server / "keys" / f"{site}.pub"

    def site(self, name: str) -> "SiteFolder":
        """The folder that the operator sends to a site."""
        return SiteFolder(self.path / "sites" / name)

    def read_spec(self) -> FederationSpec:
        """Read `federation.toml`; raises InputError if it is missing or damaged."""
        table = _read(self.spec_file, "create a federation with `fedmcc federation init`")
        try:
            return FederationSpec(**{**table, "sites": tuple(table["sites"])})
        except (KeyError, TypeError):
            raise InputError(f"{self.spec_file} is damaged: restore it from a backup.") from None

    def write_spec(self, spec: FederationSpec) -> None:
        """Write `federation.toml`."""
        write_atomically(self.spec_file, tomli_w.dumps(asdict(spec)))


@dataclass(frozen=True)
class SiteFolder:
    """The folder that a site received from the operator."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file with the site's name and the server's address."""
        return self.path / "site.toml"

    @property
    def authority_certificate(self) -> Path:
        """The certificate of the authority that must have signed the server's certificate."""
        return self.path / "ca.crt"

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.path / "site.key"

    @property
    def flower_home(self) -> Path:
        """The folder for the files of Flower's programs (FLWR_HOME)."""
        return self.path / "flower"

    @property
    def state(self) -> Path:
        """The states that the site keeps between rounds."""
        return self.path / "state"

    @property
    def ledger(self) -> Path:
        """The file that stores which orders of the server the site has received."""
        return self.path / "ledger.json"

    @property
    def audit_book(self) -> Path:
        """The file in which the site records the messages of the server and its replies."""
        return self.path / "audit.jsonl"

    @property
    def peers(self) -> Path:
        """The file that stores the keys of the other sites, as this site has first seen them."""
        return self.path / "peers.json"

    @property
    def logs(self) -> Path:
        """The logs of the site's programs."""
        return self.path / "logs"

    def read(self) -> tuple[str, str]:
        """Read the site's name and the server's address; raises InputError if a file is invalid."""
        table = _read(self.config_file, "ask the operator for the folder of this site")
        name, server = table.get("name"), table.get("server")
        if not isinstance(name, str) or not isinstance(server, str):
            raise InputError(
                f"{self.config_file} needs `name` and `server`: ask the operator for a new copy."
            )
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not _is_port(int(port)):
            raise InputError(
                f"{self.config_file} has the invalid address '{server}': write it as fed.example.org:8000."
            )
        for file in (self.authority_certificate, self.key):
            if not file.exists():
                raise InputError(f"{file} is missing: ask the operator for the complete folder of this site.")
        if self.key.stat().st_mode & OTHERS_MODE:
            raise InputError(f"Other users can read {self.key}: run `chmod 600 {self.key}`.")
        return name, server

    def read_policy(self) -> dict[str, Any]:
        """Read the table `[policy]` of `site.toml`; empty if the site's owner has added none."""
        table = _read(self.config_file, "ask the operator for the folder of this site").get("policy", {})
        if not isinstance(table, dict):
            raise InputError(f"policy in {self.config_file} is not a section: write [policy] above its keys.")
        return table


def make_private_folders(folders: Sequence[Path]) -> None:
    """Create folders that only their owner can read."""
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {remedy}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None


def _is_port(number: int) -> bool:
    return 1 <= number <= 65535


def is_address(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
