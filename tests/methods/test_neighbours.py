"""Clustering by votes of neighbours: elections, the sums of all clients, and whole runs."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmcc.config import parse
from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.inputs import PARTNERS
from fedmcc.methods.neighbours import NeighbourClustering, elect, principal, whitened
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import copy_into, detached, select
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble, prepare
from fedmcc.runs.experiment import Scored, start_run, steps

CLUSTERS, FEATURES = 3, 12


def _points(n=90, spread=0.6):
    """Three clusters that vary most in a direction which they share, and the cluster of each row."""
    draw = np.random.default_rng(0)
    labels = np.arange(n) % CLUSTERS
    points = 3 * np.eye(CLUSTERS, FEATURES)[labels] + spread * draw.normal(size=(n, FEATURES))
    points[:, -1] += 3 * draw.normal(size=n)
    return torch.from_numpy(points).float(), labels


def _net(**options):
    method = NeighbourClustering(
        axes=3.0, **{"smallest": 1, "neighbours": 6, "images_per_centroid": 5, **options}
    )
    net = Network(Branch(nn.Flatten()))
    method.extend(net, FEATURES, CLUSTERS)
    return net, method.stages()


def _exchange(net, stage, shards):
    """One round; the clients' neighbours are found anew."""
    updates = []
    for client, points in enumerate(shards):
        net.notes = stage.first_notes(net, len(points))
        extras = stage.extras(net, iter(points.split(16)))
        weights = detached(select(net.state_dict(), stage.shared))
        updates.append(Update(client, stage.name, 1, len(points), None, weights, extras))
    assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
    copy_into(net, stage.combine(updates, detached(net.state_dict())).weights)
    return updates


def test_an_image_belongs_to_the_cluster_for_which_its_neighbours_vote():
    draw = torch.Generator().manual_seed(0)
    votes, partners = torch.rand(9, 4, generator=draw), torch.randint(9, (9, 5), generator=draw)
    for i, found in enumerate(elect(votes, partners).tolist()):
        totals = [sum(float(votes[j, k] / votes[j].sum()) for j in partners[i]) for k in range(4)]
        assert found == totals.index(max(totals))


