"""Shamir's secret sharing: any `threshold` shares give the secret, fewer give no information about it."""

import secrets
from collections.abc import Iterable, Mapping

from fedmcc.federation.secure_aggregation.errors import ProtocolError

PRIME = 2**521 - 1  # a Mersenne prime, larger than every secret
SECRET_BYTES = 32
SHARE_BYTES = 66


def split(secret: bytes, threshold: int, holders: Iterable[int]) -> dict[int, bytes]:
    """A share of the secret for each holder; the numbers of holders are 0 or more."""
    holders = sorted(set(holders))
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(holders) or holders[0] < 0:
        raise ProtocolError("A secret cannot be shared in this way.")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _value(coefficients, holder + 1).to_bytes(SHARE_BYTES) for holder in holders}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of these shares, by Lagrange interpolation at 0; raises ProtocolError for wrong shares.

    Wrong shares are not always noticed here: check the secret against a commitment.
    """
    points = {holder + 1: int.from_bytes(share) for holder, share in shares.items()}
    secret = 0
    for x, y in points.items():
        numerator = denominator = 1
        for other in points.keys() - {x}:
            numerator = numerator * other % PRIME
            denominator = denominator * (other - x) % PRIME
        secret = (secret + y * numerator * pow(denominator, -1, PRIME)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ProtocolError("The shares do not give a secret.")
    return secret.to_bytes(SECRET_BYTES)


def _value(coefficients: list[int], x: int) -> int:
    """The value of a polynomial, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value
