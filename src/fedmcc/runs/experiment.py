"""The composition root: from a configuration to a finished run, as a generator that its caller watches."""

import os
import platform
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmcc.config import Config, dump, name_of
from fedmcc.data.partition import encode_partition
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import assignments_csv
from fedmcc.evaluation.options import empty_scores
from fedmcc.federation.privacy import epsilon
from fedmcc.federation.rounds import Policy, Progress, Round, RoundFailedError, rounds
from fedmcc.messages import StageRound
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import copy_into, detached, select
from fedmcc.runs.build import Experiment, prepare
from fedmcc.runs.checkpoints import Saved, load_progress, load_shapes, save_progress, save_state
from fedmcc.runs.directory import Row, Run, create_run, next_free
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step
from fedmcc.training.timing import AFTER_STAGES, start_phase, timed

PARTITION = "partition.npz"


class Scored(NamedTuple):
    """A round is over: its row of metrics, and how many rounds its stage has."""

    row: Row
    rounds: int


class Plan(NamedTuple):
    """How many images the optimiser will see, and how many of them it has seen; or rounds, seen from afar."""

    total: int
    done: int
    unit: Literal["images", "rounds"] = "images"


class Finished(NamedTuple):
    """The run is complete: what scores.json says."""

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
    begun = start_run(experiment, Path(path))
    for _ in steps(experiment, begun):
        pass
    return begun


def start_run(experiment: Experiment, path: Path) -> Run:
    """A new run directory for the experiment."""
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
    if count:  # those of images that others hold are not known here
        environment["sides"] = sides
    run = create_run(path, dump(experiment.config), environment)
    _write_partition(experiment, run)
    return run


def steps(experiment: Experiment, run: Run) -> Iterator[Step | Scored | Finished]:
    """Run the experiment from wherever the run directory stands to its end.

    Every round is on disk before it is yielded; stopping at any moment loses the round under way.
    """
    with run.locked():
        progress = yield from _train(experiment, run)
        yield Finished(_finish(experiment, run, progress))


def _train(experiment: Experiment, run: Run) -> Generator[Step | Scored, None, Progress]:
    with experiment.engine:
        progress, rows = _pick_up(experiment, run)
        policy = experiment.policy(_secret(experiment, run, rows))
        for stage in _remaining(experiment.stages, progress):
            start_phase(stage.name)
            for event in _rounds(experiment, run, stage, progress, policy):
                if isinstance(event, Step):
                    yield event
                    continue
                progress, rows = event.progress, rows + 1
                row = _row(experiment, stage, event) | _privacy(experiment, rows)
                with timed("checkpoint"):
                    _commit(experiment, run, event, row, rows)
                yield Scored(row, stage.rounds)
    return progress


def plan(experiment: Experiment, run: Run) -> Plan:
    """How much there is to do from where the run directory stands; with drawn clients, on average."""
    clients = experiment.clients
    share = experiment.config.federation.size(len(clients)) / len(clients)
    per_epoch = share * sum(map(experiment.engine.images_per_epoch, clients))
    seen = {stage.name: round(per_epoch * stage.epochs) for stage in experiment.stages}
    total = sum(seen[stage.name] * stage.rounds for stage in experiment.stages)
    return Plan(total, sum(seen.get(row["stage"], 0) for row in run.committed_rows()))


def _rounds(
    experiment: Experiment, run: Run, stage: Stage, progress: Progress, policy: Policy
) -> Iterator[Step | Round]:
    try:
        yield from rounds(stage, progress, experiment.engine, experiment.clients, policy)
    except RoundFailedError as error:
        raise RoundFailedError(
            f"{error} All rounds before it are kept; go on with: fedmcc resume {quote(str(run.path))}"
        ) from None


def _pick_up(experiment: Experiment, run: Run) -> tuple[Progress, int]:
    """Where the run stands, and how many rows of metrics it has."""
    saved = load_progress(run)
    if saved is None:
        saved = Saved(Progress(detached(experiment.net.state_dict())), rows=0, clients={})
    _refuse_another_network(experiment, run, saved)
    run.truncate_rows(saved.rows)
    experiment.engine.begin(run.resume_folder, saved.clients, _last(run))
    run.remove_temporary_files()
    if not (run.path / PARTITION).exists():  # killed before it was written
        _write_partition(experiment, run)
    return saved.progress, saved.rows


def _last(run: Run) -> dict[int, StageRound]:
    """The last round of each client that counted."""
    return {
        client: StageRound(row["stage"], row["round"]) for row in run.rows() for client in row["participants"]
    }


