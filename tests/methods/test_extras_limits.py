"""Extras that no client's images can give are refused; those at the limits are accepted."""

import pytest
import torch

from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.federated_kmeans import Centroids, FederatedKMeans
from fedmcc.methods.informative import InformativeClustering, InformativeMerging
from fedmcc.methods.whitening import Whitening
from fedmcc.numerics.matrices import is_positive_semidefinite, upper_triangle

IMAGES, FEATURES, PROTOTYPES = 12, 3, 4
WEIGHTS = {
    f"{HEAD}.whitening.mean": torch.zeros(FEATURES),
    f"{HEAD}.whitening.axes": torch.eye(2, FEATURES),
    f"{HEAD}.vectors.weight": torch.zeros(PROTOTYPES, 2),
    f"{HEAD}.groups": torch.eye(PROTOTYPES),
    f"{HEAD}.marginal": torch.full((PROTOTYPES,), 0.25),
}


def _error(stage, **extras):
    return stage.extras_error(Update(0, stage.name, 1, IMAGES, None, WEIGHTS, extras))


def _centroids(sizes, smallest=1):
    rows = torch.zeros(len(sizes), 2)
    stage = Centroids(method=FederatedKMeans(smallest=smallest))  # twice as many centroids as prototypes
    return _error(stage, centroids=rows, sizes=torch.tensor(sizes))


@pytest.mark.parametrize("sizes", [[12], [2] * 4 + [1] * 4, [5, 7]])
def test_centroids_of_all_images_are_accepted(sizes):
    assert _centroids(sizes) == ""


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([0] * 99_999 + [12], "It has 100000 centroids; at most 8 are allowed."),
        ([2] * 3 + [1] * 6, "It has 9 centroids; at most 8 are allowed."),
        ([12, 0], "Its centroids represent fewer images than 1, the smallest number."),
        ([13, -1], "The sizes of its centroids do not sum to its number of images."),
        ([2**62, 2**62, 2**62, 2**62, 12], "The sizes of its centroids do not sum to its number of images."),
    ],
)
def test_more_or_smaller_centroids_than_asked_for_are_refused(sizes, reason):
    assert _centroids(sizes) == reason


def test_a_client_may_send_one_centroid_below_the_smallest_size_but_not_two():
    assert _centroids([12], smallest=20) == ""
    assert "fewer images than 7" in _centroids([6, 6], smallest=7)


def _moments(first, second, count=IMAGES):
    return {
        "first": torch.tensor(first, dtype=torch.float64),
        "second": torch.tensor(second, dtype=torch.float64),
        "count": torch.tensor(count, dtype=torch.float64),
    }


EQUAL = [[12.0, 0, 0], [0, 0, 0], [0, 0, 0]]  # twelve times the first unit vector


def test_moments_of_equal_images_are_accepted_and_whitened_to_finite_numbers():
    moments = _moments([12.0, 0, 0], EQUAL)
    assert _error(Whitening(), **moments) == ""
    update = Update(0, "whitening", 1, IMAGES, None, WEIGHTS, moments)
    combined = Whitening().combine([update], WEIGHTS)
    assert all(torch.isfinite(value).all() for value in combined.weights.values())


@pytest.mark.parametrize(
    "moments",
    [
        _moments([0.0, 0, 0], [[-12.0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        _moments([0.0, 0, 0], [[4.0, 9, 0], [0, 4, 0], [0, 0, 4]]),
        _moments([0.0, 0, 0], [[4.0, 9, 0], [9, 4, 0], [0, 0, 4]]),
        _moments([12.0, 0, 0], [[0.0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        _moments([1e17, 0, 0], EQUAL),
        _moments([12.0, 0, 0], [[24.0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        _moments([12.0, 0, 0], EQUAL, count=24),
    ],
    ids=["negative", "asymmetric", "indefinite", "mean alone", "huge mean", "too long", "count"],
)
def test_moments_of_no_unit_vectors_are_refused(moments):
    assert _error(Whitening(), **moments) == "Its moments are not those of one unit vector per image."


@pytest.mark.parametrize(("shift", "valid"), [(0.0, True), (2.0, False)])
def test_affinities_must_be_positive_semidefinite(shift, valid):
    affinity = torch.full((PROTOTYPES, PROTOTYPES), IMAGES / PROTOTYPES**2, dtype=torch.float64)
    affinity += shift * (torch.eye(PROTOTYPES).flip(0) - torch.eye(PROTOTYPES)) / PROTOTYPES
    assert (affinity >= 0).all()
    stage, histogram = InformativeMerging(method=InformativeClustering()), torch.full((PROTOTYPES,), 3.0)
    sent = {"affinity": upper_triangle(affinity).float(), "histogram": histogram}
    assert (_error(stage, **sent) == "") == valid


@pytest.mark.parametrize("smallest", [-1e-3, -1e-9, 0.0, 1.0])
def test_semidefiniteness_agrees_with_the_eigenvalues(smallest):
    basis, _ = torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64))
    values = torch.linspace(smallest, 3.0, 20, dtype=torch.float64)
    assert is_positive_semidefinite(basis @ values.diag() @ basis.T, 1e-6) == (smallest > -1e-6)
