"""The head of prototypes: a softmax of cosines, for images of any owner and of one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmcc.networks.prototypes import OWN, Prototypes, trim, trim_as

POINTS, UNUSED = 9, [2, 5]


def _head():
    """A head of six prototypes, of which two are unused, and features."""
    head = Prototypes(features=7, clusters=3, count=6, axes=4, temperature=0.1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in (head.vectors.weight, head.whitening.axes, head.whitening.mean):
            value.copy_(torch.randn(value.shape, generator=draw))
        head.vectors.weight[UNUSED] = 0
        head.groups.copy_(F.normalize(torch.rand(6, 3, generator=draw), p=1, dim=1))
        head.groups[UNUSED] = 0
        head.marginal.copy_(torch.tensor([0.5, 0.3, 0.2]))
    return head, torch.randn(POINTS, 7, generator=draw)


def test_an_assignment_is_the_softmax_of_cosines_in_whitened_axes():
    head, features = _head()
    points = (F.normalize(features, dim=1) - head.whitening.mean) @ head.whitening.axes.T
    used = [row for row in range(6) if row not in UNUSED]
    cosines = F.cosine_similarity(points[:, None], head.vectors.weight[used], dim=2)
    p = (cosines / 0.1).softmax(dim=1)
    torch.testing.assert_close(head.assign_to_prototypes(features)[:, used], p)
    torch.testing.assert_close(head(features), p @ head.groups[used])


def test_unused_prototypes_have_no_part_of_any_image():
    head, features = _head()
    p = head.assign_to_prototypes(features).detach()
    assert not p[:, UNUSED].any()
    torch.testing.assert_close(p.sum(dim=1), torch.ones(POINTS))


def test_at_its_owner_an_image_is_assigned_by_bayes_rule_with_the_owners_mixture():
    """P(c | x) = Σ_j p_j w_c P(c | j) / W_c / Σ_d w_d P(d | j) / W_d, prototype by prototype."""
    head, features = _head()
    p = head.assign_to_prototypes(features).detach()
    mixture = OWN * (p @ head.groups).mean(dim=0) + (1 - OWN) * head.marginal
    expected = torch.zeros(POINTS, 3)
    for j in set(range(6)) - set(UNUSED):
        odds = torch.tensor([float(head.groups[j, c] * mixture[c] / head.marginal[c]) for c in range(3)])
        expected += p[:, j, None] * odds / odds.sum()
    torch.testing.assert_close(head.at_owner(features), expected)
    torch.testing.assert_close(expected.sum(dim=1), torch.ones(POINTS))


def test_an_owner_with_the_mixture_of_all_images_assigns_as_without_an_owner():
    head, features = _head()
    head.marginal.copy_(head(features).mean(dim=0))
    torch.testing.assert_close(head.at_owner(features), head(features))


def test_an_owner_of_one_cluster_assigns_doubtful_images_to_it():
    head, features = _head()
    head.groups.copy_(torch.eye(3)[[0, 0, 1, 1, 2, 2]] * 0.4 + 0.2)
    head.marginal.fill_(1 / 3)
    own = features[head(features).argmax(dim=1) == 0]
    assert (head.at_owner(own)[:, 0] > head(own)[:, 0]).all()


def _choosing(used):
    head, features = _head()
    head.groups[:, used:] = 0
    head.marginal[used:] = 0
    head.trims = True
    return head, features


@pytest.mark.parametrize("used", [1, 2, 3])
def test_a_head_that_chooses_their_number_assigns_to_the_first_clusters_that_have_prototypes(used):
    head, features = _choosing(used)
    assert head.in_use == head(features).shape[1] == head.at_owner(features).shape[1] == used


def test_a_trimmed_head_has_the_chosen_number_and_the_same_assignments():
    head, features = _choosing(2)
    expected = head(features)
    trim(nn.Sequential(head))
    assert (head.groups.shape, head.marginal.shape, head.trims) == ((6, 2), (2,), False)
    assert head(features).equal(expected)


def test_a_head_is_trimmed_to_the_shapes_of_a_saved_one():
    head, _ = _choosing(3)
    trim_as(nn.Sequential(head), {"0.groups": (6, 2)})
    assert head.in_use == 2


def test_if_all_images_are_alike_all_prototypes_are_used_equally():
    head = Prototypes(4, 2, 6, 3, 0.1)
    torch.nn.init.zeros_(head.vectors.weight)
    assert head.assign_to_prototypes(torch.ones(5, 4)).allclose(torch.full((5, 6), 1 / 6))
