"""Runs the experiment of a federation: waits for the sites, agrees with them on a configuration, trains.

The server has no images, except those of [data] if `evaluation.at_server` is set: it then scores on them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.serverapp import Grid

from fedmcc.config import Config, dump, load, parse_text
from fedmcc.data.base import ImageSet
from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server.mailbox import Mailbox
from fedmcc.deployment.server.membership import Membership, Requirements
from fedmcc.deployment.server.request import RunRequest
from fedmcc.deployment.server.secure_engine import SecureSiteEngine
from fedmcc.deployment.server.signer import Signer
from fedmcc.deployment.server.site_engine import SiteEngine, TaskHeader
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.errors import InputError
from fedmcc.networks import in_files, native_size, resolve_encoder
from fedmcc.runs.build import Experiment, build_network, fingerprint
from fedmcc.runs.directory import Run, load_run
from fedmcc.runs.experiment import Finished, Scored, start_run, steps
from fedmcc.runs.resolve import check, count_classes, resolve, stages, with_statistics
from fedmcc.runs.scoring import scorer_of
from fedmcc.training.torch_setup import set_up_torch


def serve(grid: Grid, request: RunRequest) -> Iterator[Scored | Finished]:
    """Wait for the sites and run all remaining rounds."""
    experiment, run = prepare(grid, request)
    signer = _signer(request, str(run.read_json(run.sites_file.name)["id"]))
    for event in steps(experiment, run):
        if isinstance(event, Scored) and signer:
            signer.record_round(event.row)
        if isinstance(event, Scored | Finished):
            yield event


def prepare(grid: Grid, request: RunRequest) -> tuple[Experiment, Run]:
    """Wait for the sites, build the experiment with them, and create its run directory if it is new."""
    run = load_run(request.run) if (request.run / "config.toml").exists() else None
    config = load(run.config_file) if run else parse_text(request.recipe)
    config = replace(config, encoder=resolve_encoder(config.encoder))  # sites compare its SHA-256
    config = with_statistics(config, None)
    stored = _stored_sites(run) if run else {}
    scored = config.data.load() if config.evaluation.at_server else None
    config = _with_clusters(config, scored)
    policy = request.policy._replace(names=_names(stored.get("sites", ()), request.policy.names))
    greeting = Greeting(_for_sites(config, request), _finished_runs(request.run.resolve().parent))
    run_id = stored.get("id", uuid4().hex)
    sites = Membership(Mailbox(grid, _signer(request, run_id)), greeting, policy)
    sites.gather()
    channels = stored.get("channels") or (scored.images.shape[1] if scored else sites.majority_channels())
    given = config.views.size or native_size(config.encoder)
    size = given or sites.majority_size()
    images = ImageSet(np.empty((0, channels, size, size), np.uint8))  # only their shape is used
    config = _resolve(config, images, len(sites.names))
    net = build_network(config, channels)
    config.privacy.require_private_stages(net, stages(config))
    config.federation.require_sums(net, stages(config))
    header = TaskHeader(run_id, _for_sites(config, request), fingerprint(net, config))
    sites.require(Requirements(channels, header.fingerprint, None if given else size))
    engine = _engine(config, sites, header)
    experiment = Experiment(config, images, [], scorer_of(config, scored) if scored else None, net, engine)
    run = run or start_run(experiment, request.run)
    sites.on_new_names = partial(_write_sites, run, header.run, channels)
    if tuple(stored.get("sites", ())) != sites.names:
        sites.on_new_names(sites.names)
    return experiment, run


def _names(stored: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The names of the sites by client number: those of a started run first, then sites that were added."""
    return (*stored, *sorted(set(given) - set(stored)))


def _write_sites(run: Run, run_id: str, channels: int, names: Sequence[str]) -> None:
    run.write_json(run.sites_file.name, {"id": run_id, "sites": list(names), "channels": channels})


def _engine(config: Config, sites: Membership, header: TaskHeader) -> SiteEngine:
    if not config.federation.secure_aggregation:
        return SiteEngine(sites, header, config.training.batch_size)
    fewest = config.federation.fewest
    return SecureSiteEngine(sites, header, config.training.batch_size, config.privacy.clip, fewest)


def _for_sites(config: Config, request: RunRequest) -> str:
    """The configuration as sites get it: without the server's path of a pretrained encoder."""
    if in_files(config.encoder) and request.federation is not None:
        encoder: Any = config.encoder
        config = replace(config, encoder=replace(encoder, path=None))
    return dump(config)


def _signer(request: RunRequest, run_id: str) -> Signer | None:
    """The keys of the federation; None in a simulation, whose sites have none."""
    if request.federation is None:
        return None
    return Signer(
        OperatorFolder(request.federation), run_id, {node: name for name, node in request.policy.nodes}
    )


def _stored_sites(run: Run) -> dict[str, Any]:
    """The content of sites.json; empty if the run was killed before it was written."""
    stored = run.read_json(run.sites_file.name)
    if not stored and run.read_json("resume/progress.json"):
        raise InputError(
            f"{run.path} was started without sites: resume it with `fedmcc resume`, or choose another run."
        )
    return stored


def _finished_runs(folder: Path) -> tuple[str, ...]:
    """The ids of the finished runs in a folder that were trained with sites."""
    ids = []
    for run in (Run(file.parent) for file in sorted(folder.glob("*/sites.json"))):
        with suppress(InputError):  # a damaged run does not affect this one
            ids += [str(run.read_json(run.sites_file.name).get("id"))] if run.finished else []
    return tuple(ids)


def _with_clusters(config: Config, scored: ImageSet | None) -> Config:
    if config.general.clusters is not None:
        return config
    if scored is None:
        raise InputError(
            "The server has no labels from which to count the clusters: set clusters in the recipe."
        )
    return replace(config, general=replace(config.general, clusters=count_classes(scored)))


def _resolve(config: Config, images: ImageSet, sites: int) -> Config:
    """Complete the configuration, except for device, threads and precision, which each machine resolves."""
    partition = replace(config.partition, clients=sites)
    resolved = resolve(replace(config, partition=partition), images)
    set_up_torch(resolved.general.thread_count)
    general = replace(resolved.general, device=config.general.device, threads=config.general.threads)
    check(resolved)
    training = replace(resolved.training, precision=config.training.precision)
    return replace(resolved, general=general, training=training)
