"""Installs the wheel in dist/ with each extra in a new environment, and runs the quick demo there.

Everything is outside the checkout, with the versions of requirements.lock. Each environment is a copy of one
that has the wheel alone, since torch takes most of the time.

python tests/fresh_install.py [EXTRA ...]
"""

import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = ("assignments.csv", "report.html", "scores.json")


def main() -> None:
    """Try the extras of the command line, or all but those of developers."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wheel,) = (ROOT / "dist").glob("*.whl")
    with TemporaryDirectory(prefix="fedmcc-") as folder:
        bare = Path(folder, "bare")
        timed("the wheel", lambda: prepare(bare, wheel))
        for extra in sys.argv[1:] or sorted(set(declared) - {"dev"}):
            timed(extra, lambda extra=extra: try_extra(bare, f"{wheel}[{extra}]"))


def timed(name, step) -> None:
    """Do a step and print how long it took."""
    started = time.perf_counter()
    step()
    print(f"{time.perf_counter() - started:7.1f} s  {name}", flush=True)


def prepare(environment: Path, wheel: Path) -> None:
    """Install the wheel alone, and run the program that it installs."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install(environment, str(wheel))
    execute([environment / "bin" / "fedmcc", "--version"], environment)


def try_extra(bare: Path, requirement: str) -> None:
    """Install an extra in a copy of the environment, and run the quick demo."""
    with TemporaryDirectory(prefix="fedmcc-") as folder:
        here = Path(folder)
        shutil.copytree(bare, here / "environment", symlinks=True, copy_function=os.link)
        install(here / "environment", requirement)
        command = [here / "environment" / "bin" / "python", "-m", "fedmcc", "demo", "--quick", "--quiet"]
        execute([*command, "--out", "run"], here, stdout=subprocess.DEVNULL)
        missing = [name for name in WRITTEN if not (here / "run" / name).stat().st_size]
        assert not missing, f"Empty files: {missing}"


def install(environment: Path, requirement: str) -> None:
    """Install a requirement at the versions of requirements.lock, and check that nothing is missing."""
    pip = [environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    execute([*pip, "install", "--constraint", ROOT / "requirements.lock", requirement], environment)
    execute([*pip, "check"], environment)


def execute(command: list[str | Path], here: Path, **options: int) -> None:
    """Run a command in a folder, without variables that lead back to the checkout; it must succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDMCC"))}
    environment = kept | {"FEDMCC_DATA": str(here / "cache")}
    subprocess.run(command, cwd=here, env=environment, check=True, **options)


if __name__ == "__main__":
    main()
