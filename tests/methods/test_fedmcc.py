"""The paper's two stages, `fedmcc` and `mcc` after it: what each trains, sends and leaves unchanged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmcc.data.synthetic import Synthetic
from fedmcc.federation.client import Client
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.losses import Quartet, cluster_balance, contrast
from fedmcc.methods.cluster_contrast import Assigned, ClusterContrast
from fedmcc.methods.fedmcc import FedMCC
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.loop import Training
from fedmcc.views import preset

ENCODER, HEAD = ("online.encoder",), ("online.cluster_projector",)


def _stage(**changes):
    (stage,) = ClusterContrast(**changes).stages()
    return stage


def _run(clients=2, target="keep", **changes):
    """All rounds of a small federation, and the final states of its clients."""
    encoder = ConvNetOptions(width=2).build(3, 8)
    method = FedMCC(rounds=1, epochs=1, target=target)
    clustering = ClusterContrast(rounds=2, epochs=1, target=target, **changes)
    net = method.build(encoder, encoder.features, 4)
    clustering.extend(net, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    images = Synthetic(samples=32 * clients, size=8).load().images
    shards = np.array_split(np.arange(len(images)), clients)
    training = Training(batch_size=8, learning_rate=1e-3)
    owners = [Client(i, images[rows], preset("none"), training, 0) for i, rows in enumerate(shards)]
    engine, progress, results = Embedded(net, owners, 2**30), Progress(detached(net.state_dict())), []
    for stage in (*method.stages(), *clustering.stages()):
        for event in rounds(stage, progress, engine, range(clients)):
            if isinstance(event, Round):
                progress = event.progress
                results.append(event)
    return results, engine.states


def _same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_each_stage_sends_exactly_what_it_trains():
    representation, clustering, _ = _run()[0]
    sent = {name.split(".")[1] for name in representation.updates[0].weights}
    assert sent == {"encoder", "instance_projector"}
    assert {name.split(".")[1] for name in clustering.updates[0].weights} == {"cluster_projector"}


def test_the_clustering_stage_trains_the_head_and_not_the_encoder():
    first, second, third = (round.progress.model for round in _run()[0])
    assert _same(select(first, ENCODER), select(third, ENCODER))
    assert not _same(select(second, HEAD), select(third, HEAD))


def test_every_client_clusters_over_the_global_encoder():
    results, states = _run()
    for client in (0, 1):
        own = {name.removeprefix("net."): value for name, value in states[client].items()}
        assert _same(select(own, ENCODER), select(results[-1].progress.model, ENCODER))


def test_the_frozen_encoder_is_sent_once():
    _, first, second = _run()[0]
    assert first.bytes_down > 2 * second.bytes_down
    assert first.bytes_up == second.bytes_up == second.bytes_down


def test_targets_are_not_sent_unless_shared():
    kept, shared = _run()[0], _run(target="share")[0]
    assert not any("target" in name for name in kept[0].updates[0].weights)
    assert any(name.startswith("target.encoder") for name in shared[0].updates[0].weights)
    assert any(name.startswith("target.cluster_projector") for name in shared[1].updates[0].weights)


@pytest.mark.parametrize("anchor", ["paper", "online"])
def test_the_clustering_loss_is_the_printed_l_c_with_the_entropies_maximised(anchor):
    stage = _stage(anchor=anchor, temperature=0.7, entropy_weight=1.5)
    draw = torch.Generator().manual_seed(3)
    y = Quartet(*(torch.randn(6, 4, generator=draw, dtype=torch.float64).softmax(dim=1) for _ in range(4)))
    second = (y.a_target.T, y.b.T) if anchor == "paper" else (y.b.T, y.a_target.T)
    expected = 0.5 * (contrast(y.a.T, y.b_target.T, 0.7) + contrast(*second, 0.7))
    expected = expected - 1.5 * (cluster_balance(y.a) + cluster_balance(y.b))
    assert math.isclose(float(stage.loss(y)), float(expected), abs_tol=1e-12)


def test_with_one_client_the_entropy_of_all_clients_is_the_papers_term():
    printed, mended = (_run(marginal=kind, clients=1)[0][-1] for kind in ("client", "all"))
    for name, value in select(printed.progress.model, HEAD).items():
        torch.testing.assert_close(mended.progress.model[name], value, atol=1e-5, rtol=1e-4)


def test_entropies_of_two_clients_have_together_the_gradient_of_the_pooled_entropy():
    stage = _stage(marginal="all")
    logits = torch.randn(12, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits.requires_grad_()
    y, parts, shares = logits.softmax(dim=1), (slice(0, 3), slice(3, 12)), (0.25, 0.75)
    together = torch.zeros((), dtype=torch.float64)
    for rows, rest, share in zip(parts, parts[::-1], shares, strict=True):
        others = ((1 - share) * y[rest].mean(dim=0)).detach().expand(len(y[rows]), -1)
        own = torch.full((len(y[rows]),), share, dtype=torch.float64)
        together = together + share * stage.balance(Assigned(*4 * (y[rows],), others, own))
    gradient = torch.autograd.grad(together, logits, retain_graph=True)[0]
    pooled = torch.autograd.grad(2 * torch.special.entr(y.mean(dim=0)).sum(), logits)[0]
    torch.testing.assert_close(gradient, pooled)


def test_clients_send_their_mean_assignment_and_receive_that_of_all():
    results, states = _run(marginal="all")
    sent = [update.extras["sizes"] for update in results[1].updates]
    torch.testing.assert_close(results[1].progress.extras["sizes"], (sent[0] + sent[1]) / 2)
    assert not sent[0].equal(sent[1])
    assert all(float(size.sum()) == pytest.approx(1) for size in sent)
    torch.testing.assert_close(states[0]["net.sizes.own"], results[2].updates[0].extras["sizes"])


@pytest.mark.parametrize("sizes", [[0.5, 0.5, 0.5, 0.5], [1.5, -0.5, 0.0, 0.0], [1.0, 0.0, 0.0]])
def test_sizes_that_no_images_can_have_are_refused(sizes):
    stage, update = _stage(marginal="all"), _run(marginal="all")[0][1].updates[0]
    assert stage.extras_error(update) == ""
    assert stage.extras_error(replace(update, extras={"sizes": torch.tensor(sizes)}))
