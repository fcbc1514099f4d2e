"""Keys of sites that cannot be read."""

import base64
from pathlib import Path

import pytest

from fedmcc.deployment.setup.certificates import create_site_key, load_site_key, parse_public_key
from fedmcc.errors import InputError

POINT = b"\x00\x00\x00\x61"  # 97 bytes follow: the kind of the point and its two coordinates
UNCOMPRESSED, COMPRESSED = POINT + b"\x04", POINT + b"\x02"


def compressed(text: bytes) -> bytes:
    """The Base64 text of a key, with points of a kind that is not supported."""
    return base64.b64encode(base64.b64decode(text).replace(UNCOMPRESSED, COMPRESSED))


def test_a_public_key_of_an_unsupported_kind_is_not_a_key() -> None:
    kind, text = create_site_key().public.split()
    assert parse_public_key(kind + b" " + text) is not None
    assert parse_public_key(kind + b" " + compressed(text)) is None


@pytest.mark.parametrize("damage", ["junk", "empty", "truncated", "unsupported"])
def test_a_damaged_key_of_a_site_is_named_with_the_remedy(tmp_path: Path, damage: str) -> None:
    key, private = tmp_path / "site.key", create_site_key().private
    first, *body, last = private.strip().split(b"\n")
    unsupported = b"\n".join([first, compressed(b"".join(body)), last])
    damaged = {"junk": b"junk", "empty": b"", "truncated": private[:200], "unsupported": unsupported}
    key.write_bytes(damaged[damage])
    with pytest.raises(InputError) as caught:
        load_site_key(key)
    assert str(caught.value) == (
        f"{key} is damaged or is not the key of a site: ask the operator for the folder of this site again, "
        "or for a new key (`fedmcc federation rotate`)."
    )


def test_a_missing_key_of_a_site_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"The key .*site\.key cannot be read: No such file"):
        load_site_key(tmp_path / "site.key")
