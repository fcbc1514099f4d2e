"""Makes a federation's folders, adds a site, renews the server's certificate."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from fedmcc.deployment.setup import certificates
from fedmcc.deployment.setup.layout import LONGEST, PRIVATE, FederationSpec, Operator, make_private
from fedmcc.deployment.setup.nginx import configuration
from fedmcc.deployment.setup.systemd import server_unit, site_unit
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import make_folder, write_atomically

SOON = 30  # days before the end of a certificate that are worth a warning

README = """This folder makes a machine the site {name} of the federation at {address}: keep it private.
Install fedmcc[flower], look at your images with `fedmcc site check --data IMAGES`, then run, in this folder:
fedmcc site start . --data IMAGES
"""


def create_federation(path: Path, terms: FederationSpec, days: int) -> Operator:
    """A new federation in a folder that is new or empty."""
    operator = Operator(path.resolve())
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path} is not empty: choose a new folder; `fedmcc federation add` adds a site to one."
        )
    _check_days(days)
    configuration(operator, terms)  # refuses a path that nginx could not read
    make_folder(path, "the federation")
    make_private([operator.path, operator.authority_key.parent, operator.server, operator.path / "sites"])
    authority = certificates.create_authority()
    write_atomically(operator.authority_key, authority.key_pem, PRIVATE)
    write_atomically(operator.authority_certificate, authority.certificate_pem)
    _certify(operator, terms, authority, days)
    for name in terms.sites:
        _hand_out(operator, terms, name)
    write_proxy(operator, terms)
    write_atomically(operator.server / "fedmcc-server.service", server_unit(operator.path))
    operator.decide(terms)  # last: from here on it is a federation
    return operator


def add_site(operator: Operator, name: str) -> None:
    """Another site, with a folder to hand to it; a running server learns of it when it is started again."""
    terms = operator.terms()
    if name in terms.sites:
        raise InputError(f"There is a site '{name}' already: its folder is {operator.site(name).path}.")
    terms = replace(terms, sites=(*terms.sites, name))
    _hand_out(operator, terms, name)
    operator.decide(terms)


def renew(operator: Operator, days: int) -> None:
    """A new key and certificate for the server; sites keep what they have."""
    terms = operator.terms()
    _check_days(days)
    authority = certificates.load_authority(operator.authority_key, operator.authority_certificate)
    _certify(operator, terms, authority, days)


def write_proxy(operator: Operator, terms: FederationSpec) -> None:
    """The configuration of nginx, for where the folder lies now."""
    write_atomically(operator.proxy_file, configuration(operator, terms))


def expiries(operator: Operator) -> dict[str, datetime]:
    """When the certificates end."""
    return {
        "the server's certificate": certificates.expiry(operator.certificate),
        "the authority": certificates.expiry(operator.authority_certificate),
    }


def expiry_complaint(operator: Operator, now: datetime | None = None) -> str | None:
    """What to say of certificates that end soon; one that has ended is refused."""
    now = now or datetime.now(UTC)
    for what, end in expiries(operator).items():
        remedy = (
            "begin a new federation"
            if what == "the authority"
            else f"fedmcc federation renew {operator.path}"
        )
        if end <= now:
            raise InputError(f"{what.capitalize()} expired on {end:%Y-%m-%d}: {remedy}.")
        if (end - now).days < SOON:
            return f"{what.capitalize()} expires on {end:%Y-%m-%d}: {remedy}."
    return None


def _check_days(days: int) -> None:
    if not 1 <= days <= LONGEST:
        raise InputError(f"A certificate of {days} days: give --days from 1 to {LONGEST}.")


def _certify(operator: Operator, terms: FederationSpec, authority: certificates.Certified, days: int) -> None:
    server = certificates.certify_server(authority, terms.host, days)
    write_atomically(operator.key, server.key_pem, PRIVATE)
    write_atomically(operator.certificate, server.certificate_pem)
    write_atomically(operator.server / "ca.crt", operator.authority_certificate.read_bytes())


def _hand_out(operator: Operator, terms: FederationSpec, name: str) -> None:
    site, public = operator.site(name), operator.public_key(name)
    make_private([site.path, public.parent])
    key = certificates.create_site_key()
    write_atomically(site.key, key.private, PRIVATE)
    write_atomically(site.authority_certificate, operator.authority_certificate.read_bytes())
    write_atomically(site.file, tomli_w.dumps({"name": name, "server": terms.address}))
    write_atomically(site.path / "README", README.format(name=name, address=terms.address))
    write_atomically(site.path / "fedmcc-site.service", site_unit(name))
    write_atomically(public, key.public)  # last: from here on the server knows it
