"""Memory kept by glibc, lower precision and compiled encoders: their effect, and where they are missing."""

import logging
import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.runs import experiment
from fedmcc.runs.build import build_network
from fedmcc.training import torch_setup
from fedmcc.training.torch_setup import find_device, resolve_precision

pytestmark = pytest.mark.slow  # whole runs or processes

CPU = torch.device("cpu")


def _config(**training):
    table = {
        "clusters": 3,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "digits", "limit": 40},
        "views": {"size": 8},
        "encoder": {"width": 4},
        "method": {"name": "fedmcc", "rounds": 1, "epochs": 1, "hidden": 8},
        "clustering": {"name": "mcc", "rounds": 1},
        "training": {"batch_size": 8, **training},
    }
    return parse(table)


def _losses(path, **training):
    return [row["loss"] for row in experiment.run(_config(**training), path).rows()]


def test_bfloat16_is_close_to_float32_and_not_the_same(tmp_path):
    full, lower = (_losses(tmp_path / kind, precision=kind) for kind in ("float32", "bfloat16"))
    assert lower == pytest.approx(full, rel=0.02)
    assert lower != full


def test_bfloat16_works_with_chunks(tmp_path):
    whole, parts = (_losses(tmp_path / str(n), precision="bfloat16", chunk=n) for n in (8, 4))
    assert parts == pytest.approx(whole, rel=0.1)


def test_the_loss_gets_float32_in_any_precision():
    net, stage = build_network(_config(), 1), _config().method.stages()[0]
    views = torch.rand(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    full, lower = (replace(stage, precision=kind).outputs(net, *views) for kind in (None, torch.bfloat16))
    assert type(lower) is type(full)
    for own, other in zip(lower, full, strict=True):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own, other, rtol=0.1, atol=0.1)
        assert not torch.equal(own, other)


def test_a_cpu_uses_float32_by_default():
    assert resolve_precision("auto", CPU) == "float32"
    assert resolve_precision("bfloat16", CPU) == "bfloat16"


def test_bfloat16_on_a_device_without_it_is_refused():
    with pytest.raises(InputError, match=r"training\.precision is bfloat16, which mps does not support"):
        resolve_precision("bfloat16", torch.device("mps"))


def test_compiled_encoders_are_in_use_under_the_same_names(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda images: 2 * call(images))
    plain, net = build_network(_config(), 1).eval(), build_network(_config(compile=True), 1).eval()
    images = torch.rand(2, 1, 8, 8)
    assert net.state_dict().keys() == plain.state_dict().keys()
    for branch, other in ((net.online, plain.online), (net.target, plain.target)):
        torch.testing.assert_close(branch.encoder(images), 2 * other.encoder(images))


def test_a_failing_compiler_is_logged_in_one_sentence_and_encoders_stay_as_they_were(monkeypatch, caplog):
    def missing(call, **_):
        def broken(images):
            raise RuntimeError("No working C++ compiler found.\nMore of it")

        return broken

    monkeypatch.setattr(torch, "compile", missing)
    with caplog.at_level(logging.WARNING, logger=torch_setup.__name__):
        net = build_network(_config(compile=True), 1).eval()
    (record,) = caplog.records
    assert record.getMessage().endswith("because torch.compile failed: No working C++ compiler found.")
    images, plain = torch.rand(2, 1, 8, 8), build_network(_config(), 1).eval()
    assert torch.equal(net.target.encoder(images), plain.target.encoder(images))


FAULTS = """
import resource, sys, torch
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.networks.convnet import ConvNetOptions
set_up_torch(1)
net, images = ConvNetOptions().build(1, 28), torch.ones(256, 1, 28, 28)
faults = []
for step in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    net(images).sum().backward()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


def _faults(**variables):
    process = [sys.executable, "-c", FAULTS]
    return int(
        subprocess.run(process, env={**os.environ, **variables}, capture_output=True, check=True).stdout
    )


def test_memory_of_a_step_is_reused_unless_glibc_is_configured_otherwise():
    if platform.libc_ver()[0] != "glibc":  # other C libraries are not configured
        assert not torch_setup.keep_freed_memory()
        return
    first_map = 256 * 16 * 28 * 28 * 4 / os.sysconf("SC_PAGESIZE")  # pages of the first convolution's output
    assert _faults() < 0.1 * first_map
    assert _faults(MALLOC_TRIM_THRESHOLD_="131072") > first_map


@pytest.mark.parametrize("name", ["gpu", "cuda:77", "meta", "hpu", "", "cpu cuda"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(
        InputError, match=f"There is no device '{name}' on this machine: set device to auto or cpu"
    ):
        find_device(name)


def test_auto_is_a_device_that_works():
    assert torch.zeros(1, device=find_device("auto")).item() == 0
