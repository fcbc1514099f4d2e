"""What every stage that trains promises about chunks: registering a method or a clustering is testing it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedmcc.methods.inputs import Sight
from fedmcc.networks.convnet import ConvNet, ConvNetOptions
from fedmcc.training import chunked
from fedmcc.training.loop import Training, train, trainable

N = 11
CHUNKS = (1, 3, N - 1, N)
CHUNKS_OF = {torch.float32: (3,), torch.float64: CHUNKS}  # double precision shows that all of them are exact
SMALL_GRADIENT = 0.1  # smaller ones, such as of information that is 0 at first, have rounding errors of this
EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}


def _built(case, norm, dtype=torch.float64):
    net, stage = case.build(norm)
    trainable(net, stage)
    for name, value in net.notes.items():
        net.notes[name] = value.to(dtype) if value.is_floating_point() else value
    return net.to(dtype), stage


def _freeze_statistics(net):
    """Running statistics that differ from the first ones, and are used."""
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.05, 0.2)
            layer.eval()


def _gradient(net):
    """The gradients by name; they are cleared."""
    found = {key: value.grad for key, value in net.named_parameters() if value.grad is not None}
    net.zero_grad()
    return found


def _in_one_pass(net, stage, batch):
    outputs = stage.represent(net, *batch[:])
    loss = stage.loss(outputs)
    loss.backward()
    return loss.detach(), outputs, _gradient(net)


def _error(found, expected):
    assert found.keys() == expected.keys()
    apart = sum((found[key] - expected[key]).square().sum() for key in expected)
    length = float(sum(value.square().sum() for value in expected.values())) ** 0.5
    return float(apart.sqrt()) / max(length, SMALL_GRADIENT)


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("dtype", EXACT)
def test_chunks_have_the_gradient_of_the_whole_batch(training_case, norm, dtype):
    with torch.random.fork_rng():
        net, stage = _built(training_case, norm, dtype)
        _freeze_statistics(net)
    loss, outputs, expected = _in_one_pass(net, stage, training_case.batch(N, dtype))
    for chunk in CHUNKS_OF[dtype]:
        result = chunked.backward(net, stage, training_case.batch(N, dtype), chunk)
        assert _error(_gradient(net), expected) < EXACT[dtype]
        torch.testing.assert_close(result.loss, loss, rtol=EXACT[dtype], atol=EXACT[dtype])
        for own, other in zip(result.outputs, outputs, strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=1e-4, atol=1e-5)


def test_autograd_and_the_closed_form_give_the_same_gradient(training_case):
    net, stage = _built(training_case, "group")
    chunked.backward(net, stage, training_case.batch(N, torch.float64), 4, closed_form=True)
    expected = _gradient(net)
    chunked.backward(net, stage, training_case.batch(N, torch.float64), 4, closed_form=False)
    assert _error(_gradient(net), expected) < 1e-10


class Explicit(nn.Module):
    """BatchNorm of a whole batch that normalises chunks by themselves, and tracks the whole."""

    def __init__(self, norm, chunks):
        super().__init__()
        self.norm, self.chunks = norm, chunks

    def forward(self, x):
        norm, dims = self.norm, [dim for dim in range(x.dim()) if dim != 1]
        with torch.no_grad():
            norm.running_mean.lerp_(x.mean(dim=dims), norm.momentum)
            norm.running_var.lerp_(x.var(dim=dims), norm.momentum)
            norm.num_batches_tracked += 1
        parts = [F.batch_norm(x[rows], None, None, norm.weight, norm.bias, True) for rows in self.chunks]
        return torch.cat(parts)


def _explicit(net, chunks):
    """The network with explicit chunks in place of BatchNorm; names gain ".norm"."""
    for path, layer in list(net.named_modules()):
        if isinstance(layer, _BatchNorm) and layer.training:
            net.set_submodule(path, Explicit(layer, chunks))
    return net


def _renamed(state):
    return {key.replace(".norm.", "."): value for key, value in state.items()}


def test_ghost_statistics_are_those_of_a_network_that_normalises_the_chunks(training_case):
    (net, stage), (twin, _) = (_built(training_case, "batch") for _ in range(2))
    _explicit(twin, chunked.split(N, 4))
    _, _, expected = _in_one_pass(twin, stage, training_case.batch(N, torch.float64))
    chunked.backward(net, stage, training_case.batch(N, torch.float64), 4)
    assert _error(_gradient(net), _renamed(expected)) < 1e-10
    states = net.state_dict(), _renamed(twin.state_dict())
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        torch.testing.assert_close(states[0][key], states[1][key], rtol=1e-10, atol=1e-12)


def test_a_training_step_in_chunks_is_the_step_of_the_whole_batch(training_case):
    (net, stage), (twin, _) = (_built(training_case, "group") for _ in range(2))
    batches = [training_case.batch(N, torch.float64)[:]] * 3
    for each, chunks in ((net, chunked.Chunks(4)), (twin, None)):
        optimizer = Training(optimizer="sgd", learning_rate=0.1).build_optimizer(trainable(each, stage))
        losses = list(train(each, stage, batches, optimizer, chunks))
    assert len(losses) == 3
    states = net.state_dict(), twin.state_dict()
    for key in states[0]:  # queues and targets included
        torch.testing.assert_close(states[0][key], states[1][key], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(net.notes, twin.notes, rtol=1e-8, atol=1e-10)


def _images_seen(net, work, with_gradient=1):
    """How many images each encoder sees in some work; those with gradient count as often as given."""
    seen, hooks = {}, []
    for path, layer in net.named_modules():
        if isinstance(layer, ConvNet):
            seen[path] = []
            hooks.append(
                layer.register_forward_hook(
                    lambda layer, inputs, _, path=path: seen[path].append(
                        len(inputs[0]) * (with_gradient if _learns(layer) else 1)
                    )
                )
            )
    work()
    for hook in hooks:
        hook.remove()
    return {path: sum(counts) for path, counts in seen.items()}


def _learns(layer):
    trained = any(parameter.requires_grad for parameter in layer.parameters())
    return trained and torch.is_grad_enabled()


def test_what_has_no_gradient_passes_once_and_what_has_one_twice(training_case):
    net, stage = _built(training_case, "group")
    batch = training_case.batch(N, torch.float64)
    expected = _images_seen(net, lambda: stage.represent(net, *batch[:]), with_gradient=2)
    found = _images_seen(net, lambda: chunked.backward(net, stage, batch, 4))
    on_images = any(sight not in (Sight.ROW, Sight.PARTNER_ROW) for sight in stage.sees)
    assert sum(expected.values()) >= (N if on_images else 0)
    assert found == expected


def test_a_dictionary_and_a_base_model_are_exact_as_well(cases):
    net, stage = _built(case := next(case for case in cases if case.name == "fedca"), "group")
    draw = torch.Generator().manual_seed(1)
    net.foreign = F.normalize(torch.randn(9, 32, generator=draw, dtype=torch.float64), dim=1)
    net.base = ConvNetOptions(width=4, norm="group").build(1, 8).double().requires_grad_(False)
    stage = replace(stage, frozen=("base",))
    _, _, expected = _in_one_pass(net, stage, case.batch(N, torch.float64))
    for chunk in CHUNKS:
        chunked.backward(net, stage, case.batch(N, torch.float64), chunk)
        assert _error(_gradient(net), expected) < 1e-10
