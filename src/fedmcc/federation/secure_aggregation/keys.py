"""Keys of a round: agreement of two participants (X25519, HKDF), and encrypted messages between them."""

import secrets
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.federation.secure_aggregation.errors import ProtocolError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise InputError("Secure aggregation needs cryptography: pip install 'fedmcc[flower]'.") from None

NONCE_BYTES = 12


class KeyPair(NamedTuple):
    """A private key of 32 bytes and its public key."""

    private: bytes
    public: bytes


def create_key_pair() -> KeyPair:
    """A new random key pair."""
    private = secrets.token_bytes(32)
    return KeyPair(private, public_key(private))


def public_key(private: bytes) -> bytes:
    """The public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, context: bytes) -> bytes:
    """The secret of 32 bytes that both owners compute, each from his private and the other's public key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:  # also a public key with which the secret would always be 0
        raise ProtocolError("A public key is not valid.") from None
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"fedmcc secure aggregation " + context).derive(shared)


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate a text; it can only be opened with the same key and context."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt the result of `seal`; raises ProtocolError if it was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise ProtocolError("A share was changed on its way.") from None
