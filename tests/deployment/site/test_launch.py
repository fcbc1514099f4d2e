"""What a site prints of the log of Flower, and of a server that cannot be reached, and whether it waits."""

from pathlib import Path

import pytest

from fedmcc.deployment.flower.connectivity import ExpiredError, UnreachableError
from fedmcc.deployment.setup.layout import SiteFolder
from fedmcc.deployment.site import launch

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
