"""Evaluation protocols: standard measurements of the trained network of a run."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmcc.data.partition import Rows
from fedmcc.errors import InputError, unknown
from fedmcc.evaluation.clustering import score
from fedmcc.evaluation.kmeans import Assigned, federated_kmeans, kmeans
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.label_free import LabelFreeScores, score_without_labels
from fedmcc.evaluation.linear import Backbone, ClassifierTraining
from fedmcc.evaluation.semi_supervised import LABEL_SHARES, SemiSupervised
from fedmcc.evaluation.splits import EncodedImages, LabelledImages, hold_out_fifth, labelled
from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.inference import device_of
from fedmcc.numerics.randomness import derive, generator
from fedmcc.runs.build import Trained, reopen, share_out
from fedmcc.runs.directory import Run

FILE = "evaluation.json"


def evaluate(
    run: Run, names: Sequence[str], seeds: int = 1, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Measure a run's final network: `{protocol: {score: {"mean", "std", "values", "split", "images"}}}`."""
    return dict(evaluate_each(run, names, seeds, checkpoint))


def evaluate_each(
    run: Run, names: Sequence[str], seeds: int = 1, checkpoint: Path | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the scores of each protocol when it is done; features are computed once for all."""
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
    if seeds < 1:
        raise InputError(f"The number of seeds is {seeds}: give 1 or more.")
    subject = Subject(reopen(run, checkpoint))
    _check(run, names, subject)
    for name in dict.fromkeys(names):
        protocol = PROTOCOLS[name]
        measured = [protocol.measure(subject, seed) for seed in range(seeds if protocol.random else 1)]
        yield name, _summary(measured)


def record(run: Run, results: dict[str, Any]) -> None:
    """Write results to the run's evaluation.json and keep those of other protocols."""
    run.write_json(FILE, run.read_json(FILE) | results)


@dataclass(frozen=True, eq=False)
class Subject:
    """The network under evaluation; what several protocols need is computed once."""

    trained: Trained
    encoded: dict[str | None, EncodedImages] = field(default_factory=dict)  # by split

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return self.trained.scorer.clusters

    @property
    def scored(self) -> EncodedImages:
        """The images that the run is scored on."""
        return self._encode(self._scored_split)

    @property
    def held(self) -> EncodedImages:
        """The images that the clients hold."""
        return self._encode(self._own_split)

    @cached_property
    def train_and_test_set(self) -> tuple[LabelledImages, LabelledImages]:
        """Labelled images: the splits of the data set, or a fifth held out if it has none."""
        splits = self.trained.config.data.splits
        if splits is None:
            return hold_out_fifth(self.held)
        train_set, test_set = (labelled(self._encode(split), split) for split in splits)
        return train_set, test_set

    @cached_property
    def withheld(self) -> Rows:
        """The images whose labels `semi` uses, if no client has them."""
        config, least = self.trained.config, max(LABEL_SHARES.values())
        share, splits = config.partition.withheld, config.data.splits
        if share < least:
            raise InputError(f"partition.withheld is {share}: the protocol semi needs {least} or more, or 0.")
        if splits is not None and self._own_split != splits[0]:
            raise InputError(f"With partition.withheld, the protocol semi needs data.split = {splits[0]}.")
        shards = share_out(config, self.held.images)
        return np.setdiff1d(np.arange(len(self.held.images)), np.concatenate(shards))

    @property
    def _own_split(self) -> str | None:
        return getattr(self.trained.config.data, "split", None)

    @property
    def _scored_split(self) -> str | None:
        return self.trained.config.evaluation.split or self._own_split

    def _encode(self, split: str | None) -> EncodedImages:
        if split not in self.encoded:
            scorer = self.trained.scorer
            if split != self._scored_split:
                data: Any = self.trained.config.data
                scorer = replace(scorer, images=replace(data, split=split).load())
            self.encoded[split] = EncodedImages(scorer.images, scorer.extract(self.trained.net.online))
        return self.encoded[split]


class Measured(NamedTuple):
    """Scores of one seed, and the images that were scored."""

    scores: dict[str, float]
    split: str
    images: int


def by_head(subject: Subject, seed: int) -> Measured:
    """The cluster head of the network; without labels, the scores that need none."""
    images, extracted = subject.scored.images, subject.scored.extracted
    assert extracted.assignments is not None  # checked by `_check`
    with_labels = score(images.labels, extracted.assignments.argmax(axis=1))
    scores = _unlabelled(subject, seed) if with_labels is None else with_labels
    defined = {name: value for name, value in scores._asdict().items() if value is not None}
    return Measured(defined, images.split, len(images))


def _unlabelled(subject: Subject, seed: int) -> LabelFreeScores:
    """The scores that need no labels, with the calibrated confidence of the run's table."""
    trained, extracted = subject.trained, subject.scored.extracted
    temperature = trained.scorer.temperature(trained.net.online, extracted)
    return score_without_labels(extracted, seed, temperature=temperature)


def by_kmeans(subject: Subject, seed: int) -> Measured:
    """k-means on all features."""
    features = subject.scored.extracted.features
    return _clustered(subject, kmeans(features, subject.clusters, derive(seed, "kmeans")))


def by_federated_kmeans(subject: Subject, seed: int) -> Measured:
    """k-means on features that stay with the clients of the run."""
    features, held = subject.scored.extracted.features, subject.held
    clients = [held.extracted.features[rows] for rows in share_out(subject.trained.config, held.images)]
    derived = derive(seed, "federated-kmeans")
    return _clustered(subject, federated_kmeans(clients, features, subject.clusters, derived))


def by_neighbours(subject: Subject, seed: int) -> Measured:
    """Vote of the nearest labelled images."""
    train_set, test_set = subject.train_and_test_set
    accuracy = WeightedKNN().accuracy(*train_set.features, *test_set.features)
    return Measured({"acc": accuracy}, test_set.split, len(test_set.rows))


def by_linear_layer(subject: Subject, seed: int) -> Measured:
    """One linear layer trained on all labels."""
    train_set, test_set = subject.train_and_test_set
    backbone = Backbone.of_features(train_set.features.inputs.shape[1], device_of(subject.trained.net))
    draw = generator(seed, "linear")
    accuracy = ClassifierTraining().accuracy(backbone, train_set.features, test_set.features, draw)
    return Measured({"acc": accuracy}, test_set.split, len(test_set.rows))


def by_few_labels(subject: Subject, seed: int) -> Measured:
    """Training on 1 % and 10 % of the labels."""
    if isinstance(subject.trained.net.online.encoder, FrozenEncoder):
        raise InputError("The encoder is frozen and cannot be trained: use the protocol linear, not semi.")
    train_set, test_set = subject.train_and_test_set
    semi = SemiSupervised(subject.trained.net.online.encoder, subject.trained.config.views.plain)
    if withheld := subject.trained.config.partition.withheld:
        semi = replace(semi, available=withheld)
        train_set = replace(train_set, rows=np.intersect1d(train_set.rows, subject.withheld))
    return Measured(semi.accuracies(train_set, test_set, seed), test_set.split, len(test_set.rows))


@dataclass(frozen=True)
class Protocol:
    """A measurement for one seed."""

    measure: Callable[[Subject, int], Measured]
    random: bool = True  # False: every seed gives the same scores
    needs_labels: bool = True


PROTOCOLS: dict[str, Protocol] = {
    "clustering": Protocol(by_head, random=False, needs_labels=False),
    "kmeans": Protocol(by_kmeans),
    "federated-kmeans": Protocol(by_federated_kmeans),
    "knn": Protocol(by_neighbours, random=False),
    "linear": Protocol(by_linear_layer),
    "semi": Protocol(by_few_labels),
}
"""Evaluation protocols by name, for `fedmcc evaluate RUN --protocol NAME`; `fedmcc list protocols`.

Examples
--------
>>> from fedmcc import PROTOCOLS
>>> [name for name, protocol in PROTOCOLS.items() if not protocol.needs_labels]
['clustering']
"""


def _check(run: Run, names: Sequence[str], subject: Subject) -> None:
    """Raise InputError if the run lacks the cluster head or the labels that a protocol needs."""
    if "clustering" in names and subject.trained.net.online.cluster_projector is None:
        raise InputError(f"{run.path} has no cluster head: use the protocol kmeans instead of clustering.")
    labels = subject.trained.scorer.images.labels
    needing = [name for name in names if PROTOCOLS[name].needs_labels]
    if needing and subject.trained.config.data.splits is None and (labels is None or np.all(labels < 0)):
        raise InputError(
            f"The images of {run.path} have no labels, which {', '.join(needing)} would need: "
            "use the protocol clustering."
        )


def _clustered(subject: Subject, assigned: Assigned) -> Measured:
    images = subject.scored.images
    scores = score(images.labels, assigned)
    if scores is None:
        raise InputError(f"No image of the split '{images.split}' has a label: use the protocol clustering.")
    return Measured(scores._asdict(), images.split, len(images))


def _summary(measured: Sequence[Measured]) -> dict[str, Any]:
    """Mean and sample standard deviation of each score over the seeds."""
    summary = {}
    scored = {"split": measured[0].split, "images": measured[0].images}
    for name in measured[0].scores:
        values = [one.scores[name] for one in measured]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[name] = {"mean": statistics.fmean(values), "std": deviation, "values": values, **scored}
    return summary
