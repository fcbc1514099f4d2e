"""The server of a real federation: it gathers the sites and runs the same experiment as any other engine.

It holds no images; with `evaluation.at_server` it scores on those of [data], which it then must hold.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.serverapp import Grid

from fedmcc.config import Config, dump, load, parse_text
from fedmcc.data.base import ImageSet
from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server.membership import Common, JoinPolicy, Membership
from fedmcc.deployment.server.site_engine import Charter, SiteEngine
from fedmcc.errors import InputError
from fedmcc.runs.build import Experiment, build_network, fingerprint, scorer_of
from fedmcc.runs.directory import Run, load_run
from fedmcc.runs.experiment import Finished, Scored, start_run, steps
from fedmcc.runs.resolve import check, count_classes, resolve
from fedmcc.training.torch_setup import set_up_torch


@dataclass(frozen=True)
class Service:
    """What a server is started with."""

    recipe: str  # TOML
    run: Path  # the run directory: begun if it is new, else gone on with
    terms: JoinPolicy


def serve(grid: Grid, service: Service) -> Iterator[Scored | Finished]:
    """Gather the sites and run all rounds that are left."""
    experiment, run = prepare(grid, service)
    for event in steps(experiment, run):
        if isinstance(event, Scored | Finished):
            yield event


def prepare(grid: Grid, service: Service) -> tuple[Experiment, Run]:
    """The experiment with the sites that came, and its run directory."""
    run = load_run(service.run) if (service.run / "config.toml").exists() else None
    config = load(run.config_file) if run else parse_text(service.recipe)
    known = _known(run) if run else {}
    scored = config.data.load() if config.evaluation.at_server else None
    config = _with_clusters(config, scored)
    greeting = Greeting(dump(config), _finished_beside(service.run))
    roster = Membership(grid, greeting, service.terms._replace(names=known.get("sites", service.terms.names)))
    roster.gather()
    channels = known.get("channels") or (scored.images.shape[1] if scored else roster.usual_channels())
    images = _no_images(config, roster, channels)
    config = _resolve(config, images, len(roster.names))
    net = build_network(config, channels)
    charter = Charter(known.get("id", uuid4().hex), dump(config), fingerprint(net, config))
    roster.agree(Common(channels, charter.fingerprint))
    engine = SiteEngine(roster, charter, config.training.batch_size)
    experiment = Experiment(config, images, [], scorer_of(config, scored) if scored else None, net, engine)
    run = run or start_run(experiment, service.run)
    if not known:
        run.write_json(run.sites_file.name, {"id": charter.run, "sites": roster.names, "channels": channels})
    return experiment, run


def _known(run: Run) -> dict[str, Any]:
    """What the run wrote about its sites; nothing when it was killed before."""
    known = run.read_json(run.sites_file.name)
    if not known and run.read_json("resume/progress.json"):
        raise InputError(
            f"{run.path} was begun without sites: go on with `fedmcc resume`, or choose another."
        )
    return known


def _finished_beside(path: Path) -> tuple[str, ...]:
    """The finished runs of real federations in the same folder, by the names that sites know."""
    found = []
    for run in (Run(file.parent) for file in sorted(path.resolve().parent.glob("*/sites.json"))):
        with suppress(InputError):  # a damaged one is no concern of this run
            found += [str(run.read_json(run.sites_file.name).get("id"))] if run.finished else []
    return tuple(found)


def _with_clusters(config: Config, scored: ImageSet | None) -> Config:
    if config.general.clusters is not None:
        return config
    if scored is None:
        raise InputError("The server has no images whose classes it could count: set clusters in the recipe.")
    return replace(config, general=replace(config.general, clusters=count_classes(scored)))


def _no_images(config: Config, roster: Membership, channels: int) -> ImageSet:
    """A set without a row that says what the sites' images look like."""
    size = config.views.size or roster.common_size()
    return ImageSet(np.empty((0, channels, size, size), np.uint8))


def _resolve(config: Config, images: ImageSet, sites: int) -> Config:
    """Complete but for device, threads and precision, which each machine finds out for itself."""
    sharing = replace(config.partition, clients=sites)
    resolved = resolve(replace(config, partition=sharing), images)
    set_up_torch(resolved.general.thread_count)
    general = replace(resolved.general, device=config.general.device, threads=config.general.threads)
    check(resolved)
    training = replace(resolved.training, precision=config.training.precision)
    return replace(resolved, general=general, training=training)
