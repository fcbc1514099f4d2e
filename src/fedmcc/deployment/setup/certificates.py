"""Creates the certificate authority of a federation, the server's certificate, and a key for each site."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from fedmcc.errors import InputError

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
except ImportError:
    raise InputError("Federations across machines need Flower: pip install 'fedmcc[flower]'.") from None

AUTHORITY_DAYS = 3650
CLOCK_TOLERANCE = timedelta(days=1)  # certificates are valid from a day ago: a site's clock may be slow
UNREADABLE = (  # what reading a key in OpenSSH's format raises
    OSError,
    ValueError,
    TypeError,  # it needs a password
    NotImplementedError,  # a compressed point
    UnsupportedAlgorithm,
)


class CertifiedKey(NamedTuple):
    """A private key and the certificate of its public key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM format, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        """The certificate in PEM format."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


class SiteKey(NamedTuple):
    """The key pair of a site in OpenSSH format, as Flower requires."""

    private: bytes
    public: bytes


def create_authority(now: datetime | None = None) -> CertifiedKey:
    """Create an authority that may certify servers but no further authorities."""
    key, name = ec.generate_private_key(ec.SECP384R1()), _common_name("fedmcc federation authority")
    builder = _builder(AUTHORITY_DAYS, now).subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(certifies=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return CertifiedKey(key, builder.add_extension(identifier, critical=False).sign(key, hashes.SHA384()))


def certify_server(
    authority: CertifiedKey, host: str, days: int, now: datetime | None = None
) -> CertifiedKey:
    """Create a key and a certificate for a server, valid for `host`, localhost and the loopback addresses."""
    key = ec.generate_private_key(ec.SECP384R1())
    parent = authority.certificate
    builder = _builder(days, now).subject_name(_common_name(host)).issuer_name(parent.subject)
    builder = builder.public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectAlternativeName(_host_names(host)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(certifies=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (issuer, False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return CertifiedKey(key, builder.sign(authority.key, hashes.SHA384()))


def create_site_key() -> SiteKey:
    """Create the key pair with which a site authenticates itself."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return SiteKey(private, public + b"\n")


def public_key_pem(path: Path) -> bytes:
    """The public key of a site in PEM format, as Flower sends it."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path} is not a readable public key: restore it from a backup.") from None
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def load_authority(key: Path, certificate: Path) -> CertifiedKey:
    """Read the authority from its two files."""
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError):
        raise InputError(
            f"Cannot read the authority's key {key}: restore it from a backup, or create a new federation."
        ) from None
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return CertifiedKey(loaded, load_certificate(certificate))


def load_server(key: Path, certificate: Path) -> CertifiedKey:
    """Read the server's key and certificate; raises InputError if they do not belong together."""
    remedy = "run `fedmcc federation renew`"
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError):
        raise InputError(f"Cannot read the server's key {key}: {remedy}.") from None
    server = load_certificate(certificate)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != server.public_key():
        raise InputError(f"{certificate} is not the certificate of {key}: {remedy}.")
    return CertifiedKey(loaded, server)


def load_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a site."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InputError(f"The key {path} cannot be read: {error.strerror}.") from None
    except UNREADABLE:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"{path} is damaged or is not the key of a site: ask the operator for the folder of this site "
            "again, or for a new key (`fedmcc federation rotate`)."
        )
    return key


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Read the public key of a site."""
    key = parse_public_key(path.read_bytes()) if path.exists() else None
    if key is None:
        raise InputError(f"{path} is not the public key of a site: restore it from a backup.")
    return key


def parse_public_key(text: bytes) -> ec.EllipticCurvePublicKey | None:
    """The public key of a site in OpenSSH's format; None if it is not one."""
    try:
        key = serialization.load_ssh_public_key(text)
    except UNREADABLE:
        return None
    return key if isinstance(key, ec.EllipticCurvePublicKey) else None


def is_certified(certificate: x509.Certificate, authority: x509.Certificate, host: str) -> bool:
    """Whether the authority certified a server for this host, at any time at which the certificate is valid.

    Whether it is valid now is left to the caller: an expired certificate deserves a sentence of its own.
    """
    try:
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        moment = min(max(datetime.now(UTC), start), end)
        builder = PolicyBuilder().store(Store([authority])).time(moment)
        builder.build_server_verifier(_host_name(host)).verify(certificate, [])
    except (VerificationError, ValueError):  # ValueError: damaged extensions
        return False
    return True


def der(certificate: x509.Certificate) -> bytes:
    """A certificate in DER format, which is shorter than PEM."""
    return certificate.public_bytes(serialization.Encoding.DER)


def expiry(certificate: Path) -> datetime:
    """The time at which a certificate expires."""
    return load_certificate(certificate).not_valid_after_utc


def expiry_of(pem: str) -> datetime:
    """The time at which a certificate in PEM format expires; raises ValueError if it is not readable."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate in PEM format."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path} is not a readable certificate: restore it from a backup.") from None


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(days: int, now: datetime | None) -> x509.CertificateBuilder:
    now = now or datetime.now(UTC)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_TOLERANCE).not_valid_after(now + timedelta(days=days))


def _host_names(host: str) -> list[x509.GeneralName]:
    return [_host_name(name) for name in dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))]


def _host_name(host: str) -> x509.IPAddress | x509.DNSName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(certifies: bool) -> x509.KeyUsage:
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
