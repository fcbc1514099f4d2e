"""Clustering by neighbours: the loss of a federation, the sizes of all clients, and whole runs."""

import json

import pytest
import torch
from torch.special import entr

from fedmcc.config import parse
from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Task, Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.inputs import PARTNERS, Overview
from fedmcc.methods.neighbour_agreement import SHARES
from fedmcc.methods.neighbours import NeighbourClustering
from fedmcc.methods.raw import Raw
from fedmcc.networks.pixels import Pixels
from fedmcc.numerics.state_dicts import detached, strip_prefix
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble, prepare
from fedmcc.runs.experiment import Scored, start_run, steps

CLUSTERS = 3
VECTORS = f"{HEAD}.vectors.weight"


def _built(**options):
    net = Raw().build(Pixels(1, 4), 16, CLUSTERS)
    method = NeighbourClustering(axes=2.0, **options)
    method.extend(net, 16, CLUSTERS)
    return net, method.stages()[-1]


def _memory(net, stage, count, **notes):
    given = {**stage.first_notes(net, count), **notes}
    return {"samples": torch.tensor(count), **{f"notes.{name}": value for name, value in given.items()}}


def _task(net, number, **extras):
    return Task(0, "neighbours", number, {VECTORS: net.state_dict()[VECTORS].clone()}, extras)


def _gradient(net, stage, points, partners, others):
    """Gradient of the loss of a client whose batch is all its images."""
    net.zero_grad()
    notes = stage.first_notes(net, len(points))
    net.notes = {**notes, "points": points, "others": others[None]}
    stage.loss(stage.represent(net, torch.arange(len(points)), partners[:, None])).backward()
    return net.online.cluster_projector.vectors.weight.grad.clone()


def test_clients_together_descend_the_loss_of_the_pooled_images():
    """The mean of the clients' gradients is that of -log y·y' - 2 H over all images."""
    net, stage = _built(entropy_weight=2.0)
    net.double()
    draw, head = torch.Generator().manual_seed(0), net.online.cluster_projector
    shards = [0.1 * torch.randn(count, 6, generator=draw).double() for count in (5, 12)]
    partners = [torch.randperm(len(shard), generator=draw) for shard in shards]
    y = [head.assign_points(shard) for shard in shards]
    agreement = torch.cat(
        [(own * own[nearest]).sum(dim=1).log() for own, nearest in zip(y, partners, strict=True)]
    )
    net.zero_grad()
    (-agreement.mean() - 2 * entr(torch.cat(y).mean(dim=0)).sum()).backward()
    pooled, sums = head.vectors.weight.grad.clone(), [own.detach().sum(dim=0) for own in y]
    parts = [
        len(shard) * _gradient(net, stage, shard, nearest, others)
        for shard, nearest, others in zip(shards, partners, sums[::-1], strict=True)
    ]
    torch.testing.assert_close(sum(parts) / 17, pooled, rtol=1e-6, atol=1e-9)


def test_before_the_sizes_are_known_they_do_not_matter():
    gradients = []
    for weight in (1.0, 50.0):
        net, stage = _built(entropy_weight=weight)
        torch.nn.init.eye_(net.online.cluster_projector.vectors.weight)
        points = torch.nn.functional.normalize(torch.arange(24.0).reshape(4, 6).cos(), dim=1)
        others = stage.first_notes(net, 4)["others"][0]
        gradients.append(_gradient(net, stage, points, torch.arange(4).flip(0), others))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("answered", "expected"), [(2, [30.0, 0.0, 5.0]), (1, [40.0, 3.0, 5.0]), (0, [40.0, 3.0, 5.0])]
)
def test_the_other_clients_sizes_are_without_the_own_only_if_the_server_has_those(answered, expected):
    net, stage = _built()
    own = torch.tensor([[10.0, 4.0, 0.0]]).double()
    memory = _memory(net, stage, 14, own=own, answered=torch.tensor(answered))
    stage.receive(net, _task(net, 3, **{SHARES: torch.tensor([[40.0, 3.0, 5.0]]).double()}), memory)
    notes = strip_prefix("notes", memory)
    assert notes["others"].tolist() == [expected]
    assert int(notes["answered"]) == 3


def test_the_server_adds_up_the_assignments_of_all_images():
    net, stage = _built()
    shares = torch.tensor([[0.5, 0.5, 0.0]]).double(), torch.tensor([[0.0, 0.1, 0.9]]).double()
    weights = {VECTORS: net.state_dict()[VECTORS]}
    updates = [
        Update(client, "neighbours", 1, 10 + 10 * client, 0.1, weights, {SHARES: each})
        for client, each in enumerate(shares)
    ]
    combined = stage.combine(updates, detached(net.state_dict()))
    torch.testing.assert_close(combined.extras[SHARES], torch.tensor([[5.0, 7.0, 18.0]]).double())
    torch.testing.assert_close(combined.weights[f"{HEAD}.marginal"], torch.tensor([5.0, 7.0, 18.0]) / 30)


@pytest.mark.parametrize("shares", [[0.5, 0.6, 0.0], [1.5, -0.5, 0.0], [0.0, 0.0, 0.0]])
def test_shares_of_no_assignment_are_refused(shares):
    net, stage = _built()
    extras = {SHARES: torch.tensor([shares]).double()}
    update = Update(0, "neighbours", 1, 10, 0.1, {VECTORS: net.state_dict()[VECTORS]}, extras)
    assert stage.extras_error(update) == "Its shares of clusters are not means of soft assignments."


def test_a_client_that_joins_late_finds_its_neighbours_and_only_once():
    net, stage = _built(neighbours=4)
    images = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    net.notes, asked = stage.first_notes(net, 12), []

    def batches():
        asked.append(1)
        return iter(images.split(5))

    for epoch in (7, 8):
        stage.prepare(net, Overview(batches, epoch, 20, seed=0))
    points = net.notes["points"].double()
    torch.testing.assert_close(points.float(), net.online.cluster_projector.whitening(images.flatten(1)))
    for i, row in enumerate(net.notes[PARTNERS][:, 0].tolist()):
        distances = (points - points[i]).square().sum(dim=1)
        distances[i] = -1
        assert row == distances.argsort(stable=True)[:4].tolist()
    assert len(asked) == 1


def test_invalid_options_are_refused_by_name():
    with pytest.raises(InputError, match=r"clustering\.neighbours is 0"):
        NeighbourClustering(neighbours=0)


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
            "clustering": {"name": "neighbours", "rounds": 4, "neighbours": 5, "axes": 2.0},
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
    for _ in range(4):  # whitening, centroids and two rounds of neighbours
        next(event for event in events if isinstance(event, Scored))
    events.close()
    for _ in steps(prepare(_config()), run):
        pass
    assert _outcome(run) == straight


def test_messages_do_not_grow_with_the_images_and_drawn_clients_are_enough():
    config = _config(fraction=0.67)
    sizes = []
    for samples in (90, 180):
        assembled = assemble(config, Synthetic(samples=samples, classes=CLUSTERS, size=8, channels=1).load())
        stage, progress = assembled.stages[-1], Progress(detached(assembled.net.state_dict()))
        events = list(rounds(stage, progress, assembled.engine, assembled.clients, assembled.policy(b"")))
        updates = [update for event in events if isinstance(event, Round) for update in event.updates]
        sizes.append({update.bytes for update in updates})
        assert {*updates[0].weights, *updates[0].extras} == {VECTORS, SHARES}
    assert sizes[0] == sizes[1] == {CLUSTERS * 6 * 4 + CLUSTERS * 8}
