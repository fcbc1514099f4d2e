import math

import numpy as np
import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.methods.fedsimclr import FedSimCLR, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.training.loop import Training, train, trainable


def _setup(**fields):
    method = FedSimCLR(hidden=16, projections=8, **fields)
    encoder = ConvNetOptions(width=4, norm=method.norm).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[0]


def _naive(z_a, z_b, temperature):
    """NT-Xent in loops: identify each row's partner among the 2n - 1 other rows."""
    rows = torch.cat([z_a, z_b]).double().numpy()
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    n, total = len(z_a), 0.0
    for i in range(2 * n):
        logits = [math.exp(rows[i] @ rows[j] / temperature) for j in range(2 * n) if j != i]
        total -= math.log(math.exp(rows[i] @ rows[(i + n) % (2 * n)] / temperature) / sum(logits))
    return total / (2 * n)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_loss_equals_a_loop_over_all_pairs(temperature):
    _, stage = _setup(temperature=temperature)
    z_a, z_b = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(3))
    assert stage.loss(Outputs(z_a, z_b)).item() == pytest.approx(_naive(z_a, z_b, temperature), rel=1e-4)


def test_the_default_temperature_is_the_published_one_and_the_whole_branch_is_shared():
    net, stage = _setup()
    assert FedSimCLR().temperature == 0.07
    assert stage.shared == stage.trained == ("online",)
    assert set(dict(net.named_children())) == {"online"}


def test_with_group_normalisation_rows_depend_on_their_own_image_alone():
    net, stage = _setup(norm="group")
    a, b = torch.rand(2, 6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    whole, part = stage.represent(net, a, b), stage.represent(net, a[1:4], b[1:4])
    for one, expected in zip(part, whole, strict=True):
        torch.testing.assert_close(one, expected[1:4], rtol=1e-5, atol=1e-6)


def test_training_lowers_the_loss():
    net, stage = _setup()
    a = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    optimizer = Training(learning_rate=3e-3).build_optimizer(trainable(net, stage))
    losses = list(train(net, stage, [(a, a.flip(3))] * 20, optimizer))
    assert losses[-1] < 0.8 * losses[0]


def test_an_invalid_temperature_is_refused():
    with pytest.raises(InputError, match=r"method\.temperature"):
        FedSimCLR(temperature=0.0)
