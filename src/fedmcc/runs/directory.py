"""The run directory: public, versioned, described in docs/run-directory.md. No torch is needed to read it."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import locked, make_folder, write_atomically

FORMAT = 1  # raised when an older fedmcc could no longer read the directory

WRITTEN = (  # by and by
    "partition.npz.",
    "metrics.jsonl.",
    "scores.json.",
    "sites.json.",
    "assignments.csv.",
    "final.safetensors.",
    "noise.secret.",
    "evaluation.json.",
    "report.html.",
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run directory, as `run` and `load_run` return it; docs/run-directory.md describes every file.

    Parameters
    ----------
    path
        The directory.

    Examples
    --------
    >>> import fedmcc
    >>> table = {"data": {"name": "synthetic", "samples": 40}, "training": {"batch_size": 20}}
    >>> config = fedmcc.load_config(table, ["method.name=mcc", "method.rounds=2"])
    >>> run = fedmcc.run(config)
    >>> [(row["stage"], row["round"]) for row in run.rows()]
    [('joint', 1), ('joint', 2)]
    >>> run.read_json("scores.json")["images"]
    40
    """

    path: Path

    @property
    def config_file(self) -> Path:
        """The complete configuration: running it repeats the run."""
        return self.path / "config.toml"

    @property
    def metrics_file(self) -> Path:
        """A JSON object per line and round."""
        return self.path / "metrics.jsonl"

    @property
    def model_file(self) -> Path:
        """The final global network; it exists when training has ended."""
        return self.path / "checkpoints" / "final.safetensors"

    @property
    def scores_file(self) -> Path:
        """The final scores; it is written last, so it exists when the run is complete."""
        return self.path / "scores.json"

    @property
    def assignments_file(self) -> Path:
        """The cluster of every image."""
        return self.path / "assignments.csv"

    @property
    def secret_file(self) -> Path:
        """Whence noise is drawn, while the run is under way."""
        return self.path / "noise.secret"

    @property
    def sites_file(self) -> Path:
        """The sites of a real federation; in other runs there is none."""
        return self.path / "sites.json"

    @property
    def simulated(self) -> bool:
        """Whether its sites are simulated: then what they remember lies in the run."""
        return (self.path / "sites").is_dir()

    @property
    def resume_folder(self) -> Path:
        """What is needed to go on."""
        return self.path / "resume"

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.scores_file.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Work on the run while no other process does; a killed one lets go of it."""
        with locked(self.config_file):
            yield

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a line to the metrics and see it on disk."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[Row]:
        """Read the metrics of all rounds so far.

        Returns
        -------
        list[dict[str, Any]]
            One dictionary per round; a last line that a crash cut short is left out.
        """
        text = self.metrics_file.read_text(errors="replace") if self.metrics_file.exists() else ""
        lines = text.splitlines()
        rows: list[Row] = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                if number < len(lines):
                    raise InputError(
                        f"Line {number} of {self.metrics_file} is damaged: restore the file from a copy."
                    ) from None
        return rows

    def committed_rows(self) -> list[Row]:
        """The metrics of rounds that count; one more may be there that a resumed run repeats."""
        return self.rows()[: self.read_json("resume/progress.json").get("rows", 0)]

    def truncate_rows(self, count: int) -> None:
        """Keep the first `count` rows: later ones belong to rounds that will be run again."""
        kept = self.rows()[:count]
        write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def remove_temporary_files(self) -> None:
        """Remove the temporary files of writes that a crash cut short."""
        for folder in (self.path, self.model_file.parent):
            for path in folder.glob(".*.*"):
                if path.is_file() and path.name[1:].startswith(WRITTEN):
                    path.unlink()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """A small JSON file of the run."""
        write_atomically(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Row:
        """Read one of the JSON files of the run.

        Parameters
        ----------
        name
            Name of the file, such as `scores.json`.

        Returns
        -------
        dict[str, Any]
            Its content; empty if the file does not exist yet.
        """
        path = self.path / name
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError):
            content = None
        if not isinstance(content, dict):
            raise InputError(f"{path} is damaged: restore it from a copy or start the run again.")
        return content


def create_run(path: Path, config: str, environment: Mapping[str, Any]) -> Run:
    """Begin a run in a folder that is new or empty."""
    require_unused(path)
    make_folder(path, "the run")
    run = Run(path)
    run.model_file.parent.mkdir(exist_ok=True)
    run.resume_folder.mkdir(exist_ok=True)
    run.write_json("environment.json", {"format": FORMAT, **environment})
    write_atomically(run.config_file, config)  # last: from here on it is a run
    return run


def require_unused(path: Path) -> None:
    """Say in a sentence that a run cannot begin in a folder with something in it."""
    if _occupied(path):
        hint = (
            f"`fedmcc resume {path}` goes on with it" if (path / "config.toml").exists() else "it is in use"
        )
        raise InputError(f"{path} is not empty: {hint}; choose another folder with --out.")


def _occupied(path: Path) -> bool:
    """Whether a folder holds more than a run that was killed before it began leaves behind."""
    left = (entry.relative_to(path).as_posix() for entry in path.rglob("*"))
    own = ("environment.json", "checkpoints", "resume")
    return any(
        name not in own and not name.startswith((".environment.json.", ".config.toml.")) for name in left
    )


def load_run(path: str | Path) -> Run:
    """Open an existing run directory; this does not import torch.

    Parameters
    ----------
    path
        The run directory, such as `runs/demo-001`.

    Returns
    -------
    Run
        The run, complete or not.

    Raises
    ------
    InputError
        If this is not a run directory, or if a newer version of fedmcc wrote it.

    Examples
    --------
    >>> import fedmcc
    >>> table = {"data": {"name": "synthetic", "samples": 40}, "training": {"batch_size": 20}}
    >>> config = fedmcc.load_config(table, ["method.name=mcc", "method.rounds=2"])
    >>> path = fedmcc.run(config).path
    >>> fedmcc.load_run(path).finished
    True
    """
    path = Path(path)
    run = Run(path)
    if not path.is_dir() or not run.config_file.exists():
        raise InputError(f"{path} is not a run directory: it has no config.toml. `fedmcc run` makes one.")
    version = run.read_json("environment.json").get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{path} has run format {version} and this fedmcc reads up to {FORMAT}: update fedmcc to open it."
        )
    return run


def next_free(parent: Path, name: str) -> Path:
    """`parent/name-001`, or the first number above it that is not taken."""
    taken: Iterable[str] = {path.name for path in parent.iterdir()} if parent.is_dir() else ()
    number = next(n for n in range(1, 1_000_000) if f"{name}-{n:03}" not in taken)
    return parent / f"{name}-{number:03}"
