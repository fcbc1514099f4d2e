"""Agreement with neighbours: the loss of a federation, and the cluster sizes of all clients."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.special import entr

from fedmcc.messages import Task, Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.neighbour_agreement import SHARES, NeighbourAgreement
from fedmcc.methods.raw import Raw
from fedmcc.networks.pixels import Pixels
from fedmcc.numerics.state_dicts import detached, strip_prefix

CLUSTERS = 3
VECTORS = f"{HEAD}.vectors.weight"


@dataclass(frozen=True, kw_only=True)
class Agreement(NeighbourAgreement):
    """Trains prototypes on points that a note holds."""

    name: str = "neighbours"
    rounds: int = 5
    epochs: int = 1
    neighbours: int = 20
    weight: str = VECTORS
    trained: tuple[str, ...] = (f"{HEAD}.vectors",)
    shared: tuple[str, ...] = (f"{HEAD}.vectors",)

    def points(self, net, overview):
        return net.notes["points"]

    def represent(self, net, rows, partners):
        head = net.online.cluster_projector
        y, neighbour = (head.assign_points(net.notes["points"][each]) for each in (rows, partners[:, 0]))
        return self.assigned(net, y[:, None], neighbour[:, None])


def _built(entropy_weight=2.0):
    net = Raw().build(Pixels(1, 4), 16, CLUSTERS)
    FederatedKMeans(axes=2.0).extend(net, 16, CLUSTERS)
    return net, Agreement(entropy_weight=entropy_weight)


def _memory(net, stage, count, **notes):
    given = {**stage.first_notes(net, count), **notes}
    return {"samples": torch.tensor(count), **{f"notes.{name}": value for name, value in given.items()}}


def _task(net, number, **extras):
    return Task(0, "neighbours", number, {VECTORS: net.state_dict()[VECTORS].clone()}, extras)


def _gradient(net, stage, points, partners, others, share):
    """Gradient of the loss of a client whose batch is all its images."""
    net.zero_grad()
    notes = stage.first_notes(net, len(points))
    net.notes = {**notes, "points": points, "others": others[None], "share": share}
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
        len(shard) * _gradient(net, stage, shard, nearest, others / 17, torch.tensor(len(shard) / 17))
        for shard, nearest, others in zip(shards, partners, sums[::-1], strict=True)
    ]
    torch.testing.assert_close(sum(parts) / 17, pooled, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("answered", "sizes", "images"), [(2, [30, 0, 5], 48), (1, [40, 3, 5], 62), (0, [40, 3, 5], 62)]
)
def test_the_other_clients_sizes_are_without_the_own_only_if_the_server_has_those(answered, sizes, images):
    net, stage = _built()
    own, all_clients = (torch.tensor([each]).double() for each in ([10, 4, 0], [40, 3, 5]))
    memory = _memory(net, stage, 14, own=own / 14) | {"round": torch.tensor(answered)}
    stage.receive(net, _task(net, 3, **{SHARES: all_clients / 48, "samples": torch.tensor(48)}), memory)
    notes = strip_prefix("notes", memory)
    torch.testing.assert_close(notes["others"], torch.tensor([sizes]).double() / images)
    assert float(notes["share"]) == pytest.approx(14 / images)


def test_in_the_first_round_a_client_knows_its_own_sizes_only():
    net, stage = _built()
    memory = _memory(net, stage, 14)
    stage.receive(net, _task(net, 1), memory)
    notes = strip_prefix("notes", memory)
    assert not notes["others"].any()
    assert float(notes["share"]) == 1


def test_clipped_clients_count_equally_in_the_sizes():
    net, stage = _built()
    weights = {VECTORS: net.state_dict()[VECTORS]}
    shares = torch.eye(3)[:2, None].double()  # each client holds one class
    updates = [
        Update(client, "neighbours", 1, images, 0.1, weights, {SHARES: shares[client]})
        for client, images in enumerate((900, 100))
    ]
    extras = replace(stage, equal_clients=True).combine(updates, detached(net.state_dict())).extras
    memory = _memory(net, stage, 100, own=shares[1]) | {"round": torch.tensor(1)}
    stage.receive(net, _task(net, 2, **extras), memory)
    notes = strip_prefix("notes", memory)
    assert notes["others"].tolist() == [[0.5, 0.0, 0.0]]
    assert float(notes["share"]) == 0.5


def test_the_server_averages_the_assignments_of_all_images():
    net, stage = _built()
    shares = torch.tensor([[0.5, 0.5, 0.0]]).double(), torch.tensor([[0.0, 0.1, 0.9]]).double()
    weights = {VECTORS: net.state_dict()[VECTORS]}
    updates = [
        Update(client, "neighbours", 1, 10 + 10 * client, 0.1, weights, {SHARES: each})
        for client, each in enumerate(shares)
    ]
    combined = stage.combine(updates, detached(net.state_dict()))
    torch.testing.assert_close(combined.extras[SHARES], torch.tensor([[5.0, 7.0, 18.0]]).double() / 30)
    assert int(combined.extras["samples"]) == 30


@pytest.mark.parametrize("shares", [[0.5, 0.6, 0.0], [1.5, -0.5, 0.0], [0.0, 0.0, 0.0]])
def test_shares_of_no_assignment_are_refused(shares):
    net, stage = _built()
    extras = {SHARES: torch.tensor([shares]).double()}
    update = Update(0, "neighbours", 1, 10, 0.1, {VECTORS: net.state_dict()[VECTORS]}, extras)
    assert stage.extras_error(update) == "Its shares of clusters are not means of soft assignments."
