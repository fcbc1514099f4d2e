import pytest

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.methods.choosing import MOST_CLUSTERS, chooses, most_clusters


def test_auto_sets_the_largest_number_and_lets_the_method_choose():
    config = parse({"clusters": "auto"})
    assert (config.general.clusters, config.method.choose) == (MOST_CLUSTERS, True)
    assert chooses(config.method, config.clustering)
    assert not chooses(*(getattr(parse({"clusters": 5}), name) for name in ("method", "clustering")))


def test_auto_lets_the_clustering_choose_after_a_method_that_only_learns_features():
    config = parse({"clusters": "auto", "method": {"name": "fedbyol"}, "clustering": {"name": "spectral"}})
    assert config.clustering.choose


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"clusters": "auto", "method": {"name": "mcc"}}, "neither the method nor the clustering can choose"),
        ({"clusters": "many"}, "clusters is 'many'"),
        ({"clusters": "auto", "method": {"members": 1}}, "set method.members to 2 or more"),
        ({"clusters": "auto", "method": {"polish_rounds": 1}}, "set method.polish_rounds to 0"),
    ],
)
def test_what_cannot_choose_is_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        parse(table)


@pytest.mark.parametrize(("images", "expected"), [(0, 30), (3, 2), (75, 7), (10_000, 30)])
def test_the_largest_number_fits_the_images(images, expected):
    assert most_clusters(30, images) == expected
