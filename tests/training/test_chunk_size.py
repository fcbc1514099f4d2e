import logging
import mmap
import tomllib
from dataclasses import replace

import pytest
import torch

from fedmcc import config
from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.federation.engines.pool import PoolOptions
from fedmcc.methods import METHODS
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble
from fedmcc.training.chunk_size import largest_chunk
from fedmcc.training.chunked import StoredBatch, backward
from fedmcc.training.loop import Training, trainable
from fedmcc.training.memory import bytes_in_use, memory_size, peak_bytes

pytestmark = pytest.mark.slow  # whole runs or processes

CPU = torch.device("cpu")
N = 64


def _net():
    encoder = ConvNetOptions(width=8, norm="group").build(1, 32)
    method = METHODS["fedmcc"]()
    return method.build(encoder, encoder.features, 4), method.stages()


def _pair(n=N):
    return StoredBatch(*torch.rand(2, n, 1, 32, 32))


def _measured(chunk):
    net, (stage,) = _net()
    trainable(net, stage)
    return peak_bytes(lambda: backward(net, stage, _pair(), chunk), CPU)


def _chunk(monkeypatch, megabytes, stages=slice(None)):
    monkeypatch.setattr("fedmcc.training.chunk_size.bytes_in_use", lambda device: 0)
    net, all_stages = _net()
    return largest_chunk(net, all_stages[stages], lambda stage: _pair(), int(megabytes * 2**20))


def test_the_chosen_chunk_fits_and_one_of_twice_the_memory_would_not(monkeypatch):
    limit = 10
    chunk = _chunk(monkeypatch, limit)
    assert 4 < chunk < N / 2
    assert _measured(chunk) < limit * 2**20 < 2 * _measured(chunk)


def test_the_batch_is_the_largest_chunk_and_more_memory_never_makes_it_smaller(monkeypatch):
    chunks = [_chunk(monkeypatch, megabytes) for megabytes in (8, 12, 16, 1000)]
    assert chunks == sorted(chunks)
    assert chunks[-1] == N


def test_a_limit_that_is_too_low_is_refused_with_what_is_needed(monkeypatch):
    with pytest.raises(
        InputError, match=r"training\.memory_limit is 1 MB, but chunks of 3 images need about"
    ):
        _chunk(monkeypatch, 1)


def test_peak_memory_counts_live_tensors_and_no_views():
    def work():
        first = torch.zeros(1000)
        second = first.view(10, 100)[2:] + 1  # 800 numbers
        del first
        return second.mul_(2).expand(5, 8, 100), torch.ones(100)

    assert peak_bytes(work, CPU) == 4 * 1800
    assert peak_bytes(lambda: [torch.zeros(1000).sum() for _ in range(5)], CPU) == 4 * 1001 + 4 * 4


def test_memory_in_use_grows_by_what_is_allocated():
    before, size = bytes_in_use(CPU), 50 * 2**20
    with mmap.mmap(-1, size) as fresh:  # an array might reuse freed memory
        fresh.write(b"1" * size)
        assert 40 < (bytes_in_use(CPU) - before) / 2**20 < 120  # the written bytes may still be in memory


def _config(**training):
    table = {
        "device": "cpu",
        "threads": 1,
        "views": {"size": 16},
        "encoder": {"width": 4, "norm": "group"},
        "method": {
            "name": "fedmcc",
            "rounds": 1,
            "epochs": 1,
        },
        "clustering": {"name": "mcc", "rounds": 1, "epochs": 1},
        "training": {"batch_size": 40, **training},
        "partition": {"clients": 2},
    }
    return config.parse(table)


def test_auto_is_resolved_when_a_run_is_assembled_and_logged(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "fedmcc")
    monkeypatch.setattr("fedmcc.training.chunk_size.bytes_in_use", lambda device: 0)
    prepared = assemble(_config(chunk="auto", memory_limit="1.5MB"), load_dataset("digits", limit=80))
    chunk = prepared.config.training.chunk
    assert 3 <= chunk < 40
    assert f"Training in chunks of {chunk} images fits in 1.5MB." in caplog.messages
    assert all(client.training.chunk == chunk for client in prepared.engine.clients.values())
    assert config.parse(tomllib.loads(config.dump(prepared.config))).training.chunk == chunk


def _warnings(caplog, norm, **training):
    caplog.clear()
    table = _config(**training)
    assemble(replace(table, encoder=replace(table.encoder, norm=norm)), load_dataset("digits", limit=80))
    return [message for message in caplog.messages if "chunk-normalised" in message]


def test_batch_norm_with_chunks_is_warned_of_once_with_the_remedy(caplog):
    (warning,) = _warnings(caplog, "batch", chunk=8)
    assert 'set encoder.norm to "group"' in warning
    assert not _warnings(caplog, "group", chunk=8)
    assert not _warnings(caplog, "batch")
    assert not _warnings(caplog, "batch", chunk=40)  # the whole batch is one chunk


@pytest.mark.parametrize("closed_form", [True, False])
def test_a_federation_in_chunks_is_the_federation_without(tmp_path, closed_form):
    """Two clients and two stages, equal up to rounding."""
    images = load_dataset("digits", limit=200)
    runs, states = [], []
    for name, training in (("whole", {}), ("chunks", {"chunk": 7, "closed_form": closed_form})):
        prepared = assemble(_config(**training), images)
        run = experiment.start_run(prepared, tmp_path / name)
        list(experiment.steps(prepared, run))
        runs.append([row["loss"] for row in run.rows()])
        states.append(prepared.net.state_dict())
    assert len(runs[0]) == 2
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-3, atol=1e-5)


def test_chunks_in_worker_processes_are_bit_identical_to_those_in_this_one(tmp_path):
    images, models = load_dataset("digits", limit=120), []
    for engine in (PoolOptions(workers=2), EmbeddedOptions()):
        prepared = assemble(replace(_config(chunk=7), engine=engine), images)
        run = experiment.start_run(prepared, tmp_path / type(engine).__name__)
        list(experiment.steps(prepared, run))
        models.append(run.model_file.read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, r"training\.chunk is 0: give 1 image or more"),
        ({"chunk": "auto"}, r"training\.chunk is auto: set training\.memory_limit"),
        ({"memory_limit": "much"}, r"training\.memory_limit is 'much': give a size such as"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(options, message):
    with pytest.raises(InputError, match=message):
        Training(**options)


def test_a_batch_that_fits_into_one_chunk_is_not_split():
    assert Training(chunk=8).chunks(8) is None
    assert Training().chunks(8) is None
    assert Training(chunk=8, closed_form=False).chunks(9).closed_form is False
    with pytest.raises(InputError, match="is auto, which only a run resolves"):
        Training(chunk="auto", memory_limit="1GB").chunks(9)


def test_sizes_name_the_option_they_belong_to():
    assert memory_size("2GB", "training.memory_limit") == 2 * 2**30
    with pytest.raises(InputError, match=r"engine\.memory is 'x'"):
        memory_size("x")
