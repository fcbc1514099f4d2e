"""The systemd units: valid, and rated as safe by systemd itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedmcc.deployment.setup.systemd import server_unit, site_unit

MAX_EXPOSURE = 3.0  # on the scale of systemd-analyze from 0 to 10


@pytest.fixture(params=["server", "site", "site by address"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit whose program exists, in a file."""
    text = {
        "server": server_unit(Path("/srv/a federation")),
        "site": site_unit("north", "fed.example.org"),
        "site by address": site_unit("north", "2001:db8::1"),
    }[request.param]
    path = tmp_path / f"fedmcc-{request.param.split()[0]}.service"
    path.write_text(text.replace("/opt/fedmcc/bin/fedmcc", str(Path(sys.executable).with_name("fedmcc"))))
    return path


def test_systemd_rates_a_unit_as_safe(systemd_analyze: str, unit: Path) -> None:
    argv = [systemd_analyze, "security", "--offline=true", "--no-pager", str(unit)]
    shown = subprocess.run(argv, capture_output=True, text=True).stdout
    rated = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
    assert rated, shown
    assert float(rated[1]) < MAX_EXPOSURE


def test_systemd_accepts_a_unit(systemd_analyze: str, unit: Path) -> None:
    verified = subprocess.run([systemd_analyze, "verify", str(unit)], capture_output=True, text=True)
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert (verified.returncode, complaints) == (0, [])


def test_a_site_reaches_its_server_and_no_other_address() -> None:
    lines = site_unit("north", "10.1.2.3").splitlines()
    assert lines.count("IPAddressDeny=any") == lines.count("IPAddressAllow=localhost 10.1.2.3") == 1
    assert "\nIPAddressDeny=any" not in site_unit("north", "fed.example.org")  # it could not resolve the name


def test_no_service_runs_as_root_or_reads_home_folders(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"User=fedmcc", "ProtectHome=yes", "CapabilityBoundingSet=", "MemoryMax=80%"} <= set(lines)
