import pytest

from fedmcc.data.partition import PARTITIONS
from fedmcc.errors import unknown
from fedmcc.methods import METHODS


@pytest.mark.parametrize(
    ("name", "meant"),
    [("simclr", "fedsimclr"), ("byol", "fedbyol"), ("moco", "fedmoco"), ("fedmc", "fedmcc")],
)
def test_a_similar_name_is_suggested(name, meant):
    assert str(unknown("method", name, METHODS)).endswith(f"Did you mean '{meant}'?")


def test_a_name_with_another_meaning_is_not_suggested():
    assert "Did you mean" not in str(unknown("partition", "noniid", PARTITIONS))
