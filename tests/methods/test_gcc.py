import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.losses import contrast
from fedmcc.methods.gcc import GCC, Outputs, edge_weights, graph_contrast
from fedmcc.methods.inputs import Overview
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.numerics.neighbours import degrees
from fedmcc.views import Views


def _built(**options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), GCC(hidden=8, projections=4, **options)
    net, (_, stage) = method.build(encoder, encoder.features, 3), method.stages()
    net.notes = stage.first_notes(net, 12)
    return net.eval(), stage


def _prepare(net, stage, epoch=0):
    images = Views().plain(torch.from_numpy(Synthetic(samples=12, size=8, channels=1).load().images))
    stage.prepare(net, Overview(lambda: iter(images.split(5)), epoch, 20, seed=0))
    return images


def _unit(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=draw, dtype=torch.float64), dim=-1)


def _outputs(z_a, z_b, positives, neighbours):
    y = torch.rand(len(z_a), 3).softmax(dim=1)
    return Outputs(z_a, z_b, positives, y, y, torch.arange(len(z_a)), neighbours)


def test_without_neighbours_it_is_nt_xent_anchored_on_the_first_view():
    z_a, z_b = _unit(2, 7, 4)
    own = (z_a * z_b).sum(dim=1, keepdim=True) / 0.1
    found = graph_contrast(_outputs(z_a, z_b, own, torch.empty(7, 0, dtype=torch.int64)), 0.1)
    torch.testing.assert_close(found, contrast(z_a, z_b, 0.1, positive_in_denominator=True))


def test_the_contrast_is_that_of_a_loop_over_images_and_neighbours():
    (z_a, z_b), positives = _unit(2, 6, 4), _unit(6, 3, seed=1)
    near, total = [{1, 2}, {0, 3}, {4, 5}, {2, 9}, {7, 8}, {4, 0}], 0.0
    for i in range(6):
        numerator = sum(math.exp(value) for value in positives[i].tolist())
        others = [j for j in range(6) if j != i and j not in near[i]]
        negatives = sum(math.exp(float(z_a[i] @ z[j]) / 0.5) for j in others for z in (z_a, z_b))
        total -= math.log(numerator / (numerator + negatives)) / 6
    found = graph_contrast(_outputs(z_a, z_b, positives, torch.tensor([sorted(j) for j in near])), 0.5)
    assert found.item() == pytest.approx(total)


def test_the_weights_are_those_of_the_dense_laplacian():
    net, stage = _built(neighbours=3)
    _prepare(net, stage)
    neighbours, adjacent = net.notes["neighbours"], torch.zeros(12, 12, dtype=torch.float64)
    for i in range(12):
        adjacent[i, neighbours[i]] = adjacent[neighbours[i], i] = 1
    degree = adjacent.sum(dim=1)
    laplacian = torch.eye(12) - degree.rsqrt().diag() @ adjacent @ degree.rsqrt().diag()
    assert degrees(neighbours).tolist() == degree.tolist()
    found = edge_weights(degree, torch.arange(12), neighbours)
    torch.testing.assert_close(found, -laplacian.gather(1, neighbours).to(found))


def test_partners_share_out_the_nearest_images_and_are_found_every_few_epochs():
    net, stage = _built(neighbours=5, interval=4)
    images = _prepare(net, stage)
    z = F.normalize(net.online.instance(net.online.encoder(images)), dim=1)
    similarity = (z @ z.T).fill_diagonal_(-2)
    nearest = similarity.argsort(dim=1, descending=True)[:, :5]
    assert net.notes["partners"].shape == (12, 2, 3)
    for i in range(12):
        seen = [set(candidates) for candidates in net.notes["partners"][i].tolist()]
        assert seen[0] | seen[1] == set(nearest[i].tolist())
    before = net.notes["partners"]
    _prepare(net, stage, epoch=3)
    assert net.notes["partners"] is before
    _prepare(net, stage, epoch=4)
    assert net.notes["partners"] is not before


@torch.no_grad()
def test_the_positives_are_the_other_view_and_the_partners_by_their_edges():
    net, stage = _built(neighbours=2, graph_temperature=0.2)
    _prepare(net, stage)
    views, rows = torch.rand(4, 3, 1, 8, 8), torch.tensor([4, 0, 7])
    partners = net.notes["neighbours"][rows]
    found = stage.represent(net, *views, rows, partners)
    z = [F.normalize(net.online.instance(net.online.encoder(view)), dim=1) for view in views]
    for i in range(3):
        degree = net.notes["degree"]
        weights = [1, *((degree[rows[i]] * degree[j]).item() ** -0.5 for j in partners[i])]
        expected = [float(z[0][i] @ z[p + 1][i]) / 0.2 + math.log(weights[p]) for p in range(3)]
        assert found.positives[i].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value"), [("neighbours", 0), ("interval", 0), ("balance", 0.0), ("temperature", 0.0)]
)
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is 0"):
        GCC(**{field: value})
