import pytest

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.methods.choosing import MOST_CLUSTERS, chooses, most_clusters


@pytest.mark.parametrize("method", ["fedmcc", "fedbyol"])
def test_auto_sets_the_largest_number_and_lets_the_clustering_choose(method):
    config = parse({"clusters": "auto", "method": {"name": method}})
    assert (config.general.clusters, config.clustering.choose) == (MOST_CLUSTERS, True)
    assert chooses(config.clustering)
    assert not chooses(parse({"clusters": 5, "method": {"name": method}}).clustering)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"clusters": "auto", "method": {"name": "mcc"}}, "clusters is 'auto', but this clustering cannot"),
        ({"clusters": "auto", "clustering": {"name": "kmeans"}}, "set clustering.name to informative"),
        ({"clusters": "many"}, "clusters is 'many'"),
    ],
)
def test_what_cannot_choose_is_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        parse(table)


@pytest.mark.parametrize(("images", "expected"), [(0, 30), (3, 2), (75, 7), (10_000, 30)])
def test_the_largest_number_fits_the_images(images, expected):
    assert most_clusters(30, images) == expected
