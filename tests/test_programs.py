"""A test whose program is missing is skipped with the command that installs it, and fails in CI."""

import shutil
from types import ModuleType

import pytest

from fedmcc.deployment.setup.nginx import find_nginx


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
@pytest.mark.parametrize("program", ["chromium", "nginx", "systemd-analyze"])
def test_without_its_program_a_test_is_skipped_and_fails_in_ci(
    programs: ModuleType, monkeypatch: pytest.MonkeyPatch, program: str, ci: str, outcome: type[Exception]
) -> None:
    monkeypatch.setenv("CI", ci)
    with programs.hidden(), pytest.raises(outcome, match=f"{program} is not installed: apt-get install"):
        programs.installed(program)


def test_a_test_that_asks_for_no_program_finds_none() -> None:
    assert find_nginx() is None
    assert [shutil.which(name) for name in ("chromium", "nginx", "systemd-analyze")] == [None] * 3
    assert shutil.which("sh")