def _secret(experiment: Experiment, run: Run, rows: int) -> bytes:
    """Whence the run's noise is drawn, the same after an interruption; nobody but the server may read it."""
    privacy, seed = experiment.config.privacy, experiment.config.general.seed
    if not privacy.noise or privacy.reproducible:
        return privacy.new_secret(seed)
    if run.secret_file.exists():
        return run.secret_file.read_bytes()
    if rows:
        raise InputError(f"{run.secret_file} is gone: restore it from a copy, noise is drawn from it.")
    write_atomically(run.secret_file, privacy.new_secret(seed), mode=0o600)
    return run.secret_file.read_bytes()


def _privacy(experiment: Experiment, rows: int) -> Row:
    """What so many rounds together may tell about a client."""
    config = experiment.config
    if not config.privacy.noise:
        return {}
    registered = len(experiment.clients)
    spent = epsilon(config.privacy, rows, config.federation.size(registered), registered)
    return {"epsilon": spent, "delta": config.privacy.delta}


def _write_partition(experiment: Experiment, run: Run) -> None:
    """Who holds which images, as the run began; a server without images cannot say."""
    if len(experiment.images):
        write_atomically(run.path / PARTITION, encode_partition(experiment.images, experiment.shards))


def _refuse_another_network(experiment: Experiment, run: Run, saved: Saved) -> None:
    own, model = (
        {name: tuple(value.shape) for name, value in state.items()}
        for state in (experiment.net.state_dict(), saved.progress.model)
    )
    remembered = (load_shapes(path) for path in saved.clients.values())
    same = model == own and all(own == _of_network(shapes) for shapes in remembered)
    if not same or saved.progress.stage not in ("", *(stage.name for stage in experiment.stages)):
        raise InputError(
            f"{run.resume_folder} is of another architecture than {run.config_file.name} says: "
            "put back the configuration that the run began with."
        )


def _of_network(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix("net."): shape for name, shape in shapes.items() if name.startswith("net.")}


def _remaining(stages: tuple[Stage, ...], progress: Progress) -> tuple[Stage, ...]:
    names = [stage.name for stage in stages]
    return stages[names.index(progress.stage) if progress.stage else 0 :]


def _row(experiment: Experiment, stage: Stage, round: Round) -> Row:
    """What metrics.jsonl says of a round."""
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
    return row | experiment.engine.facts() | _scores(experiment, stage, round.progress)


def _scores(experiment: Experiment, stage: Stage, progress: Progress) -> dict[str, float]:
    """The scores of a round where they are due, or none."""
    number, options = progress.round, experiment.config.evaluation
    last = number == stage.rounds
    if experiment.scorer is None or (not last and number % options.every):
        return {}
    due = options.kmeans_every > 0 and number % options.kmeans_every == 0
    with_kmeans = bool(stage.trained) and (last or due)  # features stay as they were where nothing is trained
    with timed("scoring"):
        copy_into(experiment.net, progress.model)
        return experiment.scorer.round(experiment.net.online, _has_head(experiment, stage), with_kmeans)


def _has_head(experiment: Experiment, stage: Stage) -> bool:
    """Whether this stage or one before it has trained the cluster head."""
    so_far = experiment.stages[: experiment.stages.index(stage) + 1]
    return any(part in ("online", "online.cluster_projector") for done in so_far for part in done.shared)


def _commit(experiment: Experiment, run: Run, round: Round, row: Row, rows: int) -> None:
    run.log(row)
    engine, clients = experiment.engine, [update.client for update in round.updates]
    engine.mark_saved(save_progress(run, round.progress, rows, engine.client_states(clients)))


def _finish(experiment: Experiment, run: Run, progress: Progress) -> dict[str, Any]:
    """The final network, the cluster of every image and the final scores, in this order."""
    start_phase(AFTER_STAGES)
    config, net = experiment.config, experiment.net
    copy_into(net, progress.model)
    described = {
        "fedmcc": version("fedmcc"),
        "method": name_of("method", config.method),
        "encoder": name_of("encoder", config.encoder),
        "channels": str(experiment.images.images.shape[1]),
    }
    with timed("checkpoint"):
        save_state(run.model_file, select(progress.model, ("online",)), described)
    with timed("scoring"):
        scores = _final_scores(experiment, run)
        run.write_json(run.scores_file.name, scores)
    run.secret_file.unlink(missing_ok=True)  # with it, noise could be subtracted again
    return scores


def _final_scores(experiment: Experiment, run: Run) -> dict[str, Any]:
    """The scores, once the cluster of every image is written; without images there are none."""
    scorer, online = experiment.scorer, experiment.net.online
    if scorer is None:
        return empty_scores(experiment.config.general.clusters or 0)
    extracted = scorer.extract(online)
    write_atomically(run.assignments_file, assignments_csv(scorer.images, scorer.assign(extracted, online)))
    return scorer.final(online, extracted)
