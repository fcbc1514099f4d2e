"""What a run keeps about its clusters besides the network: geometry, and the corrections of the user."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from fedmcc.errors import InputError
from fedmcc.evaluation import parquet
from fedmcc.evaluation.assignments import Assignment, Soft, assignments_csv, fold, table_rows
from fedmcc.evaluation.calibration import temper
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.geometry import FALSE_ALARMS, Geometry
from fedmcc.evaluation.splitting import Divided, Rows, Split
from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.storage.safetensor_files import load_state, save_state

FILE = "clusters.json"
MAX_NAME = 200  # characters


@dataclass(frozen=True)
class Edits:
    """Names of clusters, the cluster into which each merged one went, and clusters that were split."""

    names: Mapping[int, str] = field(default_factory=dict)
    merged: Mapping[int, int] = field(default_factory=dict)
    splits: tuple[Split, ...] = ()

    def apply(self, assignments: Soft, rows: Rows) -> Divided:
        """Soft assignments after all splits and merges, given the features of the images."""
        for split in self.splits:
            assignments = split.divide(fold(assignments, split.merged), rows)
        return fold(assignments, self.merged)

    def extend(self, geometry: Geometry) -> Geometry:
        """The geometry with the parts of all clusters that were split."""
        for split in self.splits:
            geometry = split.extend(geometry)
        return geometry

    def with_name(self, cluster: int, name: str) -> "Edits":
        """The edits after a cluster got a name; an empty name removes it."""
        name = " ".join(name.split())
        if len(name) > MAX_NAME:
            raise InputError(f"The name has {len(name)} characters: give at most {MAX_NAME}.")
        if not _is_text(name):
            raise InputError("The name is not valid UTF-8: use a terminal with UTF-8, or other characters.")
        names = {key: value for key, value in self.names.items() if key != cluster}
        return replace(self, names=names | ({cluster: name} if name else {}))

    def with_merged(self, target: int, sources: Sequence[int]) -> "Edits":
        """The edits after clusters were merged into another one, with all that was merged into them."""
        into = dict.fromkeys(sources, target)
        merged = {source: into.get(former, former) for source, former in self.merged.items()} | into
        names = {key: value for key, value in self.names.items() if key not in merged}
        return Edits(names, merged, self.splits)


def load_edits(run: Run) -> Edits:
    """The names, merges and splits of a run; empty if there are none."""
    content = run.read_json(FILE)
    try:
        names = {int(key): str(value) for key, value in content.get("names", {}).items()}
        merged = _numbers(content.get("merged", {}))
        if merged.keys() & set(merged.values()):
            raise ValueError("A cluster was merged into one that was merged itself.")
        splits = tuple(map(_read_split, content.get("splits", ())))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{run.path / FILE} is damaged: restore it from a copy, or remove it.") from None
    return Edits(names, merged, splits)


def _read_split(content: Mapping[str, Any]) -> Split:
    centres = tuple(tuple(map(float, centre)) for centre in content["centres"])
    split = Split(
        tuple(map(int, content["parts"])),
        centres,
        tuple(map(float, content["spreads"])),
        _numbers(content["merged"]),
    )
    if not len(split.parts) == len(centres) == len(split.spreads) or len(set(map(len, centres))) != 1:
        raise ValueError("The parts, centres and spreads of a split differ in number.")
    return split


def _numbers(content: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in content.items()}


def save_edits(run: Run, edits: Edits) -> None:
    """Write the names, merges and splits of a run."""
    content: dict[str, Any] = {"names": _keyed(edits.names), "merged": _keyed(edits.merged)}
    if edits.splits:
        content["splits"] = [asdict(split) | {"merged": _keyed(split.merged)} for split in edits.splits]
    run.write_json(FILE, content)


def _is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; arguments of another encoding cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keyed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in sorted(values.items())}


def require_cluster(run: Run, cluster: int, edits: Edits, count: int) -> None:
    """Raise InputError unless this is a cluster of the run that was not merged into another one."""
    if not 0 <= cluster < count:
        raise InputError(f"{run.path} has no cluster {cluster}: give a number from 0 to {count - 1}.")
    if cluster in edits.merged:
        raise InputError(f"Cluster {cluster} was merged into {edits.merged[cluster]}: use that number.")


def save_geometry(run: Run, geometry: Geometry) -> None:
    """Write where the clusters are that a run assigned to its images."""
    state = {
        "centres": torch.from_numpy(geometry.centres),
        "spread": torch.from_numpy(geometry.spread),
        "limit": torch.tensor(geometry.limit, dtype=torch.float64),
        "temperature": torch.tensor(geometry.temperature, dtype=torch.float64),
    }
    save_state(run.geometry_file, state, {"false_alarms": str(FALSE_ALARMS)})


def load_geometry(run: Run) -> Geometry | None:
    """Where the clusters of a run are; None for runs without images, and of older versions."""
    if not run.geometry_file.exists():
        return None
    state = load_state(run.geometry_file)
    try:
        centres, spread = (state[name].numpy() for name in ("centres", "spread"))
        return Geometry(centres, spread, float(state["limit"]), float(state.get("temperature", 1.0)))
    except KeyError:
        raise InputError(f"{run.geometry_file} is damaged: restore it from a copy, or remove it.") from None


def judged(extracted: Extracted, geometry: Geometry | None, edits: Edits) -> Assignment:
    """The clusters of images by the head, after corrections, with names and with what the geometry tells."""
    assert extracted.assignments is not None
    given, rows = extracted.assignments, extracted.features
    soft, temperature = edits.apply(given, rows), 1.0 if geometry is None else geometry.temperature
    calibrated = edits.apply(temper(given, temperature), rows)
    assignment = replace(Assignment.from_soft(soft, calibrated), names=edits.names)
    if geometry is None or geometry.centres.shape != (given.shape[1], rows.shape[1]):
        return assignment
    geometry = edits.extend(geometry)
    judgement = geometry.judge(assignment, extracted.features, soft, edits.merged)
    return replace(assignment, judgement=judgement)


def rewrite(run: Run) -> None:
    """Assign the images of a run again, with all corrections, and write their table and scores."""
    rewrite_table(run, scored=True)
    (run.path / "cache" / "landscape.npz").unlink(missing_ok=True)  # it depends on the clusters


def rewrite_table(run: Run, scored: bool = False) -> Assignment:
    """Write the table of a run's images with all that is known about them; with `scored` also the scores."""
    from fedmcc.runs.build import reopen

    trained = reopen(run)
    scorer, online = trained.scorer, trained.net.online
    if online.cluster_projector is None:
        raise InputError(f"{run.path} has no cluster head: train with a section [clustering] first.")
    assignment = judged(scorer.extract(online, edited=False), load_geometry(run), load_edits(run))
    write_atomically(run.assignments_file, assignments_csv(scorer.images, assignment))
    if parquet.is_available():
        rows = list(table_rows(scorer.images, assignment))
        write_atomically(run.assignments_file.with_suffix(".parquet"), parquet.parquet_chunks([rows]))
    if scored:
        run.write_json(run.scores_file.name, scorer.final(online, scorer.extract(online)))
    return assignment
