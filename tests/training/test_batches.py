from itertools import permutations

import numpy as np
import pytest
import torch

from fedmcc.methods.inputs import PARTNER, PARTNER_ROW, PLAIN, ROW, VIEW, Overview
from fedmcc.training.batches import BatchSource, lazy_pairs
from fedmcc.views import Views, preset

CPU = torch.device("cpu")
ALL = (VIEW, PLAIN, PARTNER, ROW, PARTNER_ROW)


def _numbered(n):
    """Images of one grey level each, their number."""
    return np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 1, 8, 8)).copy()


def _noise(n):
    return np.random.default_rng(0).integers(0, 256, (n, 3, 12, 12), dtype=np.uint8)


def _levels(images):
    return (images.amax(dim=(1, 2, 3)) * 255).round().long()


def _epoch(images, sees, views=None, notes=None, seed=0):
    source = BatchSource(images, views or Views(), 4, CPU)
    return list(source.epoch(sees, notes or {}, torch.Generator().manual_seed(seed)))


def _candidates(n, partners, count):
    """Candidate c of partner j of image i is image (i + 1 + j * count + c) mod n."""
    offsets = 1 + torch.arange(partners * count).view(1, partners, count)
    return {"partners": (torch.arange(n)[:, None, None] + offsets) % n}


def test_a_row_is_the_number_of_the_image():
    for batch in _epoch(_numbered(12), (PLAIN, ROW)):
        plain, rows = batch[:]
        assert torch.equal(_levels(plain), rows)


def test_over_an_epoch_every_row_comes_once():
    rows = torch.cat([batch[:][0] for batch in _epoch(_numbered(12), (ROW,))])
    assert rows.dtype == torch.int64
    assert sorted(rows.tolist()) == list(range(12))


def test_a_plain_image_is_resized_and_scaled_and_nothing_else():
    images, views = _noise(8), preset("photo")
    for batch in _epoch(images, (ROW, PLAIN, VIEW), views):
        rows, plain, view = batch[:]
        assert torch.equal(plain, torch.from_numpy(images[rows.numpy()]).float() / 255)
        assert not torch.equal(plain, view)


def test_the_jth_partner_is_one_of_the_candidates_at_j():
    n, count, sees = 40, 3, (PARTNER, ROW, PARTNER, PARTNER_ROW)
    chosen = set()
    for seed in range(4):
        for batch in _epoch(_numbered(n), sees, notes=_candidates(n, 2, count), seed=seed):
            first, rows, second, numbers = batch[:]
            assert numbers.dtype == torch.int64
            assert torch.equal(numbers, torch.stack([_levels(first), _levels(second)], dim=1))
            offsets = (numbers - rows[:, None] - 1) % n - torch.tensor([0, count])
            assert ((offsets >= 0) & (offsets < count)).all()
            chosen |= {(j, int(offset)) for row in offsets for j, offset in enumerate(row)}
    assert chosen == {(j, offset) for j in range(2) for offset in range(count)}  # all are drawn


@pytest.mark.parametrize("sees", [*permutations(ALL, 2), ALL, (VIEW,) * 3, (PLAIN, PARTNER, VIEW, PARTNER)])
def test_any_slice_of_any_batch_gives_the_same_rows(sees):
    notes = _candidates(8, max(1, sees.count(PARTNER)), 2)
    for batch in _epoch(_noise(8), sees, preset("photo"), notes):
        whole = batch[:]
        assert len(batch) == len(whole[0]) == 4
        for rows in (slice(0, 3), slice(3, 4), slice(2, None)):
            for part, tensor in zip(batch[rows], whole, strict=True):
                torch.testing.assert_close(part, tensor[rows], rtol=0, atol=1e-6)


def test_sights_without_random_numbers_do_not_change_the_views():
    for one, other in zip(
        _epoch(_noise(8), (VIEW, VIEW), preset("photo")),
        _epoch(_noise(8), (ROW, VIEW, PLAIN, VIEW), preset("photo")),
        strict=True,
    ):
        (a, b), (_, c, _, d) = one[:], other[:]
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_a_pair_of_views_draws_the_order_and_then_each_view():
    images, views = _noise(4), preset("photo")
    draw, (batch,) = torch.Generator().manual_seed(3), lazy_pairs(_noise(4), views, 4, _draw(3), CPU)
    ordered = torch.from_numpy(images[torch.randperm(4, generator=draw).numpy()])
    for view in batch[:]:
        assert torch.equal(view, views(ordered, draw))


def _draw(seed):
    return torch.Generator().manual_seed(seed)


def test_an_overview_has_the_features_of_all_images_in_order():
    images = torch.rand(7, 1, 2, 2)
    overview = Overview(lambda: iter(images.split(3)), epoch=3, epochs=12, seed=0)
    for _ in range(2):  # it can be read again
        assert torch.equal(overview.features(lambda batch: batch.flatten(1)), images.flatten(1))
    assert overview.passed == 0.25
