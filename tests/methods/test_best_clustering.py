"""The better of two clusterings, chosen by how well each keeps neighbours together."""

import json

import numpy as np
import pytest
import torch

from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.best_clustering import BEST, MODULARITY, BestClustering, Comparison, modularity
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.federated_spectral import FederatedSpectral
from fedmcc.networks.alternatives import Alternatives
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import detached, strip_prefix
from fedmcc.runs.cluster_choice import record_choice, sentences
from fedmcc.runs.directory import Run

CLIENTS = 3


def _blobs(count=240, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    return 5 * torch.eye(6)[labels] + 0.4 * torch.randn(count, 6, generator=draw), labels


def _network(clustering):
    torch.manual_seed(0)
    net = Network(Branch(torch.nn.Identity()))
    clustering.extend(net, 6, 4)
    return net


def _run(clustering, features):
    """The network after all stages, and the extras of the last one."""
    net = _network(clustering)
    extras = {}
    for stage in clustering.stages():
        notes = [stage.first_notes(net, len(features[client::CLIENTS])) for client in range(CLIENTS)]
        for number in range(stage.rounds):
            updates = []
            for client in range(CLIENTS):
                own, net.notes = features[client::CLIENTS], notes[client]
                sent = detached(stage.extras(net, own.split(50)))
                notes[client] = net.notes
                state = detached(net.state_dict())
                updates.append(Update(client, stage.name, number + 1, len(own), None, state, sent))
                assert stage.extras_error(updates[-1]) == ""
            weights, extras = stage.combine(updates, detached(net.state_dict()))
            net.load_state_dict({**net.state_dict(), **weights})
    return net, extras


def test_the_heads_are_those_of_the_clusterings_alone():
    features, labels = _blobs()
    net, extras = _run(BestClustering(), features)
    alone = FederatedSpectral()
    start = strip_prefix(f"{HEAD}.heads.0", _network(BestClustering()).state_dict())
    single = _network(alone)
    single.online.cluster_projector.load_state_dict(start)  # the same first weights
    for stage in alone.stages():
        updates = []
        for client in range(CLIENTS):
            own = features[client::CLIENTS]
            sent, state = detached(stage.extras(single, own.split(50))), detached(single.state_dict())
            updates.append(Update(client, stage.name, 1, len(own), None, state, sent))
        single.load_state_dict({**single.state_dict(), **stage.combine(updates, single.state_dict()).weights})
    torch.testing.assert_close(
        net.online.cluster_projector.heads[0].state_dict(), single.online.cluster_projector.state_dict()
    )
    assert set(extras) == {MODULARITY, BEST}
    assert accuracy(labels.numpy(), net.online.cluster_projector(features).argmax(dim=1).numpy()) == 1.0


class _Fixed(torch.nn.Module):
    """A head that takes the cluster from one feature."""

    def __init__(self, column):
        super().__init__()
        self.column = column

    def forward(self, features):
        return torch.nn.functional.one_hot(features[:, self.column].long() % 4, 4).float()


@pytest.mark.parametrize(
    ("columns", "margin", "expected"), [((6, 7), 0.01, 1), ((7, 6), 0.01, 0), ((6, 7), 2.0, 0)]
)
def test_the_head_that_keeps_neighbours_together_is_used_if_the_margin_is_exceeded(columns, margin, expected):
    features, labels = _blobs()
    wrong = torch.arange(240) // 4  # unrelated to the blobs
    features = torch.cat([features * 100, wrong[:, None], labels[:, None]], dim=1)
    net = Network(Branch(torch.nn.Identity(), cluster_projector=Alternatives([_Fixed(c) for c in columns])))
    stage = Comparison(neighbours=5, margin=margin)
    weights = {f"{HEAD}.heads.0.groups": torch.zeros(8, 4), f"{HEAD}.best": torch.tensor(0)}
    updates = []
    for client in range(CLIENTS):
        own = features[client::CLIENTS]
        updates.append(
            Update(client, "comparison", 1, len(own), None, weights, stage.extras(net, own.split(40)))
        )
        assert stage.extras_error(updates[-1]) == ""
    combined = stage.combine(updates, weights)
    assert int(combined.weights[f"{HEAD}.best"]) == expected
    right = combined.extras[MODULARITY][columns.index(7)]
    assert float(right) == pytest.approx(0.75, abs=0.02)  # all edges within four equal clusters


def test_modularity_is_that_of_newman():
    edges = np.random.default_rng(0).uniform(size=(4, 4))
    total = float(edges.sum())
    expected = sum(
        float(edges[k, k]) / total - ((float(edges[k].sum()) + float(edges[:, k].sum())) / (2 * total)) ** 2
        for k in range(4)
    )
    assert modularity(edges) == pytest.approx(expected)


def test_neighbours_that_are_not_counted_once_per_image_are_refused():
    stage = Comparison(neighbours=5, margin=0.01)
    weights = {f"{HEAD}.heads.0.groups": torch.zeros(8, 4)}

    def error(edges):
        return stage.extras_error(Update(0, "comparison", 1, 10, None, weights, {"edges": edges}))

    assert error(torch.full((2, 4, 4), 10 / 16, dtype=torch.float64)) == ""
    assert "once per image" in error(torch.full((2, 4, 4), 1.0, dtype=torch.float64))
    negative = torch.full((2, 4, 4), 10 / 16, dtype=torch.float64)
    negative[0, 0, 0], negative[0, 0, 1] = -5.0, 10 / 8 + 5
    assert "once per image" in error(negative)
    assert "expected" in error(torch.zeros(1, 4, 4, dtype=torch.float64))


def test_a_site_with_too_few_images_for_a_centroid_is_recognised():
    assert max(getattr(stage, "smallest", 1) for stage in BestClustering(smallest=12).stages()) == 12


def test_an_alternative_is_used_as_its_number_says():
    heads = Alternatives([_Fixed(0), _Fixed(1)])
    features = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert heads(features).argmax(dim=1).tolist() == [1, 3]
    heads.best.fill_(1)
    assert heads(features).argmax(dim=1).tolist() == [2, 0]


def test_a_run_says_which_clustering_it_chose_and_why(tmp_path):
    run = Run(tmp_path)
    assert sentences(run) == []
    record_choice(run, {MODULARITY: torch.tensor([0.589, 0.609]), BEST: torch.tensor(1)})
    content = json.loads((tmp_path / "clustering-choice.json").read_text())
    assert content["chosen"] == "neighbours"
    assert sentences(run) == [
        "Chosen clustering: neighbours. How well neighbours stay together (modularity): spectral 0.589, "
        "neighbours 0.609."
    ]
