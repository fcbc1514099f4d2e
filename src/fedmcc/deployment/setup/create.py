"""Creates the folders of a federation, adds sites, and renews the server's certificate."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from fedmcc.deployment.setup import certificates
from fedmcc.deployment.setup.layout import (
    MAX_CERTIFICATE_DAYS,
    PRIVATE_MODE,
    FederationSpec,
    OperatorFolder,
    make_private_folders,
)
from fedmcc.deployment.setup.nginx import render_configuration
from fedmcc.deployment.setup.systemd import server_unit, site_unit
from fedmcc.errors import InputError, unknown
from fedmcc.storage.atomic_files import make_folder, write_atomically

EXPIRY_WARNING_DAYS = 30

README = """This folder makes a machine the site {name} of the federation at {address}. Keep it private.

1. Install fedmcc[flower].
2. Check your images:         fedmcc site check --data IMAGES
3. Start, in this folder:     fedmcc site start . --data IMAGES

To limit what this site takes part in, add a section [policy] to site.toml, such as

[policy]
methods = ["fedmcc", "informative"]
max_rounds = 200
"""


def create_federation(path: Path, spec: FederationSpec, days: int) -> OperatorFolder:
    """Create a federation in a folder that is new or empty."""
    operator = OperatorFolder(path.resolve())
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path} is not empty: choose a new folder, or add a site with `fedmcc federation add`."
        )
    _check_days(days)
    render_configuration(operator, spec)  # raises InputError for a path that nginx cannot read
    make_folder(path, "the federation")
    make_private_folders(
        [operator.path, operator.authority_key.parent, operator.server, operator.path / "sites"]
    )
    authority = certificates.create_authority()
    write_atomically(operator.authority_key, authority.key_pem, PRIVATE_MODE)
    write_atomically(operator.authority_certificate, authority.certificate_pem)
    _write_server_certificate(operator, spec, authority, days)
    for name in spec.sites:
        _write_site_folder(operator, spec, name)
    write_loopback_certificate(operator)
    write_nginx_config(operator, spec)
    write_atomically(operator.server / "fedmcc-server.service", server_unit(operator.path))
    operator.write_spec(spec)  # last: the folder counts as a federation once this file exists
    return operator


def add_site(operator: OperatorFolder, name: str) -> None:
    """Add a site and create its folder; a running server accepts it at once, for its next round."""
    spec = operator.read_spec()
    if name in spec.sites:
        raise InputError(f"The site '{name}' exists already: its folder is {operator.site(name).path}.")
    spec = replace(spec, sites=(*spec.sites, name))
    _write_site_folder(operator, spec, name)
    operator.write_spec(spec)


def revoke_site(operator: OperatorFolder, name: str) -> None:
    """Remove a site: its key is refused at once, also by a running server."""
    spec = _spec_with(operator, name)
    if len(spec.sites) == 1:
        raise InputError(f"{name} is the only site: stop the federation instead.")
    operator.write_spec(replace(spec, sites=tuple(site for site in spec.sites if site != name)))
    _archive_key(operator, name)


def rotate_key(operator: OperatorFolder, name: str) -> None:
    """Replace the key of a site: the old one is refused at once, and a running server accepts the new one."""
    spec = _spec_with(operator, name)
    _archive_key(operator, name)
    _write_site_folder(operator, spec, name)


def renew_certificate(operator: OperatorFolder, days: int) -> None:
    """Replace the server's key and certificate; the folders of the sites stay valid."""
    spec = operator.read_spec()
    _check_days(days)
    authority = certificates.load_authority(operator.authority_key, operator.authority_certificate)
    _write_server_certificate(operator, spec, authority, days)


def write_loopback_certificate(operator: OperatorFolder) -> None:
    """Create the certificate of Flower's server on 127.0.0.1; the key of its authority is not stored."""
    authority = certificates.create_authority()
    server = certificates.certify_server(authority, "localhost", certificates.AUTHORITY_DAYS)
    files = operator.loopback_tls
    make_private_folders([files.key.parent])
    write_atomically(files.authority, authority.certificate_pem)
    write_atomically(files.certificate, server.certificate_pem)
    write_atomically(files.key, server.key_pem, PRIVATE_MODE)


def write_nginx_config(operator: OperatorFolder, spec: FederationSpec) -> None:
    """Write the nginx configuration for the current path of the folder."""
    write_atomically(operator.proxy_file, render_configuration(operator, spec))


def old_keys(operator: OperatorFolder, name: str) -> list[Path]:
    """The public keys that a site had before its present one, or before it was revoked."""
    return sorted(operator.public_key(name).parent.glob(f"{name}.*.pub"))


def expiry_dates(operator: OperatorFolder) -> dict[str, datetime]:
    """The times at which the certificates of the server and of the authority expire."""
    return {
        "the server's certificate": certificates.expiry(operator.certificate),
        "the authority": certificates.expiry(operator.authority_certificate),
    }


def expiry_warning(operator: OperatorFolder, now: datetime | None = None) -> str | None:
    """A warning if a certificate expires soon; raises InputError if one has expired."""
    now = now or datetime.now(UTC)
    for what, end in expiry_dates(operator).items():
        remedy = (
            "create a new federation"
            if what == "the authority"
            else f"renew it with fedmcc federation renew {operator.path}"
        )
        if end <= now:
            raise InputError(f"{what.capitalize()} expired on {end:%Y-%m-%d}: {remedy}.")
        if (end - now).days < EXPIRY_WARNING_DAYS:
            return f"{what.capitalize()} expires on {end:%Y-%m-%d}: {remedy}."
    return None


def _spec_with(operator: OperatorFolder, name: str) -> FederationSpec:
    spec = operator.read_spec()
    if name not in spec.sites:
        raise unknown("site", name, spec.sites)
    return spec


def _archive_key(operator: OperatorFolder, name: str) -> None:
    """Keep the public key of a site under another name, with which its audit book can still be verified."""
    public = operator.public_key(name)
    if public.exists():
        public.rename(public.with_suffix(f".{len(old_keys(operator, name)) + 1}.pub"))


def _check_days(days: int) -> None:
    if not 1 <= days <= MAX_CERTIFICATE_DAYS:
        raise InputError(
            f"A certificate cannot be valid for {days} days: set --days from 1 to {MAX_CERTIFICATE_DAYS}."
        )


def _write_server_certificate(
    operator: OperatorFolder, spec: FederationSpec, authority: certificates.CertifiedKey, days: int
) -> None:
    server = certificates.certify_server(authority, spec.host, days)
    write_atomically(operator.key, server.key_pem, PRIVATE_MODE)
    write_atomically(operator.certificate, server.certificate_pem)


def _write_site_folder(operator: OperatorFolder, spec: FederationSpec, name: str) -> None:
    site, public = operator.site(name), operator.public_key(name)
    make_private_folders([site.path, public.parent])
    key = certificates.create_site_key()
    write_atomically(site.key, key.private, PRIVATE_MODE)
    write_atomically(site.authority_certificate, operator.authority_certificate.read_bytes())
    write_atomically(site.config_file, tomli_w.dumps({"name": name, "server": spec.address}))
    write_atomically(site.path / "README", README.format(name=name, address=spec.address))
    write_atomically(site.path / "fedmcc-site.service", site_unit(name, spec.host))
    write_atomically(public, key.public)  # last: the server accepts the site once this file exists
