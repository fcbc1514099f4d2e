"""What an update, centroids and second moments reveal about a client's images, measured on digits.

Inversion: views of other images are changed in 200 steps of Adam until they give the update of one epoch.
Membership: how well a distance tells the images of a client from those of others, as an area under the curve.
Usage: python benchmarks/leakage.py [--attacks alignment centroids moments inversion] [--seeds 0 1 2]
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fedmcc import config
from fedmcc.federation.client import Client
from fedmcc.federation.privacy import clipped
from fedmcc.messages import Task
from fedmcc.methods.base import Stage
from fedmcc.methods.centroids import local_centroids
from fedmcc.methods.distinct_images import DistinctPoints
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State, add_prefix, copy_into, detached, select, weighted_average
from fedmcc.runs.build import Experiment, prepare
from inversion import Inversion, Result, Seen, compare, step_gradients

CLIENTS, CLIP, NOISE = 5, 0.1, 1.0
OUTSIDE = 800  # images of others among the candidates of a membership attack
INVERTED = 4  # images of a client whose views are reconstructed
TESTED, DRAWS = 64, 4  # images of others, and pairs of views of each, for the attack with gradients


def setting(images: int, norm: str, seed: int) -> Experiment:
    """Clients with this number of digits each and a convnet of 8 channels."""
    table: dict[str, Any] = {
        "clusters": 10,
        "seed": seed,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "digits", "limit": CLIENTS * images},
        "encoder": {"width": 8, "norm": norm},
        "method": {"name": "fedmcc", "rounds": 1, "epochs": 1, "hidden": 64, "projections": 32},
        "partition": {"clients": CLIENTS},
        "training": {"batch_size": images, "learning_rate": 1e-3},
    }
    return prepare(config.parse(table))


def updates(experiment: Experiment) -> tuple[list[Seen], list[Tensor]]:
    """The honest updates of one epoch, and the views from which the first client computed its own."""
    net, stage = experiment.net, experiment.stages[0]
    sent, views, found = detached(net.state_dict()), [], []
    for client in experiment.engine.clients.values():
        recorded = record(stage, views if client.index == 0 else [])
        task = Task(client.index, stage.name, 1, select(sent, stage.shared))
        update = finish(client, net, recorded, task, sent)
        found.append(Seen(task.weights, update, len(client.images)))
    copy_into(net, sent)
    return found, views


def record(stage: Stage, views: list[Tensor]) -> Stage:
    """The stage, which also stores the views of its batches."""
    kind = type(stage)

    def represent(self: Any, net: Any, a: Tensor, b: Tensor) -> Any:
        views.extend([a.detach().clone(), b.detach().clone()])
        return kind.represent(self, net, a, b)

    recording = type(kind.__name__, (kind,), {"represent": represent})
    return recording(**{name: getattr(stage, name) for name in stage.__dataclass_fields__})


def finish(client: Client, net: Network, stage: Stage, task: Task, sent: State) -> State:
    """The weights of a client's answer."""
    answer = client.answer(net, stage, task, add_prefix("net", sent))
    while True:
        try:
            next(answer)
        except StopIteration as end:
            return dict(end.value[0].weights)


def observed(found: list[Seen], protection: str, seed: int) -> Seen:
    """What an observer sees of the first client under a protection."""
    first = found[0]
    if protection in ("guess", "gradient", "nothing"):
        return first
    limited = [replace_returned(each, CLIP) for each in found]
    if protection == "clipping":
        return limited[0]
    if protection == "secure aggregation":
        limited = found
    mean = weighted_average([each.returned for each in limited], [1.0] * len(found))
    if protection == "noise":
        draw = torch.Generator().manual_seed(seed)
        scale = NOISE * CLIP / len(found)
        mean = {
            name: value + scale * torch.randn(value.shape, generator=draw)
            if value.is_floating_point()
            else value
            for name, value in mean.items()
        }
    return Seen(first.sent, mean, first.images)


def replace_returned(seen: Seen, clip: float) -> Seen:
    """The update, clipped."""
    return seen._replace(returned=clipped(seen.returned, seen.sent, clip))


