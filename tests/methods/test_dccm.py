import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.dccm import DCCM, Outputs, label_loss
from fedmcc.methods.inputs import PLAIN, VIEW, Overview
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.critic import map_channels
from fedmcc.networks.pixels import PixelsOptions
from fedmcc.numerics.neighbours import partners_by_label
from fedmcc.views import Views


def _built(**options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), DCCM(hidden=8, critic=6, **options)
    net, (stage,) = method.build(encoder, encoder.features, 3), method.stages()
    net.notes = stage.first_notes(net, 12)
    return net.eval(), stage


def _assignments(n=5, k=3):
    draw = torch.Generator().manual_seed(0)
    return (3 * torch.randn(2, n, k, generator=draw, dtype=torch.float64)).softmax(dim=2)


def _cross_entropy(p, is_target):
    return -math.log(p if is_target else 1 - p)


def test_each_term_is_that_of_a_loop():
    _, stage = _built(similarity=0.8, confidence=0.7, label_weight=5.0, information=0.05)
    view, plain = _assignments()
    graph = labels = 0.0
    for i in range(5):
        for j in range(5):
            s = min(float(F.cosine_similarity(view[i], view[j], dim=0)), 1 - 1e-6)
            target = float(F.cosine_similarity(plain[i], plain[j], dim=0))
            graph += _cross_entropy(s, target >= 0.8) / 25
        if plain[i].max() >= 0.7:
            units = [_cross_entropy(float(view[i, k]), k == int(plain[i].argmax())) for k in range(3)]
            labels += sum(units) / 3 / 5
    information = torch.tensor([0.5, 1.0, 0.0, 2.0, 1.5], dtype=torch.float64)
    assert labels > 0
    assert label_loss(view, plain, 0.7).item() == pytest.approx(labels)
    found = stage.loss(Outputs(view, plain, information))
    assert found.item() == pytest.approx(graph + 5 * labels + 0.05 * 1.0)


@torch.no_grad()
def test_a_critic_of_zeros_has_a_loss_of_2_log_2():
    net, stage = _built()
    net.critic.last.weight.zero_()
    outputs = stage.represent(net, *torch.rand(4, 3, 1, 8, 8))
    torch.testing.assert_close(outputs.information, torch.full((3,), 2 * math.log(2)))


@torch.no_grad()
def test_the_information_is_that_of_a_loop_over_places():
    net, stage = _built()
    plain, view, same, other = torch.rand(4, 2, 1, 8, 8)
    found = stage.represent(net, plain, view, same, other)
    encoder, head, (first, second, last) = (
        net.online.encoder,
        net.online.cluster_projector,
        net.critic.children(),
    )
    for i in range(2):
        features = encoder(view[i : i + 1])
        v, scores = head[2](head[1](head[0](features)))[0], []
        for images in (view, same, other):
            maps, total = encoder.maps(images[i : i + 1])[0], 0.0
            places = [maps[:, y, x] for y in range(maps.shape[1]) for x in range(maps.shape[2])]
            for place in places:
                hidden = (first.weight[:, :, 0, 0] @ torch.cat([place, v])).relu()
                total += float(last.weight[0, :, 0, 0] @ (second.weight[:, :, 0, 0] @ hidden).relu())
            scores.append(total / len(places))
        own, near, far = (math.log1p(math.exp(s)) for s in (-scores[0], -scores[1], scores[2]))
        assert found.information[i].item() == pytest.approx(own / 2 + near / 2 + far, rel=1e-4)
        torch.testing.assert_close(found.view[i], head(features)[0])


@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0, 0], [0, 0, 0, 0, 0, 0, 3]])
def test_partners_are_others_of_the_cluster_and_images_of_other_clusters(labels):
    table = partners_by_label(torch.tensor(labels), 200, seed=1)
    for i, own in enumerate(labels):
        same = {j for j, label in enumerate(labels) if label == own and j != i} or {i}
        other = {j for j, label in enumerate(labels) if label != own}
        assert set(table[i, 0].tolist()) == same
        assert set(table[i, 1].tolist()) == other


def test_with_a_single_cluster_any_image_is_another():
    table = partners_by_label(torch.zeros(4, dtype=torch.int64), 100, seed=1)
    assert set(table[0, 1].tolist()) == {0, 1, 2, 3}


def test_partners_are_drawn_anew_from_the_clusters_of_the_images():
    net, stage = _built()
    images = Views().plain(torch.from_numpy(Synthetic(samples=12, size=8, channels=1).load().images))
    with torch.no_grad():
        stage.prepare(net, Overview(lambda: iter(images.split(5)), 0, 10, seed=4))
    labels = net.online.assign(net.online.encoder(images)).argmax(dim=1)
    assert torch.equal(net.notes["partners"], partners_by_label(labels, 8, seed=4))


def test_without_information_there_is_neither_a_critic_nor_a_partner():
    net, stage = _built(information=0.0)
    assert stage.sees == (PLAIN, VIEW)
    assert stage.trained == ("online",)
    assert not hasattr(net, "critic")
    assert not stage.represent(net, *torch.rand(2, 3, 1, 8, 8)).information.any()


def test_channels_of_maps_are_those_that_an_encoder_computes():
    for encoder in (ConvNetOptions(width=2).build(1, 8), PixelsOptions().build(3, 8)):
        assert map_channels(encoder) == encoder.maps(torch.zeros(2, *encoder.shape)).shape[1]
    with pytest.raises(InputError, match=r"no feature maps.*method\.information to 0"):
        map_channels(torch.nn.Flatten())


@pytest.mark.parametrize(("field", "value"), [("similarity", 1.5), ("critic", 0), ("information", -1.0)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        DCCM(**{field: value})
