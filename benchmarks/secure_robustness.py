"""One hostile client of five under secure aggregation, where the server cannot compare updates.

Clients clip their own updates to the median norm of the first round; the hostile one obeys that or does not.
The federation, the schedule and the attacks are those of benchmarks/robustness.py.
What FILE has is not repeated.

python benchmarks/secure_robustness.py [--seeds 1] [--attacks none "sign flipped ×9"] [--runs FILE]
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from attacks import ATTACKS, HOSTILE, Attack, AttackedEngine, Scene, distance
from fedmcc import config
from fedmcc.federation.engines.secure import SecureEngine
from fedmcc.federation.privacy import clipped
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.federation.update_checks import MAX_SAMPLES
from fedmcc.messages import Update
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, prepare
from measuring import show
from robustness import CLIENTS, SCHEDULE

CLAIM = "claims as many images as possible"
LARGE = ("sign flipped ×9", "scaled ×9.9")  # updates that a clip changes
MEASURED = ("none", *LARGE, "sign flipped ×1", CLAIM, "noise at the median norm")
MEASURED += ("constant change", "extras random", "extras reversed", "does not answer")
NO_CLIP, IGNORED, OBEYED = "no clip", "clip, which it ignores", "clip, which it obeys"


class Case(NamedTuple):
    """One run."""

    attack: str
    clipping: str
    seed: int


class Scores(NamedTuple):
    """ACC of the head and of k-means on the features."""

    head: float
    features: float


def main() -> None:
    """Print a line of JSON for each run, and the table of their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--attacks", nargs="+", choices=MEASURED, default=MEASURED)
    parser.add_argument("--runs", type=Path, help="file to which lines are added")
    options = parser.parse_args()
    scores = dict(read(options.runs)) if options.runs else {}
    for seed in range(options.seeds):
        missing = [case for case in cases(seed) if case.attack in options.attacks and case not in scores]
        clip = typical_norm(seed) if missing else 0.0
        for case in missing:
            scores[case] = measure(case, clip)
            line = json.dumps({**case._asdict(), "clip": clip, **scores[case]._asdict()}, ensure_ascii=False)
            print(line, flush=True)
            if options.runs:
                with options.runs.open("a") as file:
                    file.write(line + "\n")
    columns = (NO_CLIP, IGNORED, OBEYED)
    show(("attack", *columns), ([attack, *(cell(scores, attack, c) for c in columns)] for attack in MEASURED))


def read(runs: Path) -> Iterator[tuple[Case, Scores]]:
    """The runs in a file of JSON lines."""
    for line in runs.read_text().splitlines() if runs.exists() else ():
        row = json.loads(line)
        yield Case(row["attack"], row["clipping"], row["seed"]), Scores(row["head"], row["features"])


def cases(seed: int) -> list[Case]:
    """All runs of a seed: a hostile client obeys the clip only where that makes a difference."""
    found = [Case(attack, clipping, seed) for attack in MEASURED for clipping in (NO_CLIP, IGNORED)]
    return found + [Case(attack, OBEYED, seed) for attack in LARGE]


def cell(scores: dict[Case, Scores], attack: str, clipping: str) -> str:
    """Mean and sample deviation over seeds of the head, and the mean of k-means on the features."""
    found = [value for case, value in scores.items() if case[:2] == (attack, clipping)]
    if not found:
        return "–"
    heads = [value.head for value in found]
    spread = f" ± {statistics.stdev(heads):.3f}" if len(heads) > 1 else ""
    return f"{statistics.mean(heads):.3f}{spread} / {statistics.mean(value.features for value in found):.3f}"


def measure(case: Case, clip: float) -> Scores:
    """Train with one hostile client and score the network."""
    experiment = build(case.seed, None if case.clipping == NO_CLIP else clip)
    attack = ATTACKS[case.attack]
    attack = obedient(attack, clip) if case.clipping == OBEYED else attack
    engine = secure(experiment, attack, case.seed, claims=case.attack == CLAIM)
    progress = Progress(detached(experiment.net.state_dict()))
    with suppress(RoundFailedError):  # the attack ended the run: the model that it reached is scored
        for stage in experiment.stages:
            for event in rounds(stage, progress, engine, experiment.clients, experiment.policy(b"")):
                if isinstance(event, Round):
                    progress = event.progress
    copy_into(experiment.net, progress.model)
    found = experiment.scorer.round(experiment.net.online, with_head=True, with_kmeans=True)
    return Scores(float(found["acc"]), float(found["kmeans_acc"]))


def build(seed: int, clip: float | None) -> Experiment:
    """The federation of robustness.py with secure aggregation."""
    federation = {"secure_aggregation": True, "open_statistics": True}
    table: dict[str, Any] = {**SCHEDULE, "seed": seed, "federation": federation}
    table["partition"] = {"name": "iid", "clients": CLIENTS}
    table["privacy"] = {} if clip is None else {"clip": clip}
    return prepare(config.parse(table))


def secure(experiment: Experiment, attack: Attack, seed: int, claims: bool = False) -> SecureEngine:
    """The engine of an experiment with a hostile client."""
    engine = experiment.engine
    assert isinstance(engine, SecureEngine)
    return SecureEngine(Known(engine.inner, attack, seed, claims), engine.clip)


class Known(AttackedEngine):
    """An attacked engine that has the clients' numbers of images; the hostile one may join with a claim."""

    def __init__(self, engine: Any, attack: Attack, seed: int, claims: bool) -> None:
        super().__init__(engine, attack, seed)
        object.__setattr__(self, "claims", claims)

    def samples(self, client: int) -> int | None:
        """Number of images with which a client joined."""
        images: int | None = self.engine.samples(client)
        if images and client == HOSTILE and self.claims:
            return MAX_SAMPLES // images * images
        return images


def typical_norm(seed: int) -> float:
    """The median norm of the honest updates in the first round."""
    experiment = build(seed, None)
    norms: list[float] = []

    def note(scene: Scene) -> Update:
        updates: Sequence[Update] = (scene.own, *scene.others)
        norms.extend(distance(update.weights, scene.sent) for update in updates)
        return scene.own

    progress = Progress(detached(experiment.net.state_dict()))
    engine = secure(experiment, note, seed)
    events = rounds(experiment.stages[0], progress, engine, experiment.clients, experiment.policy(b""))
    next(event for event in events if isinstance(event, Round))
    return statistics.median(norms)


def obedient(attack: Attack, clip: float) -> Attack:
    """The attack, whose update is clipped as that of an honest program would be."""

    def limited(scene: Scene) -> Update:
        update = attack(scene)
        assert update is not None
        return replace(update, weights=clipped(update.weights, scene.sent, clip))

    return limited


if __name__ == "__main__":
    main()
