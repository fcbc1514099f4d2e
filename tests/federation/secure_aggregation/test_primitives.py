"""The parts of secure aggregation: shares, keys, masks and rounding, each against theory."""

from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from fedmcc.federation.secure_aggregation import keys, masks, quantise, shamir
from fedmcc.federation.secure_aggregation.errors import ProtocolError

SECRET = bytes(range(32))


def test_the_field_of_the_shares_has_prime_order():
    term = 4
    for _ in range(521 - 2):
        term = (term * term - 2) % (2**521 - 1)
    assert term == 0  # the Lucas-Lehmer test
    assert shamir.PRIME == 2**521 - 1


def test_any_threshold_of_the_shares_gives_the_secret():
    shares = shamir.split(SECRET, 3, range(5))
    for size in (3, 4, 5):
        for holders in combinations(range(5), size):
            assert shamir.join({holder: shares[holder] for holder in holders}) == SECRET


def test_a_share_is_the_value_of_a_polynomial(monkeypatch):
    drawn = iter([7, 11])
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda limit: next(drawn))
    shares = shamir.split(SECRET, 3, [0, 2, 4])
    for holder, x in ((0, 1), (4, 5)):
        assert int.from_bytes(shares[holder]) == (int.from_bytes(SECRET) + 7 * x + 11 * x * x) % shamir.PRIME


def test_fewer_shares_fit_every_secret_equally_well():
    """For two of three needed shares and any other secret there is a third share that gives this secret."""
    shares, other = shamir.split(SECRET, 3, range(3)), bytes(32)
    first, second = (int.from_bytes(shares[holder]) for holder in range(2))
    third = (int.from_bytes(other) - 3 * first + 3 * second) % shamir.PRIME  # f(0) = 3 f(1) - 3 f(2) + f(3)
    assert shamir.join({**shares, 2: third.to_bytes(shamir.SHARE_BYTES)}) == other


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"), [(SECRET, 3, [0, 1]), (b"x", 1, [0]), (SECRET, 1, [-1])]
)
def test_a_secret_that_cannot_be_shared_is_refused(secret, threshold, holders):
    with pytest.raises(ProtocolError):
        shamir.split(secret, threshold, holders)


def test_two_participants_agree_on_a_secret_for_each_purpose():
    first, second = keys.create_key_pair(), keys.create_key_pair()
    secret = keys.agree(first.private, second.public, b"masks")
    assert secret == keys.agree(second.private, first.public, b"masks")
    assert secret != keys.agree(first.private, second.public, b"shares")
    assert len(secret) == 32
    assert keys.public_key(first.private) == first.public


@pytest.mark.parametrize("public", [bytes(32), b"short"])
def test_a_public_key_with_a_known_secret_is_refused(public):
    with pytest.raises(ProtocolError, match="not valid"):
        keys.agree(keys.create_key_pair().private, public, b"")


@pytest.mark.parametrize("change", ["text", "context", "key", "nothing"])
def test_a_sealed_text_that_was_changed_is_refused(change):
    sealed = keys.seal(SECRET, b"share", b"from 1 to 2")
    if change == "nothing":
        assert keys.unseal(SECRET, sealed, b"from 1 to 2") == b"share"
        return
    if change == "text":
        sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    key, context = (
        bytes(32) if change == "key" else SECRET,
        b"from 1 to 3" if change == "context" else b"from 1 to 2",
    )
    with pytest.raises(ProtocolError, match="changed on its way"):
        keys.unseal(key, sealed, context)


def test_a_mask_is_the_key_stream_of_aes_in_counter_mode():
    encryptor = Cipher(AES(SECRET), ECB()).encryptor()
    stream = b"".join(encryptor.update(counter.to_bytes(16)) for counter in range(3))
    values = np.zeros(10, np.uint32)
    masks.add_mask(values, SECRET)
    assert values.tolist() == np.frombuffer(stream, "<u4")[:10].tolist()


def test_a_mask_does_not_depend_on_the_blocks_in_which_it_is_computed(monkeypatch):
    whole, parts = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
    masks.add_mask(whole, SECRET)
    monkeypatch.setattr(masks, "BLOCK", 96)
    masks.add_mask(parts, SECRET)
    assert np.array_equal(whole, parts)
    masks.subtract_mask(parts, SECRET)
    assert not parts.any()


def test_sums_are_exact_within_half_a_step_for_each_number():
    numbers = np.random.default_rng(0).normal(0, 10, (7, 1000))
    total = np.zeros(1000, np.uint32)
    for row in numbers:
        total += quantise.encode(row)
    assert np.abs(quantise.decode(total) - numbers.sum(axis=0)).max() <= 7 * quantise.STEP / 2


def test_the_largest_weighted_numbers_do_not_overflow():
    total = np.zeros(2, np.uint32)
    for share in (0.25, 0.75):
        total += quantise.encode(share * np.array([quantise.LIMIT, -quantise.LIMIT]))
    assert quantise.decode(total).tolist() == [quantise.LIMIT, -quantise.LIMIT]


@pytest.mark.parametrize("number", [np.nan, np.inf, 501.0, -501.0])
def test_a_number_that_would_overflow_is_refused(number):
    with pytest.raises(ProtocolError, match="beyond 500"):
        quantise.encode(np.array([0.0, number]))
