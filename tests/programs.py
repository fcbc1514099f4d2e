"""The programs that some tests need: where they are, what installs them, and tests on a machine without them.

A test needs a program if it asks for the fixture `nginx`, `chromium` or `systemd_analyze`. To all other tests
the programs are hidden: a test that needs one and does not ask for it fails everywhere.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from fedmcc.deployment.setup.nginx import find_nginx

PACKAGES = {"chromium": "chromium", "nginx": "nginx", "systemd-analyze": "systemd"}  # of Debian
FIXTURES = {name.replace("-", "_") for name in PACKAGES}


def installed(program: str) -> str:
    """The path of a program; if it is missing, the test is skipped, or fails in CI, which installs it."""
    path = find_nginx() if program == "nginx" else shutil.which(program)
    if path is None:
        _missing(f"{program} is not installed: apt-get install {PACKAGES[program]}")
    return path


def needs_module(name: str, package: str) -> None:
    """Skip the test, or fail in CI, if a module of Python is missing."""
    if find_spec(name) is None:
        _missing(f"{name} is not installed: pip install '{package}'")


@contextmanager
def hidden() -> Iterator[None]:
    """Let no code of this process find a program, in PATH or elsewhere."""
    which = shutil.which
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            shutil, "which", lambda name, *more, **by: None if name in PACKAGES else which(name, *more, **by)
        )
        yield


def _missing(remedy: str) -> None:
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(remedy)