def test_principal_axes_have_their_variances_back():
    points, _ = _points()
    net, (whitening, *_) = _net()
    _exchange(net, whitening, points.split(40))
    unit = F.normalize(points, dim=1).double().numpy()
    _, _, axes = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    expected = F.normalize(torch.from_numpy((unit - unit.mean(axis=0)) @ axes[:9].T), dim=1).abs()
    found = principal(
        net.online.cluster_projector, whitened(net, [points])
    ).abs()  # up to the sign of an axis
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_prototypes_become_the_means_of_the_images_that_were_elected_at_all_clients():
    points, _ = _points()
    net, (whitening, centroids, votes) = _net()
    shards = points.split([50, 40])
    for stage in (whitening, centroids):
        _exchange(net, stage, shards)
    head, elected = net.online.cluster_projector, []
    for shard in shards:
        x = whitened(net, [shard])
        z = principal(head, x).double()
        for i in range(len(x)):
            near = (z - z[i]).square().sum(dim=1).argsort()[:6]
            p = head.assign_points(x[near]) / (3 * head.marginal + 1e-3)
            elected.append(int((p / p.sum(dim=1, keepdim=True)).sum(dim=0).argmax()))
    chosen, x = torch.tensor(elected), whitened(net, [points]).double()
    expected = torch.stack([x[chosen == k].mean(dim=0) for k in range(CLUSTERS)]).float()
    _exchange(net, votes, shards)
    torch.testing.assert_close(head.vectors.weight.detach(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.marginal, chosen.bincount(minlength=CLUSTERS) / 90)


@pytest.mark.parametrize("by_class", [False, True])
def test_clusters_are_found_though_a_shared_direction_varies_more_and_a_client_has_one(by_class):
    points, labels = _points()
    shards = [points[labels == k] for k in range(CLUSTERS)] if by_class else points.split(30)
    net, stages = _net()
    for stage in stages:
        for _ in range(stage.rounds):
            _exchange(net, stage, shards)
    assigned = net.online.assign(points).argmax(dim=1).numpy()
    assert accuracy(labels, assigned) >= 0.95


def test_neighbours_are_found_once():
    points, _ = _points()
    net, (whitening, _, votes) = _net()
    _exchange(net, whitening, [points])
    net.notes = votes.first_notes(net, len(points))
    votes.extras(net, [points])
    table = net.notes[PARTNERS]
    votes.extras(net, [points])
    assert net.notes[PARTNERS] is table
    assert table[:, 0].tolist() == list(range(90))


@pytest.mark.parametrize(("balance", "elected"), [(0.0, 0), (1.0, 1)])
def test_of_two_clusters_with_nearly_equal_votes_the_smaller_one_is_elected_if_sizes_count(balance, elected):
    net, (*_, votes) = _net(balance=balance)
    head = net.online.cluster_projector
    head.vectors.weight.data = torch.eye(CLUSTERS, 9)
    head.marginal.copy_(torch.tensor([0.6, 0.2, 0.2]))
    image = torch.zeros(1, FEATURES)
    image[0, :2] = torch.tensor([1.0, 0.95])
    net.notes = votes.first_notes(net, 1)
    assert votes.extras(net, [image])["counts"].argmax() == elected


def test_no_sum_of_fewer_images_than_smallest_is_sent():
    points, _ = _points()
    net, (whitening, centroids, votes) = _net(smallest=35)
    for stage in (whitening, centroids):
        _exchange(net, stage, [points])
    (update,) = _exchange(net, votes, [points[:40]])
    assert all(count == 0 or count >= 35 for count in update.extras["counts"].tolist())


@pytest.mark.parametrize(("field", "value"), [("neighbours", 0), ("rounds", 0), ("balance", -1.0)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"clustering\.{field} is {value}"):
        NeighbourClustering(**{field: value})


def _config(engine="embedded", **federation):
    return parse(
        {
            "clusters": CLUSTERS,
            "seed": 3,
            "threads": 1,
            "device": "cpu",
            "data": {"name": "synthetic", "samples": 90, "classes": CLUSTERS, "size": 8, "channels": 1},
            "encoder": {"name": "pixels"},
            "method": {"name": "raw"},
            "clustering": {"name": "neighbours", "rounds": 4, "neighbours": 5, "axes": 2.0, "smallest": 2},
            "partition": {"clients": 3},
            "federation": federation,
            "training": {"batch_size": 8},
            "engine": {"name": engine, **({"workers": 2} if engine == "pool" else {})},
        }
    )


def _outcome(run):
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]
    return json.dumps(rows), run.model_file.read_bytes(), run.scores_file.read_text()


@pytest.mark.slow
def test_a_run_is_bit_identical_in_one_process_in_several_and_resumed(tmp_path):
    straight = _outcome(experiment.run(_config(), tmp_path / "straight"))
    assert _outcome(experiment.run(_config("pool"), tmp_path / "pool")) == straight
    interrupted = prepare(_config())
    run = start_run(interrupted, tmp_path / "interrupted")
    events = steps(interrupted, run)
    for _ in range(4):  # whitening, centroids and two rounds of votes
        next(event for event in events if isinstance(event, Scored))
    events.close()
    for _ in steps(prepare(_config()), run):
        pass
    assert _outcome(run) == straight


def test_messages_of_votes_do_not_grow_with_the_images():
    sizes = []
    for samples in (90, 180):
        images = Synthetic(samples=samples, classes=CLUSTERS, size=8, channels=1).load()
        assembled = assemble(_config(), images)
        stage, progress = assembled.stages[-1], Progress(detached(assembled.net.state_dict()))
        events = list(rounds(stage, progress, assembled.engine, assembled.clients, assembled.policy(b"")))
        updates = [update for event in events if isinstance(event, Round) for update in event.updates]
        sizes.append({update.bytes for update in updates})
        assert {*updates[0].weights} == {f"{HEAD}.vectors.weight", f"{HEAD}.marginal"}
    numbers = CLUSTERS * 6
    assert sizes[0] == sizes[1] == {numbers * 4 + CLUSTERS * 4 + numbers * 8 + CLUSTERS * 8}
