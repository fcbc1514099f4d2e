import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.methods import METHODS
from fedmcc.methods.base import Stage
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.training.batches import lazy_pairs, view_pairs
from fedmcc.training.loop import DivergedError, Training, train, trainable
from fedmcc.views import Views, preset

CPU = torch.device("cpu")


def _numbered(n):
    """Images of one grey level each, which identifies the image of a view without augmentation."""
    return np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 1, 8, 8)).copy()


def _epoch(n, batch_size, seed=0, views=None):
    draw = torch.Generator().manual_seed(seed)
    return list(view_pairs(_numbered(n), views or Views(), batch_size, draw, CPU))


def _net(name="mcc", norm="batch"):
    encoder = ConvNetOptions(width=4, norm=norm).build(1, 8)
    return METHODS[name]().build(encoder, encoder.features, 3)


def _levels(view):
    return (view.amax(dim=(1, 2, 3)) * 255).round().int().tolist()


@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (9, 3), (5, 5), (11, 4), (7, 2)])
def test_an_epoch_has_only_full_batches_and_no_image_twice(n, batch_size):
    pairs = _epoch(n, batch_size)
    assert len(pairs) == n // batch_size
    levels = [level for a, _ in pairs for level in _levels(a)]
    assert len(set(levels)) == len(levels) == n // batch_size * batch_size


def test_over_several_epochs_every_image_is_used():
    draw = torch.Generator().manual_seed(0)
    levels = set()
    for _ in range(12):
        for a, _b in view_pairs(_numbered(10), Views(), 4, draw, CPU):
            levels |= set(_levels(a))
    assert levels == set(range(10))


def test_both_views_are_of_the_same_images_and_differ():
    for a, b in _epoch(10, 5):
        assert _levels(a) == _levels(b)
    (a, b), *_ = _epoch(10, 5, views=preset("digits"))
    assert not torch.equal(a, b)


def test_same_generator_same_batches_another_seed_others():
    first, again, other = (_epoch(12, 4, seed, preset("digits")) for seed in (3, 3, 4))
    assert all(
        torch.equal(x, y) for p, q in zip(first, again, strict=True) for x, y in zip(p, q, strict=True)
    )
    assert not torch.equal(first[0][0], other[0][0])


@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 4), slice(2, None), slice(None)])
def test_views_made_for_some_rows_are_those_of_the_whole_batch(rows):
    images = np.random.default_rng(0).integers(0, 256, (10, 3, 12, 12), dtype=np.uint8)
    draws = [torch.Generator().manual_seed(4) for _ in range(2)]
    whole = list(view_pairs(images, preset("photo"), 5, draws[0], CPU))
    drawn = list(lazy_pairs(images, preset("photo"), 5, draws[1], CPU))
    assert [len(pair) for pair in drawn] == [5, 5]
    for pair, views in zip(drawn, whole, strict=True):
        for part, view in zip(pair[rows], views, strict=True):
            torch.testing.assert_close(part, view[rows], rtol=0, atol=1e-6)


def test_images_mapped_from_disk_and_read_only_can_be_trained_on(tmp_path):
    np.save(tmp_path / "images.npy", _numbered(6))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    pairs = list(view_pairs(mapped, Views(), 3, torch.Generator().manual_seed(0), CPU))
    assert all(torch.equal(a, c) for (a, _), (c, _) in zip(pairs, _epoch(6, 3), strict=True))


class ScaledSum(Stage):
    """A stage whose loss is the sum of its outputs, times a given number."""

    factor = float("nan")

    def represent(self, net, a, b):
        return (net.online.project(a)[0],)

    def loss(self, outputs):
        return outputs[0].sum() * self.factor


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_an_infinite_or_nan_loss_stops_training_with_a_remedy(monkeypatch, factor):
    monkeypatch.setattr(ScaledSum, "factor", factor)
    stage = ScaledSum(name="x", rounds=1, epochs=1, trained=("online",), shared=("online",))
    net = _net("cc")
    optimizer = Training().build_optimizer(trainable(net, stage))
    pair = (torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))
    with pytest.raises(DivergedError, match=r"lower training\.learning_rate"):
        list(train(net, stage, [pair], optimizer))