def invert(images: int, norm: str, protection: str, seed: int) -> Result:
    """Reconstruct the views of the first client, from views of images of nobody in the federation."""
    experiment = setting(images, norm, seed)
    found, views = updates(experiment)
    true = torch.cat(views)
    seen = observed(found, protection, seed)
    draw = torch.Generator().manual_seed(seed)
    others = torch.from_numpy(outsiders(experiment)[:images])
    start = torch.stack([experiment.config.views(others, draw) for _ in range(2)])
    if protection == "guess":  # without any update
        return compare(start.flatten(end_dim=1), true)
    if protection == "gradient":
        seen = with_gradient(experiment.net, seen, views)
    attack = Inversion(experiment.net, seen, adam=protection != "gradient")
    return compare(attack.run(start), true)


def outsiders(experiment: Experiment) -> np.ndarray:
    """Digits of nobody in the federation, in random order."""
    inside = {image.tobytes() for image in experiment.images.images}
    everything = config.parse({"data": {"name": "digits"}}).data.load().images
    left = np.array([image for image in everything if image.tobytes() not in inside])
    return left[np.random.default_rng(0).permutation(len(left))]


def aligned(images: int, protection: str, seed: int) -> float:
    """AUC of telling the first client's images from others by how well their gradients explain the update."""
    experiment = setting(images, "batch", seed)
    found, _ = updates(experiment)
    seen, net, draw = observed(found, protection, seed), experiment.net, torch.Generator().manual_seed(seed)
    parameters = {name: value for name, value in net.named_parameters() if name in seen.sent}
    change = torch.cat([(seen.sent[name] - seen.returned[name]).flatten() for name in parameters])
    pool = outsiders(experiment)
    others, context = pool[:TESTED], torch.from_numpy(pool[TESTED : TESTED + images - 1])

    def distance(candidates: np.ndarray) -> np.ndarray:
        return np.array([-alignment(torch.from_numpy(each[None])) for each in candidates])

    def alignment(image: Tensor) -> float:
        batch, total = torch.cat([image, context]), 0.0
        for _ in range(DRAWS):
            a, b = (experiment.config.views(batch, draw) for _ in range(2))
            own = torch.cat([g.flatten() for g in step_gradients(net.train(), parameters, a, b)])
            total += float(nn.functional.cosine_similarity(own, change, dim=0))
        return total

    own = experiment.engine.clients[0].images
    own = np.asarray(own.pixels if hasattr(own, "pixels") else own[np.arange(len(own))])
    return membership(own, others, distance)


def aligned_rows(seeds: Sequence[int], _: Path) -> Iterator[dict[str, Any]]:
    """Membership by the alignment of gradients with an update."""
    for protection in ("nothing", "clipping", "secure aggregation"):
        values = [round(aligned(16, protection, seed), 3) for seed in seeds]
        yield {"images": 16, "protection": protection, "auc": values}


def with_gradient(net: Network, seen: Seen, views: list[Tensor]) -> Seen:
    """The update of a client that sends its gradient and not the step of Adam: the attack's best case."""
    parameters = {name: value for name, value in net.named_parameters() if name in seen.sent}
    gradients = step_gradients(net.train(), parameters, *views)
    moved = {name: seen.sent[name] - gradient for name, gradient in zip(parameters, gradients, strict=True)}
    return seen._replace(returned={**seen.returned, **moved})


def membership(members: np.ndarray, others: np.ndarray, distance: Any) -> float:
    """AUC of telling members from others by a distance: .5 is a guess, 1 is certainty."""
    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    return float(roc_auc_score(truth, -np.r_[distance(members), distance(others)]))


