"""Runs docs/tutorial.md as written, in a new folder and a new environment, and prints the time of each step.

Only two things differ: pip installs this checkout, with the versions of requirements.lock, and the service
is stopped once it has answered. It needs nothing but Python.

python tests/fresh_tutorial.py
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.compile(r"```(bash|python)\n(.*?)```", flags=re.DOTALL)
WRITTEN = (
    "runs/digits/assignments.csv",
    "runs/digits/report.html",
    "runs/digits/clusters.json",
    "clusters.csv",
    "digits.onnx",
    "digits.onnx.md",
)


def main() -> None:
    """Run every block of the tutorial, and check what it wrote."""
    with TemporaryDirectory(prefix="tutorial-") as folder:
        here = Path(folder)
        timed("python -m venv", lambda: subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=here))
        (here / "examples").symlink_to(ROOT / "examples")
        for language, text in BLOCKS.findall(TUTORIAL):
            if language == "python":
                timed("the Python code", lambda code=text: execute(["python", "-c", code], here))
                continue
            for line in text.splitlines():
                timed(line, lambda line=line: run_line(line, here))
        missing = [name for name in WRITTEN if not (here / name).stat().st_size]
        assert not missing, f"Empty files: {missing}"


def timed(name, step) -> None:
    """Do a step and print how long it took."""
    started = time.perf_counter()
    step()
    print(f"{time.perf_counter() - started:7.1f} s  {name}", flush=True)


def run_line(line: str, here: Path) -> None:
    """Run a line of the shell."""
    if line.startswith("pip install"):
        checkout = f"{line.replace('.[', f'{ROOT}[')} --constraint {ROOT / 'requirements.lock'}"
        execute(["bash", "-c", f"{checkout} --quiet --disable-pip-version-check"], here)
    elif line.startswith("fedmcc serve"):
        serve(line, here)
    else:
        execute(["bash", "-c", line], here)


def execute(command: list[str], here: Path) -> None:
    """Run a command in the environment of the tutorial; it must succeed."""
    subprocess.run(command, cwd=here, env=environment(here), check=True)


def serve(line: str, here: Path) -> None:
    """Start the service, ask it for its run at the address that it prints, and stop it."""
    command, options = line.split(), {"cwd": here, "env": environment(here), "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as service:
        try:
            address = next(
                found[0] for text in service.stdout if (found := re.search(r"http://[^\s#]+", text))
            )
            with urllib.request.urlopen(f"{address.rstrip('/')}/api/run", timeout=60) as answer:
                assert b'"run":"digits"' in answer.read().replace(b" ", b"")
        finally:
            service.terminate()


def environment(here: Path) -> dict[str, str]:
    """The variables of a shell in which the environment is active."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDMCC"))}
    return kept | {"PATH": f"{here / '.venv' / 'bin'}:{kept['PATH']}", "VIRTUAL_ENV": str(here / ".venv")}


if __name__ == "__main__":
    main()
