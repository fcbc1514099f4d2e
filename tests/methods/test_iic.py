import math

import pytest
import torch
from sklearn.metrics import mutual_info_score
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.iic import IIC, information
from fedmcc.methods.inputs import PLAIN, VIEW


def _hard(labels, clusters):
    return F.one_hot(torch.as_tensor(labels), clusters).double()


@pytest.mark.parametrize("k", [2, 5])
def test_agreeing_and_equal_clusters_have_log_k_and_independent_ones_0(k):
    labels = torch.arange(4 * k) % k
    y = _hard(labels, k)[:, None]
    assert information(y, y[:, None], 1.0).item() == pytest.approx(math.log(k), abs=1e-5)
    independent = _hard(torch.arange(k).repeat_interleave(k), k)[:, None]
    other = _hard(torch.arange(k).repeat(k), k)[:, None, None]
    assert information(independent, other, 1.0).item() == pytest.approx(0, abs=1e-5)


def test_it_is_the_mutual_information_of_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    a = torch.randint(4, (300,), generator=draw)
    b = torch.where(torch.rand(300, generator=draw) < 0.7, a, torch.randint(4, (300,), generator=draw))
    both = torch.cat([a, b]), torch.cat([b, a])  # the joint distribution is made symmetric
    found = information(_hard(a, 4)[:, None], _hard(b, 4)[:, None, None], 1.0)
    assert found.item() == pytest.approx(mutual_info_score(*both), abs=1e-5)


def test_several_heads_and_views_are_those_of_a_loop():
    y, views = torch.rand(6, 2, 3).softmax(dim=2), torch.rand(6, 4, 2, 3).softmax(dim=3)
    found = information(y, views, 1.5)
    for head in range(2):
        joint = sum(torch.outer(y[i, head], views[i, r, head]) for i in range(6) for r in range(4)) / 24
        joint = (joint + joint.T) / 2
        expected = sum(
            float(joint[k, m] * (joint[k, m] / (joint[k].sum() * joint[:, m].sum()) ** 1.5).log())
            for k in range(3)
            for m in range(3)
        )
        assert found[head].item() == pytest.approx(expected, rel=1e-4)


def test_every_image_is_seen_once_and_its_views_as_often_as_asked():
    assert IIC(repeats=3).stages()[0].sees == (PLAIN, VIEW, VIEW, VIEW)


@pytest.mark.parametrize(("field", "value"), [("heads", 0), ("over", 0.0), ("repeats", 0), ("balance", 0.0)])
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is 0"):
        IIC(**{field: value})
