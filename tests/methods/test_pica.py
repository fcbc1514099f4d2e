import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.methods.over_clustering import Outputs
from fedmcc.methods.pica import PICA, partition_uncertainty


@pytest.mark.parametrize("k", [2, 10])
def test_the_uncertainty_of_a_perfect_partition_is_the_smallest(k):
    y = F.one_hot(torch.arange(3 * k) % k, k).double()
    expected = -math.log(math.e / (math.e + k - 1))
    assert partition_uncertainty(y, y).item() == pytest.approx(expected)


def test_the_uncertainty_is_that_of_a_loop_over_columns():
    a, b = torch.rand(2, 7, 4, dtype=torch.float64).softmax(dim=2)
    total = 0.0
    for k in range(4):
        scores = [math.exp(float(F.cosine_similarity(a[:, k], b[:, m], dim=0))) for m in range(4)]
        total -= math.log(scores[k] / sum(scores))
    assert partition_uncertainty(a, b).item() == pytest.approx(total / 4)


def test_the_loss_repeats_images_for_each_view_and_adds_the_imbalance():
    (stage,) = PICA(balance=3.0).stages()
    y, over = torch.rand(5, 1, 4).softmax(dim=2), torch.rand(5, 1, 6).softmax(dim=2)
    views, over_views = torch.rand(5, 2, 1, 4).softmax(dim=3), torch.rand(5, 2, 1, 6).softmax(dim=3)
    expected = 0.0
    for plain, other in ((y, views), (over, over_views)):
        twice = torch.cat([plain[:, 0], plain[:, 0]])
        expected += partition_uncertainty(twice, torch.cat([other[:, 0, 0], other[:, 1, 0]])).item()
        sizes = plain[:, 0].mean(dim=0)
        expected += 3 * (math.log(len(sizes)) + float((sizes * sizes.log()).sum()))
    assert stage.loss(Outputs(y, views, over, over_views)).item() == pytest.approx(expected, rel=1e-5)
