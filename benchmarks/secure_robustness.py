"""One hostile client of five under secure aggregation, where the server cannot compare updates.

Clients clip their own updates to the median norm of the first round; the hostile one obeys that or does not.
The federation, the schedule and the attacks are those of benchmarks/robustness.py.
Usage: python benchmarks/secure_robustness.py [--seeds 1]
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attacks import ATTACKS, Attack, AttackedEngine, Scene, distance, flip
from fedmcc import config
from fedmcc.federation.engines.secure import SecureEngine
from fedmcc.federation.privacy import clipped
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Update
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, prepare
from robustness import CLIENTS, SCHEDULE


def build(seed: int, clip: float | None) -> Experiment:
    """The federation of robustness.py with secure aggregation."""
    federation = {"secure_aggregation": True, "open_statistics": True}
    table: dict[str, Any] = {**SCHEDULE, "seed": seed, "federation": federation}
    table["partition"] = {"name": "iid", "clients": CLIENTS}
    table["privacy"] = {} if clip is None else {"clip": clip}
    return prepare(config.parse(table))


def typical_norm(seed: int) -> float:
    """The median norm of the honest updates in the first round."""
    experiment = build(seed, None)
    norms: list[float] = []

    def measure(scene: Scene) -> Update:
        norms.extend(distance(update.weights, scene.sent) for update in (scene.own, *scene.others))
        return scene.own

    train(experiment, measure, seed, only_first=True)
    return statistics.median(norms)


def train(experiment: Experiment, attack: Attack, seed: int, only_first: bool = False) -> float:
    """Train with one hostile client; returns the ACC of the head."""
    engine = experiment.engine
    assert isinstance(engine, SecureEngine)
    attacked = AttackedEngine(engine.inner, attack, seed)
    secure = SecureEngine(Known(attacked, engine.inner.samples), engine.equal)
    progress = Progress(detached(experiment.net.state_dict()))
    for stage in experiment.stages:
        for event in rounds(stage, progress, secure, experiment.clients, experiment.policy(b"")):
            if isinstance(event, Round):
                progress = event.progress
                if only_first:
                    return 0.0
    copy_into(experiment.net, progress.model)
    return float(experiment.scorer.round(experiment.net.online, with_head=True, with_kmeans=False)["acc"])


class Known(AttackedEngine):
    """An attacked engine that knows the clients' numbers of images."""

    def __init__(self, attacked: AttackedEngine, samples: Callable[[int], int | None]) -> None:
        super().__init__(attacked.engine, attacked.attack, attacked.seed)
        object.__setattr__(self, "samples", samples)


def obedient(attack: Attack, clip: float) -> Attack:
    """The attack, whose update is clipped as that of an honest program would be."""

    def limited(scene: Scene) -> Update:
        update = attack(scene)
        assert update is not None
        return replace(update, weights=clipped(update.weights, scene.sent, clip))

    return limited


def main() -> None:
    """Print a line of JSON for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    for seed in range(parser.parse_args().seeds):
        clip = typical_norm(seed)
        cases: dict[str, tuple[float | None, Attack]] = {
            "none, clipped": (clip, ATTACKS["none"]),
            "sign flipped ×9, clipped by its own program": (clip, obedient(flip(9.0), clip)),
            "sign flipped ×9, ignores the clip": (clip, flip(9.0)),
        }
        for name, (limit, attack) in cases.items():
            acc = train(build(seed, limit), attack, seed)
            print(json.dumps({"case": name, "seed": seed, "clip": clip, "acc": acc}), flush=True)


if __name__ == "__main__":
    main()
