"""The vectors that clients mask, and the averages that the server computes from their sum."""

import pytest
import torch

from fedmcc.federation.secure_aggregation.vectors import Layout, Weighting
from fedmcc.messages import Update
from fedmcc.methods.extras import Additive

IMAGES = {0: 900, 1: 100}
EXTRAS = {
    "mean": Additive(torch.float64, (2,)),
    "sum": Additive(torch.float64, (2,), is_sum=True),
}


def _updates():
    """Two clients whose images have the statistics (1, 0) and (0, 1)."""
    for client, samples in IMAGES.items():
        one = torch.eye(2, dtype=torch.float64)[client]
        yield Update(client, "stage", 1, samples, None, {}, {"mean": one, "sum": samples * one})


@pytest.mark.parametrize(("clip", "expected"), [(None, (0.9, 0.1)), (1.0, (0.5, 0.5))])
def test_clients_have_the_same_weight_in_sums_as_in_means(clip, expected):
    layout = Layout({}, EXTRAS, Weighting(IMAGES, clip))
    updates = list(_updates())
    total = layout.encode(updates[0]) + layout.encode(
        updates[1]
    )  # integers modulo 2³², as the masks leave them
    average = layout.decode(total, IMAGES)
    for value in average.extras.values():
        torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)
    replaced = average.replace_in(updates[0])
    torch.testing.assert_close(replaced.extras["sum"], 900 * average.extras["sum"])