def unit_features(seed: int) -> np.ndarray:
    """Unit features of digits by an untrained convnet with 64 features, in random order."""
    table = {"clusters": 10, "data": {"name": "digits"}, "encoder": {"width": 8}, "seed": seed, "threads": 1}
    experiment = prepare(config.parse({**table, "method": {"name": "fedmcc"}}))
    client = next(iter(experiment.engine.clients.values()))
    net = experiment.net.eval()
    with torch.no_grad():
        batches = [net.online.encoder(batch) for batch in client._plain_batches(net)]
    rows = nn.functional.normalize(torch.cat(batches).double(), dim=1).numpy()
    return rows[np.random.default_rng(seed).permutation(len(rows))]


def centroid_rows(seeds: Sequence[int], _: Path) -> Iterator[dict[str, Any]]:
    """Membership by the distance to the nearest centroid, and centroids that are an image's features."""
    for images in (30, 100):
        for smallest in (1, 10):
            values = [centroids(images, smallest, seed) for seed in seeds]
            auc, exact = np.mean(values, axis=0)
            yield {"images": images, "smallest": smallest, "auc": auc, "exact": exact}


def centroids(images: int, smallest: int, seed: int) -> tuple[float, float]:
    """AUC, and the share of centroids that equal the features of one image."""
    rows = unit_features(seed)
    own, others = rows[:images], rows[images : images + OUTSIDE]
    found = DistinctPoints(own.astype(np.float32), np.ones(images, dtype=np.int64))
    means, _ = local_centroids(found, 20, seed, smallest)

    def nearest(points: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points[:, None] - means[None], axis=2).min(axis=1)

    exact = np.linalg.norm(own[:, None] - means[None], axis=2).min(axis=0) < 1e-4
    return membership(own, others, nearest), float(exact.mean())


def moment_rows(seeds: Sequence[int], _: Path) -> Iterator[dict[str, Any]]:
    """Membership by the part of a feature outside the span of a second moment."""
    for images in (5, 20, 50, 100):
        for summed in (1, CLIENTS):
            auc = np.mean([moment(images, summed, seed) for seed in seeds])
            yield {"images": images, "clients in the sum": summed, "auc": auc}


def moment(images: int, summed: int, seed: int) -> float:
    """AUC for the images of the first of `summed` clients, whose second moments are added."""
    rows = unit_features(seed)
    inside = rows[: images * summed]
    others = rows[images * summed : images * summed + OUTSIDE]
    variance, directions = np.linalg.eigh(inside.T @ inside / len(inside))
    scale = 1 / np.sqrt(variance.clip(1e-9))

    def outside(points: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points @ directions * scale, axis=1)

    return membership(inside[:images], others, outside)


def save_picture(path: Path, result: Result) -> None:
    """The first eight true views above their reconstructions, enlarged five times."""
    rows = [torch.cat(list(each[:8, 0]), dim=1) for each in (result.true, result.found)]
    pixels = (torch.cat(rows).clamp(0, 1) * 255).byte().numpy()
    Image.fromarray(pixels).resize((5 * pixels.shape[1], 5 * pixels.shape[0]), Image.Resampling.NEAREST).save(
        path
    )


def main() -> None:
    """Print a line of JSON for each row; write pictures of the first seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pictures", type=Path, default=Path("results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for attack in options.attacks:
        for row in ATTACKS[attack](options.seeds, options.pictures):
            print(json.dumps({"attack": attack, **row}), flush=True)


def inversion_rows(seeds: Sequence[int], pictures: Path) -> Iterator[dict[str, Any]]:
    """Correlation of reconstructed with true views; noise needs group normalisation."""
    protections = ("guess", "gradient", "nothing", "clipping", "secure aggregation")
    for norm, protection in [
        *(("batch", each) for each in protections),
        ("group", "nothing"),
        ("group", "noise"),
    ]:
        results = [invert(INVERTED, norm, protection, seed) for seed in seeds]
        save_picture(pictures / f"leakage-{norm}-{protection.replace(' ', '-')}.png", results[0])
        values = [round(result.correlation, 3) for result in results]
        yield {"norm": norm, "images": INVERTED, "protection": protection, "correlation": values}


ATTACKS = {
    "alignment": aligned_rows,
    "centroids": centroid_rows,
    "moments": moment_rows,
    "inversion": inversion_rows,
}


if __name__ == "__main__":
    main()
