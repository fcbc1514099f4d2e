"""The Containerfile and the compose file: what a linter would check, and that their commands exist."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from typer.testing import CliRunner

from fedmcc.cli import app

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


@pytest.fixture
def steps() -> list[tuple[str, str]]:
    """The instructions of the Containerfile and their arguments, with continued lines joined."""
    text = (ROOT / "deploy/Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


@pytest.fixture
def services() -> dict[str, dict]:
    return yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]


def test_the_image_has_a_fixed_base_and_runs_as_a_user_without_rights(steps) -> None:
    names = [name for name, _ in steps]
    assert set(names) <= INSTRUCTIONS
    assert names[0] == "FROM"
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-\w+", steps[0][1])
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert dict(steps)["USER"] not in ("root", "0")
    assert all(value.startswith("[") for name, value in steps if name in ("ENTRYPOINT", "CMD"))


def test_the_image_copies_files_that_exist_and_keeps_no_caches(steps) -> None:
    for sources in (value.split()[:-1] for name, value in steps if name == "COPY"):
        assert all((ROOT / source).exists() for source in sources)
    for command in (value for name, value in steps if name == "RUN"):
        assert "apt-get install" not in command or "rm -rf /var/lib/apt/lists/*" in command
        assert "pip install" not in command or "--no-cache-dir" in command


@pytest.mark.slow
def test_the_image_can_build_its_wheel_from_what_it_copies(steps, tmp_path, programs) -> None:
    programs.needs_module("hatchling", "hatchling")
    for *sources, target in (value.split() for name, value in steps if name == "COPY"):
        for source in sources:
            place = tmp_path / target / (source if len(sources) > 1 else "")
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--wheel-dir", "out", "."], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("fedmcc-*.whl")
    recipes = {f"fedmcc/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").rglob("*.toml")}
    assert {"fedmcc/cli/demo.toml", *recipes} <= set(ZipFile(wheel).namelist())


@pytest.mark.parametrize("name", ["server", "site"])
def test_the_services_run_existing_commands_without_privileges(services, name) -> None:
    service = services[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    command, *rest = service["command"][:2]
    options = {word for word in service["command"] if word.startswith("--")}
    helped = CliRunner().invoke(app, [command, *rest, "--help"])
    assert helped.exit_code == 0
    assert all(option in helped.output for option in options)
    targets = [volume.split(":")[1] for volume in service["volumes"]]
    assert all(word in targets for word in service["command"] if word.startswith("/"))


def test_only_the_port_of_the_sites_is_published(services) -> None:
    assert services["server"]["ports"] == ["8000:8000"]
    assert not any("ports" in service for name, service in services.items() if name != "server")
    assert services["prometheus"]["network_mode"] == "service:server"
