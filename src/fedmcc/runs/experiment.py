"""A whole run, from a configuration to a complete run directory, as a generator of events."""

import os
import platform
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmcc.config import Config, dump, name_of
from fedmcc.data.partition import encode_partition, holdings, read_shards
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import assignments_csv
from fedmcc.evaluation.geometry import fit_geometry
from fedmcc.evaluation.options import empty_scores
from fedmcc.federation.policy import Policy
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.messages import StageRound
from fedmcc.methods.base import Stage
from fedmcc.networks.prototypes import Prototypes, trim
from fedmcc.numerics.state_dicts import copy_into, detached, select
from fedmcc.runs.build import Experiment, prepare
from fedmcc.runs.checkpoints import Saved, check_architecture, load_progress, save_progress, save_state
from fedmcc.runs.cluster_choice import chosen_clusters, record_choice, record_mixtures
from fedmcc.runs.clusters import save_geometry
from fedmcc.runs.directory import Row, Run, create_run, next_free
from fedmcc.runs.privacy import noise_secret, privacy_loss
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step
from fedmcc.training.timing import AFTER_STAGES, start_phase, timed

PARTITION = "partition.npz"


class Scored(NamedTuple):
    """A round is done: its row of metrics, and the number of rounds of its stage."""

    row: Row
    rounds: int


class Plan(NamedTuple):
    """The work of a run in total and so far: images to train on, or rounds if sites have the images."""

    total: int
    done: int
    unit: Literal["images", "rounds"] = "images"


class Finished(NamedTuple):
    """The run is complete: the content of scores.json."""

    scores: dict[str, Any]


def run(config: Config, path: str | Path | None = None) -> Run:
    """Train, score and save everything in a run directory.

    Parameters
    ----------
    config
        What to run, from `load_config`.
    path
        A new or empty directory. None: the first free one of `runs/DATA-METHOD-001`, `…-002` and so on.

    Returns
    -------
    Run
        The complete run.

    Examples
    --------
    >>> import fedmcc
    >>> table = {"data": {"name": "synthetic", "samples": 40}, "training": {"batch_size": 20}}
    >>> run = fedmcc.run(fedmcc.load_config(table, ["method.name=mcc", "method.rounds=2"]))
    >>> str(run.path), run.finished
    ('runs/synthetic-mcc-001', True)
    """
    if path is None:
        path = next_free(Path("runs"), f"{name_of('data', config.data)}-{name_of('method', config.method)}")
    experiment = prepare(config)
    run = start_run(experiment, Path(path))
    for _ in steps(experiment, run):
        pass
    return run


