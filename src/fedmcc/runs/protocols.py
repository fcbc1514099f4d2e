"""Evaluation protocols: what the frozen network of a run is worth, as the literature measures it."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmcc.errors import InputError, unknown
from fedmcc.evaluation.clustering import score
from fedmcc.evaluation.features import device_of
from fedmcc.evaluation.kmeans import Assigned, federated_kmeans, kmeans
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.label_free import score_without_labels
from fedmcc.evaluation.linear import Body, Supervision
from fedmcc.evaluation.semi_supervised import SemiSupervised
from fedmcc.evaluation.splits import Labelled, Part, labelled, with_fifth_held_out
from fedmcc.numerics.randomness import derive, generator
from fedmcc.runs.build import Trained, reopen, share_out
from fedmcc.runs.directory import Run

FILE = "evaluation.json"


def evaluate(
    run: Run, names: Sequence[str], seeds: int = 1, checkpoint: Path | None = None
) -> dict[str, Any]:
    """`{protocol: {score: {"mean", "std", "values", "split", "images"}}}` of a run's final network."""
    return dict(evaluate_each(run, names, seeds, checkpoint))


def evaluate_each(
    run: Run, names: Sequence[str], seeds: int = 1, checkpoint: Path | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same protocol by protocol, each as soon as it is known; features are computed once."""
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
    if seeds < 1:
        raise InputError(f"{seeds} seeds measure nothing: give 1 or more.")
    subject = Subject(reopen(run, checkpoint))
    _refuse_what_cannot_be(run, names, subject)
    for name in dict.fromkeys(names):
        protocol = PROTOCOLS[name]
        found = [protocol.measure(subject, seed) for seed in range(seeds if protocol.random else 1)]
        yield name, _summary(found)


def record(run: Run, found: dict[str, Any]) -> None:
    """Put results into the run's evaluation.json, beside those of other protocols."""
    run.write_json(FILE, run.read_json(FILE) | found)


@dataclass(frozen=True, eq=False)
class Subject:
    """The network under evaluation; whatever several protocols need of it is computed once."""

    trained: Trained
    parts: dict[str | None, Part] = field(default_factory=dict)

    @property
    def clusters(self) -> int:
        """How many there shall be."""
        return self.trained.scorer.clusters

    @property
    def scored(self) -> Part:
        """The images that the run is scored on."""
        return self._part(self.trained.config.evaluation.split or self._own_split)

    @property
    def held(self) -> Part:
        """The images that the clients hold."""
        return self._part(self._own_split)

    @cached_property
    def lesson(self) -> tuple[Labelled, Labelled]:
        """Labelled images to learn from, and to score: the data set's own splits, or a fifth held out."""
        splits = self.trained.config.data.splits
        if splits is None:
            return with_fifth_held_out(self.held)
        learned, scored = (labelled(self._part(split), split) for split in splits)
        return learned, scored

    @property
    def _own_split(self) -> str | None:
        return getattr(self.trained.config.data, "split", None)

    def _part(self, split: str | None) -> Part:
        if split not in self.parts:
            config, scorer = self.trained.config, self.trained.scorer
            if split != (config.evaluation.split or self._own_split):
                data: Any = config.data
                scorer = replace(scorer, images=replace(data, split=split).load())
            self.parts[split] = Part(scorer.images, scorer.extract(self.trained.net.online))
        return self.parts[split]


class Measured(NamedTuple):
    """Scores of one seed, and on what."""

    scores: dict[str, float]
    split: str
    images: int


def by_head(subject: Subject, seed: int) -> Measured:
    """The network's own cluster head; without labels, what needs none."""
    part = subject.scored
    assert part.extracted.assignments is not None  # refused before
    found = score(part.images.labels, part.extracted.assignments.argmax(axis=1))
    scores = score_without_labels(part.extracted, seed) if found is None else found
    known = {name: value for name, value in scores._asdict().items() if value is not None}
    return Measured(known, part.images.split, len(part.images))


def by_kmeans(subject: Subject, seed: int) -> Measured:
    """k-means on all features."""
    part = subject.scored
    return _clustered(part, kmeans(part.extracted.features, subject.clusters, derive(seed, "kmeans")))


def by_federated_kmeans(subject: Subject, seed: int) -> Measured:
    """k-means on features that stay with the clients of the run."""
    part, held = subject.scored, subject.held
    clients = [held.extracted.features[rows] for rows in share_out(subject.trained.config, held.images)]
    drawn = derive(seed, "federated-kmeans")
    return _clustered(part, federated_kmeans(clients, part.extracted.features, subject.clusters, drawn))


def by_neighbours(subject: Subject, seed: int) -> Measured:
    """A vote of the 200 nearest labelled images."""
    learned, scored = subject.lesson
    found = WeightedKNN().accuracy(*learned.features, *scored.features)
    return Measured({"acc": found}, scored.split, len(scored.rows))


def by_linear_layer(subject: Subject, seed: int) -> Measured:
    """One linear layer trained on all labels."""
    learned, scored = subject.lesson
    body = Body.of_features(learned.features.inputs.shape[1], device_of(subject.trained.net))
    found = Supervision().accuracy(body, learned.features, scored.features, generator(seed, "linear"))
    return Measured({"acc": found}, scored.split, len(scored.rows))


def by_few_labels(subject: Subject, seed: int) -> Measured:
    """Training on 1 % and 10 % of the labels."""
    learned, scored = subject.lesson
    semi = SemiSupervised(subject.trained.net.online.encoder, subject.trained.config.views.plain)
    return Measured(semi.accuracies(learned, scored, seed), scored.split, len(scored.rows))


@dataclass(frozen=True)
class Protocol:
    """A way to measure."""

    measure: Callable[[Subject, int], Measured]
    random: bool = True  # chance has a part in it; without that one seed says all
    needs_labels: bool = True  # it needs them


PROTOCOLS: dict[str, Protocol] = {
    "clustering": Protocol(by_head, random=False, needs_labels=False),
    "kmeans": Protocol(by_kmeans),
    "federated-kmeans": Protocol(by_federated_kmeans),
    "knn": Protocol(by_neighbours, random=False),
    "linear": Protocol(by_linear_layer),
    "semi": Protocol(by_few_labels),
}


def _refuse_what_cannot_be(run: Run, names: Sequence[str], subject: Subject) -> None:
    """Before anything is computed."""
    if "clustering" in names and subject.trained.net.online.cluster_projector is None:
        raise InputError(f"{run.path} has no cluster head: ask for kmeans instead of clustering.")
    labels = subject.trained.scorer.images.labels
    needy = [name for name in names if PROTOCOLS[name].needs_labels]
    if needy and subject.trained.config.data.splits is None and (labels is None or np.all(labels < 0)):
        raise InputError(f"The images of {run.path} have no labels, which {', '.join(needy)} would need.")


def _clustered(part: Part, assigned: Assigned) -> Measured:
    found = score(part.images.labels, assigned)
    if found is None:
        raise InputError(f"No image of the split '{part.images.split}' has a label to compare clusters with.")
    return Measured(found._asdict(), part.images.split, len(part.images))


def _summary(found: Sequence[Measured]) -> dict[str, Any]:
    """Mean and sample deviation of each score over the seeds."""
    summary = {}
    for name in found[0].scores:
        values = [one.scores[name] for one in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        described = {"split": found[0].split, "images": found[0].images}
        summary[name] = {"mean": statistics.fmean(values), "std": spread, "values": values, **described}
    return summary
