"""FedMCC+ as a whole: its stages and its options."""

import pytest

from fedmcc.errors import InputError
from fedmcc.methods.fedmcc_plus import FedMCCPlus


def test_stages_in_order():
    names = [stage.name for stage in FedMCCPlus(polish_rounds=3).stages()]
    assert names == [
        "representation",
        "separation",
        "whitening",
        "centroids",
        "merging",
        "polish",
        "choice",
    ]


def test_stages_can_be_left_out():
    names = [stage.name for stage in FedMCCPlus(separation=0.0, axes=0.0).stages()]
    assert names == ["representation", "centroids", "merging"]


@pytest.mark.parametrize(
    ("rounds", "separation", "expected"),
    [(100, 0.5, [50, 50]), (1, 0.5, [1]), (7, 0.3, [5, 2]), (4, 1.0, [4])],
)
def test_rounds_are_those_of_representation_and_separation_together(rounds, separation, expected):
    stages = FedMCCPlus(rounds=rounds, separation=separation).stages()
    assert [stage.rounds for stage in stages if stage.trained] == expected


@pytest.mark.parametrize("field", ["repulsion", "polish_pace", "prototypes", "prototype_temperature"])
def test_invalid_options_are_refused(field):
    with pytest.raises(InputError, match=f"method.{field}"):
        FedMCCPlus(**{field: 0.0})


def test_the_target_cannot_be_shared():
    with pytest.raises(InputError, match="ablation"):
        FedMCCPlus(target="share")