def start_run(experiment: Experiment, path: Path) -> Run:
    """Create the run directory of an experiment."""
    environment: dict[str, Any] = {
        "fedmcc": version("fedmcc"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": np.__version__,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    count, _, *sides = experiment.images.images.shape
    if count:  # a server without images does not have their size
        environment["sides"] = sides
    run = create_run(path, dump(experiment.config), environment)
    _write_partition(experiment, run)
    return run


def steps(experiment: Experiment, run: Run) -> Generator[Step | Scored | Finished, None, None]:
    """Run the experiment, or what is left of it, to its end.

    Every round is on disk before it is yielded; a stop at any moment loses the current round only.
    """
    with run.locked():
        progress = yield from _train(experiment, run)
        yield Finished(_finish(experiment, run, progress))


def _train(experiment: Experiment, run: Run) -> Generator[Step | Scored, None, Progress]:
    with experiment.engine:
        progress, rows = _restore(experiment, run)
        policy = experiment.policy(noise_secret(experiment, run, rows))
        for stage in _remaining(experiment.stages, progress):
            start_phase(stage.name)
            for event in _rounds(experiment, run, stage, progress, policy):
                if isinstance(event, Step):
                    yield event
                    continue
                progress, rows = event.progress, rows + 1
                _require_progress(run, stage, event)
                row = _row(experiment, stage, event)
                row |= privacy_loss(experiment, run, row)
                with timed("checkpoint"):
                    _commit(experiment, run, event, row, rows)
                yield Scored(row, stage.rounds)
    return progress


def require_same_images(experiment: Experiment, run: Run) -> None:
    """Refuse to continue a run whose clients now have other rows of images than when it began."""
    path = run.path / PARTITION
    if not len(experiment.images) or not path.exists():
        return
    try:
        shards = read_shards(path.read_bytes())
    except ValueError:
        raise InputError(f"{path} is damaged: restore it from a copy.") from None
    before, now = sum(map(len, shards)), sum(map(len, experiment.shards))
    if before != now or not all(map(np.array_equal, shards, experiment.shards)):
        raise InputError(
            f"The images of {run.path} have changed since it began ({before:,} images, now {now:,}): "
            "restore them, or start a new run."
        )


def plan(experiment: Experiment, run: Run) -> Plan:
    """The work of the run in total and so far; an expected value if clients are sampled."""
    clients = experiment.clients
    share = experiment.config.federation.size(len(clients)) / len(clients)
    per_epoch = share * sum(map(experiment.engine.images_per_epoch, clients))
    epochs = {stage.name: stage.epochs if stage.trained else 0 for stage in experiment.stages}
    per_round = {name: round(per_epoch * count) for name, count in epochs.items()}
    total = sum(per_round[stage.name] * stage.rounds for stage in experiment.stages)
    return Plan(total, sum(per_round.get(row["stage"], 0) for row in run.committed_rows()))


def _rounds(
    experiment: Experiment, run: Run, stage: Stage, progress: Progress, policy: Policy
) -> Iterator[Step | Round]:
    try:
        yield from rounds(stage, progress, experiment.engine, experiment.clients, policy)
    except RoundFailedError as error:
        if not run.committed_rows():
            raise
        federation = run.sites_file.exists() and not run.simulated
        command = "the same fedmcc server start" if federation else f"fedmcc resume {quote(str(run.path))}"
        raise RoundFailedError(f"{error} Earlier rounds are saved; resume with: {command}") from None


def _require_progress(run: Run, stage: Stage, round: Round) -> None:
    """Raise RoundFailedError if this is the last round of a stage of which all rounds were skipped."""
    if not round.skipped or round.progress.round < stage.rounds:
        return
    if not any(row["participants"] for row in run.rows() if row["stage"] == stage.name):
        raise RoundFailedError(
            f"All rounds of the stage {stage.name} were skipped, the last one for this reason: "
            f"{round.skipped} Find out which client sends wrong updates, and start a new run without it."
        )


def _restore(experiment: Experiment, run: Run) -> tuple[Progress, int]:
    """Restore the last committed round; returns the progress and the number of rows of metrics."""
    saved = load_progress(run)
    if saved is None:
        saved = Saved(Progress(detached(experiment.net.state_dict())), rows=0, clients={})
    check_architecture(run, saved, experiment.net, experiment.stages)
    run.truncate_rows(saved.rows)
    experiment.engine.begin(run.resume_folder, saved.clients, _last_rounds(run))
    run.remove_temporary_files()
    require_same_images(experiment, run)
    if not (run.path / PARTITION).exists():  # killed before it was written
        _write_partition(experiment, run)
    return saved.progress, saved.rows


def _last_rounds(run: Run) -> dict[int, StageRound]:
    """The last round in which each client's update was used."""
    try:
        return {
            client: StageRound(row["stage"], row["round"])
            for row in run.rows()
            for client in row["participants"]
        }
    except KeyError as missing:
        raise InputError(
            f"{run.metrics_file} has a round without {missing}: restore the file from a copy."
        ) from None


def _write_partition(experiment: Experiment, run: Run) -> None:
    """Write which client has which images, if the images are on this machine."""
    if len(experiment.images):
        write_atomically(run.path / PARTITION, encode_partition(experiment.images, experiment.shards))


def _remaining(stages: tuple[Stage, ...], progress: Progress) -> tuple[Stage, ...]:
    names = [stage.name for stage in stages]
    return stages[names.index(progress.stage) if progress.stage else 0 :]


def _row(experiment: Experiment, stage: Stage, round: Round) -> Row:
    """The row of metrics.jsonl of a round."""
    row: Row = {
        "stage": stage.name,
        "round": round.progress.round,
        "loss": round.loss,
        "seconds": round.seconds,
        "bytes_down": round.bytes_down,
        "bytes_up": round.bytes_up,
        "bytes": {str(client): list(traffic) for client, traffic in round.traffic.items()},
        "participants": [update.client for update in round.updates],
        "refused": [refused._asdict() for refused in round.refused],
        "dropped": list(round.dropped),
    }
    if round.attempt > 1:
        row["attempt"] = round.attempt
    if round.skipped:
        row["skipped"] = round.skipped
    return row | experiment.engine.facts() | _scores(experiment, stage, round.progress)


def _scores(experiment: Experiment, stage: Stage, progress: Progress) -> dict[str, float]:
    """The scores of a round; empty if it is not to be scored."""
    number, options = progress.round, experiment.config.evaluation
    last = number == stage.rounds
    if experiment.scorer is None or (not last and number % options.every):
        return {}
    due = options.kmeans_every > 0 and number % options.kmeans_every == 0
    with_kmeans = bool(stage.trained) and (last or due)  # without training, features do not change
    with timed("scoring"):
        copy_into(experiment.net, progress.model)
        return experiment.scorer.round(experiment.net.online, _has_head(experiment, stage), with_kmeans)


def _has_head(experiment: Experiment, stage: Stage) -> bool:
    """Whether this stage or one before it has trained the cluster head."""
    stages = experiment.stages[: experiment.stages.index(stage) + 1]
    return any(part in ("online", "online.cluster_projector") for done in stages for part in done.shared)


def _commit(experiment: Experiment, run: Run, round: Round, row: Row, rows: int) -> None:
    run.log(row)
    engine, clients = experiment.engine, [update.client for update in round.updates]
    engine.mark_saved(save_progress(run, round.progress, rows, engine.client_states(clients)))


def _finish(experiment: Experiment, run: Run, progress: Progress) -> dict[str, Any]:
    """Write the final network, the cluster of every image and the final scores, in this order."""
    start_phase(AFTER_STAGES)
    config, net = experiment.config, experiment.net
    copy_into(net, progress.model)
    trim(net)
    record_choice(run, progress.extras, chosen_clusters(net, config))
    metadata = {
        "fedmcc": version("fedmcc"),
        "method": name_of("method", config.method),
        "encoder": name_of("encoder", config.encoder),
        "channels": str(experiment.images.images.shape[1]),
    }
    if (identity := getattr(config.encoder, "sha256", None)) is not None:
        metadata["encoder_sha256"] = identity
    with timed("checkpoint"):
        save_state(run.model_file, select(detached(net.state_dict()), ("online",)), metadata)
    with timed("scoring"):
        run.write_json(run.scores_file.name, scores := _final_scores(experiment, run))
    run.secret_file.unlink(missing_ok=True)  # with the secret, the noise could be removed
    return scores


def _final_scores(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Write the cluster of every image and return the final scores, which are empty without images."""
    scorer, online = experiment.scorer, experiment.net.online
    if scorer is None:
        return empty_scores(experiment.config.general.clusters or 0)
    extracted = scorer.extract(online)
    assignment = scorer.assign(extracted, online)
    geometry = fit_geometry(extracted.features, assignment.clusters, scorer.count(extracted))
    save_geometry(run, replace(geometry, temperature=scorer.temperature(online, extracted)))
    write_atomically(run.assignments_file, assignments_csv(scorer.images, assignment))
    soft = scorer.extract(online, owned=False).assignments
    if scorer.owners is not None and soft is not None and isinstance(online.cluster_projector, Prototypes):
        names = holdings(experiment.images, experiment.shards).clients
        record_mixtures(run, names, scorer.owners, soft)
    return scorer.final(online, extracted)
