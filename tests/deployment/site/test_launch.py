"""What a site refuses before it connects, what it prints of Flower's log, and when it waits for a server."""

from pathlib import Path

import pytest

from fedmcc.deployment.flower.connectivity import ExpiredError, UnreachableError
from fedmcc.deployment.setup.layout import OperatorFolder, SiteFolder
from fedmcc.deployment.site import launch
from fedmcc.errors import InputError

EXPIRED = ExpiredError("The certificate of host:1 has expired on 2026-01-01: nothing was sent.")
DOWN = UnreachableError("Connection refused")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors of the next attempts to connect; the attempt after them succeeds."""
    errors: list[Exception] = []

    def check(server: str, authority: Path) -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(launch, "check_connection", check)
    monkeypatch.setattr(launch, "RETRY_SECONDS", 0.0)
    return errors


def test_a_site_that_has_joined_waits_for_a_renewed_certificate(failing: list[Exception]) -> None:
    failing += [DOWN, EXPIRED, EXPIRED, DOWN]
    said = [*launch._wait_for_server(SiteFolder(Path()), "host:1", joined=True)]
    assert said == [
        "host:1 does not answer (Connection refused): waiting for it.",
        f"{EXPIRED} Waiting.",
    ]
    assert failing == []


def test_a_site_that_starts_refuses_an_expired_certificate(failing: list[Exception]) -> None:
    failing += [DOWN, EXPIRED]
    with pytest.raises(ExpiredError, match="expired on 2026-01-01"):
        list(launch._wait_for_server(SiteFolder(Path()), "host:1", joined=False))


RETRYING = "WARNING :     Connection attempt failed, retrying in 3.10 seconds"


def test_messages_of_fedmcc_are_printed_and_lines_of_flower_are_not():
    lines = ["INFO : Starting", "SuperNode ID: 1", "2026-11-17 01:00:00,123 joint, round 1: training."]
    assert list(launch._watch(lines, lambda: None)) == ["Connected.", "joint, round 1: training."]


def test_a_certificate_that_expires_while_a_site_is_connected_is_named_once():
    reasons = iter([None, "The certificate has expired.", "never read"])
    assert list(launch._watch([RETRYING] * 5, lambda: next(reasons))) == ["The certificate has expired."]
    assert next(reasons) == "never read"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("empty", "The folder {} is empty: put images in it, or give another folder as --data."),
        ("photo.png", "{} is a file: give the folder that holds your images as --data."),
        ("nowhere", "The folder {} does not exist: give the folder of your images as --data."),
    ],
)
def test_images_that_cannot_be_used_are_named_before_a_site_waits_for_its_server(
    operator: OperatorFolder, tmp_path: Path, failing: list[Exception], data: str, sentence: str
) -> None:
    failing.append(DOWN)
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "empty" / ".DS_Store").touch()
    (tmp_path / "photo.png").touch()
    with pytest.raises(InputError) as caught:
        next(launch.run_site(operator.site("north"), tmp_path / data))
    assert str(caught.value) == sentence.format(tmp_path / data)
    assert failing == [DOWN]


def test_a_damaged_key_is_named_before_a_site_waits_for_its_server(
    operator: OperatorFolder, tmp_path: Path, failing: list[Exception]
) -> None:
    failing.append(DOWN)
    (tmp_path / "1.png").touch()
    site = operator.site("north")
    site.key.write_text("junk")
    with pytest.raises(InputError, match=rf"^{site.key} is damaged .*: ask the operator .*rotate"):
        next(launch.run_site(site, tmp_path))
    assert failing == [DOWN]
    assert site.key.read_text() == "junk"


def test_a_site_with_images_and_its_key_waits_for_its_server(
    operator: OperatorFolder, tmp_path: Path, failing: list[Exception]
) -> None:
    failing.append(DOWN)
    (tmp_path / "1.png").touch()
    assert "waiting for it" in next(launch.run_site(operator.site("north"), tmp_path))