def test_yielded_losses_are_those_before_each_step():
    net, stage = _net("cc", "group"), METHODS["cc"]().stages()[0]
    optimizer = torch.optim.SGD(trainable(net, stage), lr=0.0)
    pairs = [(torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8)) for _ in range(3)]
    expected = [stage.loss(stage.represent(net, a, b)).item() for a, b in pairs]
    assert list(train(net, stage, pairs, optimizer)) == pytest.approx(expected, rel=1e-6)


def test_only_the_trained_parts_require_gradients_and_only_the_frozen_are_in_eval_mode():
    net = _net()
    parts = {"trained": ("online.cluster_projector",), "shared": ("online.cluster_projector",)}
    stage = Stage(name="x", rounds=1, epochs=1, frozen=("online.encoder",), **parts)
    net.eval()
    parameters = trainable(net, stage)
    assert [id(p) for p in parameters] == [id(p) for p in net.online.cluster_projector.parameters()]
    requiring = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert requiring == {
        name for name, _ in net.named_parameters() if name.startswith("online.cluster_projector.")
    }
    assert not any(module.training for module in net.online.encoder.modules())
    assert all(module.training for module in net.target.modules())  # D12
    assert net.online.cluster_projector.training


def test_frozen_statistics_do_not_move_while_training(monkeypatch):
    monkeypatch.setattr(ScaledSum, "factor", 1.0)
    net = _net("cc")
    parts = {"trained": ("online.instance_projector",), "shared": ("online.instance_projector",)}
    stage = ScaledSum(name="x", rounds=1, epochs=1, frozen=("online.encoder",), **parts)
    before = {name: buffer.clone() for name, buffer in net.online.encoder.named_buffers()}
    pair = (torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))
    list(train(net, stage, [pair], Training().build_optimizer(trainable(net, stage))))
    assert before
    assert all(torch.equal(value, before[name]) for name, value in net.online.encoder.named_buffers())


def test_the_optimiser_is_the_one_that_the_options_name():
    parameters = [nn.Parameter(torch.zeros(2))]
    adam = Training(learning_rate=0.1, weight_decay=0.2).build_optimizer(parameters)
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["weight_decay"]) == (0.1, 0.2)
    sgd = Training(optimizer="sgd", sgd_momentum=0.7).build_optimizer(parameters)
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.defaults["momentum"] == 0.7


def test_rmsprop_divides_by_the_root_of_a_mean_of_squared_gradients():
    weight = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
    optimizer = Training(optimizer="rmsprop", learning_rate=0.1).build_optimizer([weight])
    expected, mean = weight.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        gradient = 2 * expected
        mean = 0.9 * mean + 0.1 * gradient**2
        expected -= 0.1 * gradient / (mean.sqrt() + 1e-8)
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize(("passed", "share"), [(0.0, 1.0), (0.25, 0.8535534), (0.5, 0.5), (0.75, 0.1464466)])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_cosine_lowers_the_learning_rate_over_a_stage(optimizer, passed, share):
    parameters = [nn.Parameter(torch.zeros(2))]
    falling = Training(learning_rate=0.2, schedule="cosine", optimizer=optimizer)
    constant = Training(learning_rate=0.2, optimizer=optimizer)
    assert falling.build_optimizer(parameters, 1.0, passed).defaults["lr"] == pytest.approx(0.2 * share)
    assert constant.build_optimizer(parameters, 1.0, passed).defaults["lr"] == 0.2
    assert constant.build_optimizer(parameters, 0.1, passed).defaults["lr"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("weight_decay", -0.1),
        ("sgd_momentum", -0.1),
    ],
)
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"training\.{field} is {value}"):
        Training(**{field: value})


def _stepped(make):
    """Weights in channels-last layout after three steps."""
    numbers = torch.linspace(-1, 1, 4 * 3 * 3 * 3).reshape(4, 3, 3, 3)
    weight = nn.Parameter(numbers.contiguous(memory_format=torch.channels_last))
    optimizer = make([weight])
    for _ in range(3):
        optimizer.zero_grad()
        weight.sin().square().sum().backward()
        optimizer.step()
    return weight.detach()


def test_fused_adam_equals_adam_for_any_memory_layout():
    plain = _stepped(lambda weights: torch.optim.Adam(weights, 0.01, weight_decay=0.1, foreach=False))
    fused = _stepped(Training(learning_rate=0.01, weight_decay=0.1).build_optimizer)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-7)
