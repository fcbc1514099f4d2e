"""The run directory, a public and versioned format (docs/run-directory.md) that is read without torch."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import locked, make_folder, require_possible, write_atomically

FORMAT = 1  # raised when older versions of fedmcc can no longer read the directory
PURPOSE = "the run"  # of the folder, in errors
PROGRESS = "resume/progress.json"  # which round is the last committed one
TEMPORARY_PREFIXES = (  # of the hidden files that `write_atomically` renames when they are complete
    "partition.npz.",
    "metrics.jsonl.",
    "scores.json.",
    "sites.json.",
    "remaining.json.",
    "assignments.csv.",
    "final.safetensors.",
    "clusters.safetensors.",
    "clusters.json.",
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
        """One JSON object per line, for each round."""
        return self.path / "metrics.jsonl"

    @property
    def model_file(self) -> Path:
        """The final global network; the file exists once training has ended."""
        return self.path / "checkpoints" / "final.safetensors"

    @property
    def scores_file(self) -> Path:
        """The final scores; the file is written last, so it exists if the run is complete."""
        return self.path / "scores.json"

    @property
    def assignments_file(self) -> Path:
        """The cluster of every image."""
        return self.path / "assignments.csv"

    @property
    def tables(self) -> tuple[Path, Path]:
        """The cluster of every image as CSV and, if `pyarrow` is installed, as Parquet."""
        return self.assignments_file, self.assignments_file.with_suffix(".parquet")

    @property
    def geometry_file(self) -> Path:
        """The centres of the clusters among the features of the scored images."""
        return self.path / "checkpoints" / "clusters.safetensors"

    @property
    def secret_file(self) -> Path:
        """The secret that noise is derived from; the file is deleted when the run is complete."""
        return self.path / "noise.secret"

    @property
    def sites_file(self) -> Path:
        """The sites of a federation; the file exists only in runs with sites."""
        return self.path / "sites.json"

    @property
    def simulated(self) -> bool:
        """Whether the sites are simulated; their states are then stored in the run directory."""
        return (self.path / "sites").is_dir()

    @property
    def resume_folder(self) -> Path:
        """The state of the last committed round, from which the run is resumed."""
        return self.path / "resume"

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.scores_file.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on the run; the lock of a killed process is released."""
        with locked(self.config_file):
            yield

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the metrics and flush it to disk."""
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
                continue
            if not isinstance(rows[-1], dict):
                raise InputError(
                    f"Line {number} of {self.metrics_file} is not a round: restore the file from a copy."
                )
        return rows

    def committed_rows(self) -> list[Row]:
        """The metrics of committed rounds; a later row is of a round that a resumed run repeats."""
        count = self.read_json(PROGRESS).get("rows", 0)
        if not isinstance(count, int):
            raise InputError(f"{self.path / PROGRESS} is damaged: restore it from a copy.")
        return self.rows()[:count]

    def truncate_rows(self, count: int) -> None:
        """Keep the first `count` rows; later ones are of rounds that will be repeated."""
        kept = self.rows()[:count]
        if len(kept) < count:
            raise InputError(
                f"{self.metrics_file} has {len(kept)} of {count} finished rounds: restore it from a copy."
            )
        write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def remove_temporary_files(self) -> None:
        """Delete the temporary files of writes that a crash interrupted."""
        for folder in (self.path, self.model_file.parent):
            for path in folder.glob(".*.*"):
                if path.is_file() and path.name[1:].startswith(TEMPORARY_PREFIXES):
                    path.unlink()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the JSON files of the run."""
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
    """Create a run in a folder that is new or empty."""
    require_unused(path)
    make_folder(path, PURPOSE)
    run = Run(path)
    run.model_file.parent.mkdir(exist_ok=True)
    run.resume_folder.mkdir(exist_ok=True)
    run.write_json("environment.json", {"format": FORMAT, **environment})
    write_atomically(run.config_file, config)  # last: it makes the folder a run directory
    return run


def require_unused(path: Path) -> None:
    """Raise InputError if the folder is in use or impossible; a run killed while it started may be there."""
    require_possible(path, PURPOSE)
    if _in_use(path):
        resume = f"resume its run with `fedmcc resume {path}`, or " if Run(path).config_file.exists() else ""
        raise InputError(f"{path} is not empty: {resume}choose another folder with --out.")


def require_no_run(path: Path) -> None:
    """Raise InputError if a run directory is given as a folder of images or as a recipe."""
    if all((path / name).is_file() for name in ("config.toml", "environment.json")):
        raise InputError(
            f"{path} is a run: resume it with `fedmcc resume {path}`, or repeat it with "
            f"`fedmcc run {path / 'config.toml'}`."
        )


def _in_use(path: Path) -> bool:
    names = (entry.relative_to(path).as_posix() for entry in path.rglob("*"))
    of_a_start = ("environment.json", "checkpoints", "resume")
    temporary = (".environment.json.", ".config.toml.")
    return any(name not in of_a_start and not name.startswith(temporary) for name in names)


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
    """The first path of `parent/name-001`, `parent/name-002` and so on that does not exist."""
    existing: Iterable[str] = {path.name for path in parent.iterdir()} if parent.is_dir() else ()
    number = next(n for n in range(1, 1_000_000) if f"{name}-{n:03}" not in existing)
    return parent / f"{name}-{number:03}"
