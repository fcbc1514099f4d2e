"""The hierarchy of clusters of a run: how their number was chosen, and other numbers of clusters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmcc.config import Config
from fedmcc.errors import InputError, unknown
from fedmcc.methods.choosing import chooses
from fedmcc.methods.informative import CHEAP, HIERARCHY, head_of
from fedmcc.networks.momentum import Network
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.state_dicts import State
from fedmcc.runs.checkpoints import load_state, save_state
from fedmcc.runs.directory import Run

FILE = "cluster-number.json"
HIERARCHY_FILE = "hierarchy.safetensors"
MIXTURES_FILE = "mixtures.json"
CUT_FILE = "clusters-set.json"  # of `fedmcc report --clusters`


def record_choice(run: Run, extras: State, chosen: int | None) -> None:
    """Write the hierarchy, and what each merge costs if the number of clusters was chosen."""
    if extras.keys() >= {*HIERARCHY}:
        save_state(run.path / HIERARCHY_FILE, {name: extras[name] for name in HIERARCHY}, {})
        if chosen is not None:
            run.write_json(FILE, describe(extras, chosen))


def chosen_clusters(net: Network, config: Config) -> int | None:
    """The number of clusters that the clustering chose; None if it was given."""
    head = net.online.cluster_projector
    return head.in_use if chooses(config.clustering) and isinstance(head, Prototypes) else None


def describe(extras: State, chosen: int) -> dict[str, Any]:
    """The chosen number of clusters, and what each merge into fewer costs, in nats."""
    values = extras["values"].tolist()
    costs = [{"clusters": m, "cost": values[m - 1] - values[m - 2]} for m in range(2, len(values) + 1)]
    return {"chosen": chosen, "limit": CHEAP, "curve": costs}


def sentences(run: Run) -> list[str]:
    """The chosen number of clusters and why, in words; nothing if it was given."""
    content = run.read_json(FILE)
    if not content:
        return []
    chosen, costs = content["chosen"], {point["clusters"]: point["cost"] for point in content["curve"]}
    return [
        f"Chosen number of clusters: {chosen}. One less would lose {costs[chosen]:.3f} nats; "
        f"a merge is made if it loses less than {CHEAP}."
    ]


def apply_cut(net: Network, run: Run) -> None:
    """Give the network the number of clusters that was set for the run, if any was."""
    if clusters := run.read_json(CUT_FILE).get("clusters"):
        recut(net, run, int(clusters))


def record_mixtures(run: Run, names: Sequence[str], owners: np.ndarray, soft: np.ndarray) -> None:
    """Write the mixture of clusters of each client, for `predict --site`."""
    means = {name: soft[owners == client].mean(axis=0).tolist() for client, name in enumerate(names)}
    run.write_json(MIXTURES_FILE, means)


def mixture_of(run: Run, net: Network, site: str) -> Tensor:
    """The mixture of clusters of a client of a run."""
    mixtures = run.read_json(MIXTURES_FILE)
    if site not in mixtures:
        raise unknown(f"site of {run.path}", site, mixtures)
    mixture = torch.tensor(mixtures[site])
    head = net.online.cluster_projector
    if not isinstance(head, Prototypes) or len(mixture) != head.in_use:
        raise InputError("--site needs the number of clusters that the run has: leave out --clusters.")
    return mixture.to(head.groups)


def recut(net: Network, run: Run, clusters: int) -> None:
    """Give the network of a run another number of clusters, from the hierarchy of their merges."""
    head, path = net.online.cluster_projector, run.path / HIERARCHY_FILE
    if not isinstance(head, Prototypes) or not path.exists():
        raise InputError(
            f"{run.path} has no hierarchy of clusters: only clustering.name = informative makes one."
        )
    hierarchy = load_state(path)
    most = len(hierarchy["cuts"])
    if not 2 <= clusters <= most:
        raise InputError(f"{clusters} clusters: the hierarchy of {run.path} has 2 to {most}.")
    groups, marginal = head_of(hierarchy, clusters, clusters)
    head.groups, head.marginal, head.trims = groups.to(head.groups), marginal.to(head.marginal), False
