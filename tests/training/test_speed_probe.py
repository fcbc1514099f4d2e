"""Warnings of options that are slower than their absence on this CPU."""

import logging
import time

import pytest
import torch

from fedmcc.config import parse
from fedmcc.runs.build import build_network, prepare
from fedmcc.training import speed_probe
from fedmcc.training.speed_probe import relative_speed, warn_of_slow_options


def _config(**training):
    table = {
        "clusters": 3,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "digits", "limit": 40},
        "views": {"size": 8},
        "encoder": {"width": 4},
        "method": {"name": "mcc", "hidden": 8},
        "training": {"batch_size": 8, **training},
    }
    return parse(table)


def _warnings(caplog, **training):
    with caplog.at_level(logging.WARNING, logger=speed_probe.__name__):
        prepare(_config(**training))
    return [record.getMessage() for record in caplog.records]


def test_the_speed_is_that_of_the_fastest_alternating_calls(monkeypatch):
    monkeypatch.setattr(speed_probe, "PROBE_SECONDS", 0.5)  # the fastest of five is not delayed
    assert relative_speed(lambda: time.sleep(0.02), lambda: time.sleep(0.08)) == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize(("option", "value"), [("precision", "bfloat16"), ("compile", True)])
def test_a_slower_option_is_named_with_the_measured_ratio_and_the_remedy(option, value, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    monkeypatch.setattr(speed_probe, "relative_speed", lambda *_: 0.127)
    (warning,) = _warnings(caplog, **{option: value})
    assert f"training.{option} = " in warning
    assert "0.13 times" in warning
    assert warning.endswith(("Set it to float32.", "Set it to false."))


def test_a_faster_option_is_not_mentioned(monkeypatch, caplog):
    monkeypatch.setattr(speed_probe, "relative_speed", lambda *_: 1.01)
    assert _warnings(caplog, precision="bfloat16") == []


def test_without_these_options_nothing_is_measured(monkeypatch, caplog):
    monkeypatch.setattr(speed_probe, "relative_speed", lambda *_: pytest.fail("a pass was timed"))
    assert _warnings(caplog) == []


def test_the_probe_changes_no_weight_no_mode_and_no_random_number(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda images: call(images + torch.rand(1)))
    config = _config(precision="bfloat16", compile=True)
    net = build_network(config, 1)
    before, random = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    warn_of_slow_options(net, (1, 8, 8), config.training)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
