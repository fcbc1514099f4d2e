"""The head of prototypes: a mean of members, each a softmax of cosines."""

import torch
from torch.nn import functional as F

from fedmcc.networks.prototypes import Member, Prototypes

MEMBERS = (Member(count=4, axes=3), Member(count=6, axes=5))


def _head():
    head = Prototypes(features=7, clusters=2, members=MEMBERS, temperature=0.1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in (head.vectors.weight, head.whitening.axes, head.whitening.mean):
            value.copy_(torch.randn(value.shape, generator=draw))
    return head, torch.randn(9, 7, generator=draw)


def test_the_assignment_is_the_mean_of_the_members():
    head, features = _head()
    points = (F.normalize(features, dim=1) - head.whitening.mean) @ head.whitening.axes.T
    expected = torch.zeros(9, 2)
    for rows, axes in ((range(4), 3), (range(4, 10), 5)):
        cosines = F.cosine_similarity(points[:, None, :axes], head.vectors.weight[list(rows), :axes], dim=2)
        expected += (cosines / 0.1).softmax(dim=1) @ head.groups[list(rows)] / 2
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(expected.sum(dim=1), torch.ones(9))


def test_a_member_ignores_the_axes_beyond_its_own():
    head, features = _head()
    before = head.assign_to_prototypes(features)
    with torch.no_grad():
        head.vectors.weight[:4, 3:] = 100.0
    assert head.assign_to_prototypes(features).equal(before)
