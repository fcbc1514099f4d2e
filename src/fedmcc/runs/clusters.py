"""What a run keeps about its clusters besides the network: geometry, and the names and merges of the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import Assignment, assignments_csv, fold
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.geometry import FALSE_ALARMS, Geometry, fit_geometry
from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.storage.safetensor_files import load_state, save_state

FILE = "clusters.json"
MAX_NAME = 200  # characters


@dataclass(frozen=True)
class Edits:
    """Names of clusters, and the cluster into which each merged one went."""

    names: Mapping[int, str] = field(default_factory=dict)
    merged: Mapping[int, int] = field(default_factory=dict)

    def with_name(self, cluster: int, name: str) -> "Edits":
        """The edits after a cluster got a name; an empty name removes it."""
        name = " ".join(name.split())
        if len(name) > MAX_NAME:
            raise InputError(f"The name has {len(name)} characters: give at most {MAX_NAME}.")
        names = {key: value for key, value in self.names.items() if key != cluster}
        return replace(self, names=names | ({cluster: name} if name else {}))

    def with_merged(self, target: int, sources: Sequence[int]) -> "Edits":
        """The edits after clusters were merged into another one, with all that was merged into them."""
        into = dict.fromkeys(sources, target)
        merged = {source: into.get(former, former) for source, former in self.merged.items()} | into
        names = {key: value for key, value in self.names.items() if key not in merged}
        return Edits(names, merged)


def load_edits(run: Run) -> Edits:
    """The names and merges of a run; empty if there are none."""
    content = run.read_json(FILE)
    try:
        names = {int(key): str(value) for key, value in content.get("names", {}).items()}
        merged = {int(key): int(value) for key, value in content.get("merged", {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{run.path / FILE} is damaged: restore it from a copy, or remove it.") from None
    return Edits(names, merged)


def save_edits(run: Run, edits: Edits) -> None:
    """Write the names and merges of a run."""
    names = {str(key): value for key, value in sorted(edits.names.items())}
    merged = {str(key): value for key, value in sorted(edits.merged.items())}
    run.write_json(FILE, {"names": names, "merged": merged})


def require_cluster(run: Run, cluster: int, edits: Edits, count: int) -> None:
    """Raise InputError unless this is a cluster of the run that was not merged into another one."""
    if not 0 <= cluster < count:
        raise InputError(f"{run.path} has no cluster {cluster}: give a number from 0 to {count - 1}.")
    if cluster in edits.merged:
        raise InputError(f"Cluster {cluster} was merged into {edits.merged[cluster]}: use that number.")


def record_geometry(run: Run, extracted: Extracted, clusters: np.ndarray, count: int) -> None:
    """Write where the clusters are that a run assigned to its images."""
    geometry = fit_geometry(extracted.features, clusters.astype(np.int64), count)
    state = {
        "centres": torch.from_numpy(geometry.centres),
        "spread": torch.from_numpy(geometry.spread),
        "limit": torch.tensor(geometry.limit, dtype=torch.float64),
    }
    save_state(run.geometry_file, state, {"false_alarms": str(FALSE_ALARMS)})


def load_geometry(run: Run) -> Geometry | None:
    """Where the clusters of a run are; None for runs without images, and of older versions."""
    if not run.geometry_file.exists():
        return None
    state = load_state(run.geometry_file)
    try:
        centres, spread = (state[name].numpy() for name in ("centres", "spread"))
        return Geometry(centres, spread, float(state["limit"]))
    except KeyError:
        raise InputError(f"{run.geometry_file} is damaged: restore it from a copy, or remove it.") from None


def judged(extracted: Extracted, geometry: Geometry | None, edits: Edits) -> Assignment:
    """The clusters of images by the head, after merges, with names and with what the geometry tells."""
    assert extracted.assignments is not None
    soft = fold(extracted.assignments, edits.merged)
    assignment = replace(Assignment.from_soft(soft), names=edits.names)
    if geometry is None or geometry.centres.shape != (soft.shape[1], extracted.features.shape[1]):
        return assignment
    judgement = geometry.judge(assignment, extracted.features, soft, edits.merged)
    return replace(assignment, judgement=judgement)


def rewrite(run: Run) -> None:
    """Assign the images of a run again, with its names and merges, and write their table and scores."""
    rewrite_table(run, scored=True)
    (run.path / "cache" / "landscape.npz").unlink(missing_ok=True)  # it depends on the clusters


def rewrite_table(run: Run, scored: bool = False) -> Assignment:
    """Write the table of a run's images with all that is known about them; with `scored` also the scores."""
    from fedmcc.runs.build import reopen

    trained = reopen(run)
    scorer, online = trained.scorer, trained.net.online
    extracted = scorer.extract(online)
    if extracted.assignments is None:
        raise InputError(f"{run.path} has no cluster head: train with a section [clustering] first.")
    assignment = judged(extracted, load_geometry(run), load_edits(run))
    write_atomically(run.assignments_file, assignments_csv(scorer.images, assignment))
    if scored:
        run.write_json(run.scores_file.name, scorer.final(online, extracted))
    return assignment
