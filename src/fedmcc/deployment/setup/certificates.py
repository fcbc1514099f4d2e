"""The federation's own certificate authority, its server's certificate, and a key for each site."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from fedmcc.errors import InputError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise InputError("Real federations need Flower: pip install 'fedmcc[flower]'.") from None

AUTHORITY_DAYS = 3650
EARLIER = timedelta(days=1)  # a site's clock may be behind


class Certified(NamedTuple):
    """A private key and the certificate of its public half."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key as a file holds it."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as a file holds it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


class SiteKey(NamedTuple):
    """A site's key pair in OpenSSH's format, which Flower reads."""

    private: bytes
    public: bytes


def create_authority(now: datetime | None = None) -> Certified:
    """A new authority that certifies servers and nothing else."""
    key, name = ec.generate_private_key(ec.SECP384R1()), _named("fedmcc federation authority")
    builder = _dated(AUTHORITY_DAYS, now).subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(certifies=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return Certified(key, builder.add_extension(identifier, critical=False).sign(key, hashes.SHA384()))


def certify_server(authority: Certified, host: str, days: int, now: datetime | None = None) -> Certified:
    """A new key and certificate for a server that is reached as `host`, and as itself on its own machine."""
    key = ec.generate_private_key(ec.SECP384R1())
    parent = authority.certificate
    builder = _dated(days, now).subject_name(_named(host)).issuer_name(parent.subject)
    builder = builder.public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectAlternativeName(_alternatives(host)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(certifies=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (issuer, False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return Certified(key, builder.sign(authority.key, hashes.SHA384()))


def create_site_key() -> SiteKey:
    """A new key by which the server knows a site."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return SiteKey(private, public + b"\n")


def load_authority(key: Path, certificate: Path) -> Certified:
    """The authority in two files, to certify with it again."""
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError):
        raise InputError(
            f"Cannot read the authority's key {key}: restore it from a copy, or begin a new federation."
        ) from None
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return Certified(loaded, _load(certificate))


def expiry(certificate: Path) -> datetime:
    """When a certificate ceases to be valid."""
    return _load(certificate).not_valid_after_utc


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path} is no certificate that can be read: restore it from a copy.") from None


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _dated(days: int, now: datetime | None) -> x509.CertificateBuilder:
    now = now or datetime.now(UTC)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLIER).not_valid_after(now + timedelta(days=days))


def _alternatives(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for name in dict.fromkeys((host, "localhost", "127.0.0.1", "::1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    return names


def _usage(certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certifies,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certifies,
        crl_sign=certifies,
        encipher_only=False,
        decipher_only=False,
    )
