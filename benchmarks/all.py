"""Runs the benchmarks that need neither long nor other environments, and writes results/benchmarks.md.

memory.py, flower.py and peers.py are run on their own.

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
NAMES = (
    "startup",
    "step",
    "stage2",
    "rounds",
    "limit",
    "views",
    "clients",
    "small_maps",
    "rounding",
    "chunks",
    "growth",
)
SHORTER = {  # so that all take 15 minutes
    "startup": ("--quick",),
    "rounds": ("--quick",),
    "clients": ("--quick",),
    "small_maps": ("--quick",),
    "chunks": ("--quick", "--batch", "512"),
    "growth": ("--quick",),
}
QUICK = {"stage2": ("--seeds", "1"), "rounding": ("--seeds", "1")}  # all others accept --quick


def main() -> None:
    """Run the benchmarks, show their output, and write it to a file with facts about the machine."""
    options = read_options()
    began, sections, failed = time.perf_counter(), [], []
    for name in options.only:
        argv = QUICK.get(name, ("--quick",)) if options.quick else SHORTER.get(name, ())
        text, code = run_benchmark(name, argv)
        sections.append(text)
        failed += [name] if code else []
    minutes = (time.perf_counter() - began) / 60
    write_output(options.out, "\n".join([heading(minutes, options), *sections]))
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--quick", action="store_true", help="few repeats")
    arguments.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments.add_argument("--out", type=Path, default=HERE.parent / "results" / "benchmarks.md")
    return arguments.parse_args()


def run_benchmark(name: str, argv: tuple[str, ...]) -> tuple[str, int]:
    """A section with the command, the duration and the output of a benchmark, and its exit code."""
    start, lines = time.perf_counter(), []
    environment = {"GOMP_SPINCOUNT": "10000"} | os.environ  # as the command line sets it
    command = [sys.executable, str(HERE / f"{name}.py"), *argv]
    print(f"\n## {name}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.perf_counter() - start
    shown = " ".join(["python", f"benchmarks/{name}.py", *argv])
    outcome = f"It failed with exit code {process.returncode}.\n" if process.returncode else ""
    return f"## {name}\n\n`{shown}`, {seconds:.0f} s\n\n{''.join(lines)}{outcome}", process.returncode


def heading(minutes: float, options: argparse.Namespace) -> str:
    """A table of the command, commit, date, machine and load."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    command = "make bench" if not options.quick else "python benchmarks/all.py --quick"
    facts = {
        "command": f"`{command}`, {minutes:.1f} minutes",
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{processor()}, {os.cpu_count()} cores, no accelerator used",
        "torch": f"{version('torch')}, Python {platform.python_version()}",
        "load at the end": f"{load} (1, 5 and 15 minutes; 1 to 2 of it are the benchmarks themselves)",
    }
    rows = "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())
    return (
        "# Benchmarks\n\nRatios measured within one run, alternating; `median (quartiles)`.\n\n"
        f"| | |\n|---|---|\n{rows}\n"
    )


def commit() -> str:
    """The commit of the working tree, marked if the tree has changes."""
    try:
        command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
