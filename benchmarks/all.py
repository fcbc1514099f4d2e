"""All benchmarks but memory.py, one after the other, into results/benchmarks.md.

python benchmarks/all.py [--quick] [--only startup step ...] [--out results/benchmarks.md]
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from fedmcc.storage.atomic_files import write_output

HERE = Path(__file__).resolve().parent
NAMES = ("startup", "step", "stage2", "rounds", "limit", "views", "clients")
QUICK = {"stage2": ("--seeds", "1")}  # the others have --quick


def main() -> None:
    """Run them, show what they print, and write it down with where it was measured."""
    options = read_options()
    began, sections, failed = time.perf_counter(), [], []
    for name in options.only:
        words = QUICK.get(name, ("--quick",)) if options.quick else ()
        text, code = measured(name, words)
        sections.append(text)
        failed += [name] if code else []
    minutes = (time.perf_counter() - began) / 60
    write_output(options.out, "\n".join([heading(minutes, options), *sections]))
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def read_options() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = [name for name in NAMES if (HERE / f"{name}.py").exists()]
    made.add_argument("--quick", action="store_true", help="few repeats")
    made.add_argument("--only", nargs="+", choices=there, default=there)
    made.add_argument("--out", type=Path, default=HERE.parent / "results" / "benchmarks.md")
    return made.parse_args()


def measured(name: str, words: tuple[str, ...]) -> tuple[str, int]:
    """What a benchmark printed, under its command and the time it took, and its exit code."""
    start, lines = time.perf_counter(), []
    environment = {"GOMP_SPINCOUNT": "10000"} | os.environ  # as the program sets it
    command = [sys.executable, str(HERE / f"{name}.py"), *words]
    print(f"\n## {name}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.perf_counter() - start
    shown = " ".join(["python", f"benchmarks/{name}.py", *words])
    outcome = f"It failed with exit code {process.returncode}.\n" if process.returncode else ""
    return f"## {name}\n\n`{shown}`, {seconds:.0f} s\n\n{''.join(lines)}{outcome}", process.returncode


def heading(minutes: float, options: argparse.Namespace) -> str:
    """Where, when and with what it was measured."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    command = "make bench" if not options.quick else "python benchmarks/all.py --quick"
    facts = {
        "command": f"`{command}`, {minutes:.1f} minutes",
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{processor()}, {os.cpu_count()} cores, no accelerator is used",
        "torch": f"{version('torch')}, Python {platform.python_version()}",
        "load at the end": f"{load} (1, 5 and 15 minutes; the benchmarks themselves are 1 to 2 of it)",
    }
    rows = "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())
    return (
        "# Benchmarks\n\nRatios measured within one run, in turns; `median (quartiles)`.\n\n"
        f"| | |\n|---|---|\n{rows}\n"
    )


def commit() -> str:
    """The commit of the working tree, and whether it was changed since."""
    try:
        words = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
