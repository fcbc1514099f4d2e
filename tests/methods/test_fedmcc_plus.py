"""FedMCC+ as a whole: its stages and its options."""

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.messages import Task
from fedmcc.methods.fedmcc_plus import FedMCCPlus
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.numerics.state_dicts import detached, select


def test_stages_in_order():
    names = [stage.name for stage in FedMCCPlus(polish_rounds=3).stages()]
    assert names == [
        "representation",
        "separation",
        "calibration",
        "whitening",
        "centroids",
        "merging",
        "polish",
        "choice",
    ]


def test_stages_can_be_left_out():
    names = [stage.name for stage in FedMCCPlus(separation=0.0, axes=0.0, calibrate=False).stages()]
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


def _target_after(count, steps, **options):
    """A parameter of the target, at first 0, after this many steps whose online parameters are 1."""
    method = FedMCCPlus(projections=4, **options)
    encoder = ConvNetOptions(width=1).build(1, 8)
    net, stage = method.build(encoder, encoder.features, 2), method.stages()[0]
    shared = detached(select(net.state_dict(), stage.shared))
    stage.receive(net, Task(0, stage.name, 1, shared), {"steps": torch.tensor(steps)})
    for branch, value in ((net.target, 0.0), (net.online, 1.0)):
        for parameter in branch.parameters():
            parameter.data.fill_(value)
    for _ in range(count):
        stage.after_step(net, None)
    return float(next(net.target.parameters()).flatten()[0])


@pytest.mark.parametrize(("half_life", "steps"), [(2.0, 6), (1.0, 10), (0.5, 4)])
def test_half_of_the_target_is_renewed_within_its_half_life(half_life, steps):
    count = round(half_life * steps)
    assert _target_after(count, steps, half_life=half_life) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("options", [{"steps": 1000}, {"steps": 6, "half_life": 0.0}])
def test_the_momentum_is_the_given_one_with_many_steps_or_without_a_half_life(options):
    assert _target_after(1, **options) == pytest.approx(0.01, abs=1e-6)


def test_a_negative_half_life_is_refused():
    with pytest.raises(InputError, match=r"method\.half_life is -1.0: give 0 or more rounds"):
        FedMCCPlus(half_life=-1.0)
