import logging
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.methods import METHODS
from fedmcc.methods.base import Stage
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.momentum import Branch, MomentumPair, Network
from fedmcc.networks.replay import without_gradient
from fedmcc.training import chunked
from fedmcc.training.loop import trainable
from fedmcc.training.memory import peak_bytes

CPU = torch.device("cpu")


def _net(norm="group", dropout=0.0):
    encoder = ConvNetOptions(width=4, norm=norm).build(1, 8)
    layers = nn.Sequential(encoder, nn.Dropout(dropout), nn.Linear(32, 6))
    return MomentumPair(Branch(layers)).double()


def _pair(n):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return chunked.StoredBatch(a, b)


class Outputs(NamedTuple):
    target: Tensor
    online: Tensor


class Following(Stage):
    """Run the target first, which also draws random numbers, then the online branch."""

    def represent(self, net, a, b):
        (target,) = without_gradient(lambda: (net.target.encoder(b),))
        return Outputs(target, net.online.encoder(a))

    def loss(self, outputs):
        return (outputs.online @ outputs.target.T).logsumexp(dim=1).mean()


FOLLOWING = Following(name="x", rounds=1, epochs=1, trained=("online",), shared=("online",))


def _gradient(net):
    return torch.cat([value.grad.flatten() for value in net.parameters() if value.grad is not None])


@given(st.integers(1, 500), st.integers(1, 500))
def test_chunks_are_few_of_equal_size_and_cover_the_batch_in_order(n, chunk):
    parts = chunked.split(n, chunk)
    sizes = [rows.stop - rows.start for rows in parts]
    assert [row for rows in parts for row in range(n)[rows]] == list(range(n))
    assert len(parts) == -(-n // chunk)
    assert max(sizes) <= chunk
    assert max(sizes) - min(sizes) <= 1


def test_dropout_draws_the_same_numbers_in_both_passes():
    """Compare with the graph of all chunks at once, which draws each number once."""
    with torch.random.fork_rng():
        net = _net(dropout=0.5)
        trainable(net, FOLLOWING)
        torch.manual_seed(3)
        parts = [FOLLOWING.represent(net, *_pair(7)[rows]) for rows in chunked.split(7, 3)]
        FOLLOWING.loss(Outputs(*(torch.cat(field) for field in zip(*parts, strict=True)))).backward()
        expected, after = _gradient(net), torch.get_rng_state()
        net.zero_grad()
        torch.manual_seed(3)
        chunked.backward(net, FOLLOWING, _pair(7), 3)
        torch.testing.assert_close(_gradient(net), expected, rtol=1e-12, atol=1e-15)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_first_layers_running_statistics_are_those_of_a_single_pass(momentum):
    """Inputs of deeper layers are chunk-normalised; tests/contracts/test_chunks.py covers them."""
    net = _net("batch")
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = momentum
    whole, chunks = (deepcopy(net).train() for _ in range(2))
    for _ in range(2):
        FOLLOWING.represent(whole, *_pair(11)[:])
        chunked.backward(chunks, FOLLOWING, _pair(11), 4)
    for branch in ("online", "target"):
        layers = [each.get_submodule(f"{branch}.encoder.0.stages.0.1") for each in (whole, chunks)]
        assert layers[0].num_batches_tracked == layers[1].num_batches_tracked == 2
        assert layers[1].momentum == momentum
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(layers[1], name), getattr(layers[0], name), rtol=1e-12, atol=0)


def test_a_chunk_of_one_image_has_no_batch_statistics():
    with pytest.raises(InputError, match=r"set training\.chunk to 3 or more"):
        chunked.backward(_net("batch").train(), FOLLOWING, _pair(3), 2)


@given(st.integers(2, 300), st.integers(3, 300))
def test_chunks_of_three_or_more_never_leave_a_single_image(n, chunk):
    assert min(rows.stop - rows.start for rows in chunked.split(n, chunk)) >= 2


class Scarce(Following):
    """Simulates a device with memory for two images."""

    def represent(self, net, a, b):
        if len(a) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return super().represent(net, a, b)


SCARCE = Scarce(name="x", rounds=1, epochs=1, trained=("online",), shared=("online",))


def test_out_of_memory_halves_the_chunk_and_the_gradient_is_the_same(caplog):
    with torch.random.fork_rng():
        net = _net("batch", dropout=0.5)
        twin = deepcopy(net)
        trainable(net, SCARCE), trainable(twin, SCARCE)
        state = torch.get_rng_state()
        chunks = chunked.Chunks(8)
        chunks(net, SCARCE, _pair(8))
        torch.set_rng_state(state)
        chunked.backward(twin, FOLLOWING, _pair(8), 2)
    assert chunks.chunk == 2
    assert torch.equal(_gradient(net), _gradient(twin))
    assert all(torch.equal(net.state_dict()[key], value) for key, value in twin.state_dict().items())
    assert "training continues in chunks of 2 images" in caplog.text


class Failing(Following):
    """Fails in the second pass, after the running statistics have changed."""

    def represent(self, net, a, b):
        if torch.is_grad_enabled() and self.calls:
            raise torch.OutOfMemoryError("out of memory")
        self.calls.append(1)
        return super().represent(net, a, b)

    calls: list = []  # noqa: RUF012


def test_an_error_restores_the_running_statistics(monkeypatch):
    monkeypatch.setattr(Failing, "calls", [])
    net = _net("batch").train()
    before = deepcopy(net.state_dict())
    stage = Failing(name="x", rounds=1, epochs=1, trained=("online",), shared=("online",))
    with pytest.raises(torch.OutOfMemoryError):
        chunked.backward(net, stage, _pair(6), 3)
    assert Failing.calls
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_single_image_that_does_not_fit_is_an_error(monkeypatch):
    monkeypatch.setattr(Scarce, "represent", _never)
    with pytest.raises(torch.OutOfMemoryError):
        chunked.Chunks(3)(_net(), SCARCE, _pair(4))


def _never(self, net, a, b):
    raise torch.OutOfMemoryError("out of memory")


def test_only_batch_norm_outside_frozen_parts_normalises_by_chunk():
    net = Network(Branch(ConvNetOptions(width=4, norm="batch").build(1, 8), nn.Linear(32, 4)))
    assert chunked.normalises_by_chunk(net)
    assert not chunked.normalises_by_chunk(net, ["online.encoder"])
    assert not chunked.normalises_by_chunk(_net("group"))


def _step_bytes(n, chunk):
    encoder = ConvNetOptions(width=8, norm="group").build(1, 32)
    method = METHODS["fedmcc"]()
    net, (stage,) = method.build(encoder, encoder.features, 4), method.stages()
    trainable(net, stage)
    a, b = torch.rand(2, n, 1, 32, 32)
    if chunk is None:
        return peak_bytes(lambda: stage.loss(stage.represent(net, a, b)).backward(), CPU)
    return peak_bytes(lambda: chunked.backward(net, stage, chunked.StoredBatch(a, b), chunk), CPU)


def test_only_the_memory_of_the_outputs_grows_with_the_batch():
    few, many = (_step_bytes(n, 32) for n in (64, 512))
    outputs = 4 * 128 * 4  # bytes per image: four projections
    assert many - few <= (512 - 64) * outputs
    assert _step_bytes(512, None) > 7 * _step_bytes(64, None)


def test_nothing_is_logged_without_errors(caplog):
    caplog.set_level(logging.DEBUG)
    chunked.Chunks(2)(_net(), FOLLOWING, _pair(4))
    assert not caplog.records
