import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.federation.rounds import Progress
from fedmcc.runs import checkpoints
from fedmcc.runs.checkpoints import (
    load_metadata,
    load_network,
    load_progress,
    load_shapes,
    load_state,
    save_progress,
    save_state,
)
from fedmcc.runs.directory import create_run
from fedmcc.storage import atomic_files, safetensor_files


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", "", {})


def _moment(round, value, clients=(0, 1)):
    """Progress, rows, and states of the clients."""
    progress = Progress(
        model={"w": torch.full((3, 2), value), "n": torch.tensor(round)},
        stage="joint",
        round=round,
        extras={"mean": torch.tensor([value])},
        holders={"online.encoder": frozenset(clients)},
    )
    states = {client: {"net.w": torch.full((2,), value + client)} for client in clients}
    return progress, round, states


def _save(run, moment, changed=(0, 1)):
    progress, rows, states = moment
    return save_progress(run, progress, rows, ((client, states[client]) for client in changed))


def _numbers(progress, rows, states):
    """All values as plain numbers, to compare them."""
    client_states = {k: {n: v.tolist() for n, v in state.items()} for k, state in states.items()}
    tensors = [{n: v.tolist() for n, v in state.items()} for state in (progress.model, progress.extras)]
    return progress.stage, progress.round, progress.holders, rows, tensors, client_states


def _loaded(run):
    saved = load_progress(run)
    return _numbers(saved.progress, saved.rows, {k: load_state(path) for k, path in saved.clients.items()})


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.online, self.target = nn.Linear(2, width), nn.Linear(2, width)


def test_a_loaded_state_is_bit_identical_and_has_the_same_types(tmp_path):
    state = {
        "float": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "flag": torch.tensor(True),
        "channels_last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    save_state(tmp_path / "a.safetensors", state, {"method": "mcc"})
    loaded = load_state(tmp_path / "a.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[k], state[k]) and loaded[k].dtype == state[k].dtype for k in state)
    assert load_metadata(tmp_path / "a.safetensors") == {"method": "mcc"}


def test_there_is_no_progress_before_the_first_round(run):
    assert load_progress(run) is None


def test_loaded_progress_equals_saved_progress(run):
    _save(run, _moment(1, 0.25))
    assert _loaded(run) == _numbers(*_moment(1, 0.25))


def test_only_changed_clients_are_written_and_old_files_are_deleted(run):
    (run.resume_folder / "left-by-a-crash.safetensors").write_bytes(b"")
    _save(run, _moment(1, 0.25))
    _save(run, _moment(2, 0.5), changed=[1])
    states = {client: load_state(path) for client, path in load_progress(run).clients.items()}
    assert states[0]["net.w"].tolist() == [0.25, 0.25]
    assert states[1]["net.w"].tolist() == [1.5, 1.5]
    names = sorted(path.name for path in run.resume_folder.iterdir())
    assert names == [
        "client-0-joint-000001.safetensors",
        "client-1-joint-000002.safetensors",
        "extras-joint-000002.safetensors",
        "model-joint-000002.safetensors",
        "progress.json",
    ]


@pytest.mark.parametrize("crash", range(1, 6))
def test_a_crash_at_any_write_keeps_the_round_before(run, monkeypatch, crash):
    _save(run, _moment(1, 0.25))
    write, calls = atomic_files.write_flushed, []

    def crashing(path, content, *mode):
        calls.append(path)
        if len(calls) == crash:
            raise KeyboardInterrupt
        write(path, content, *mode)

    monkeypatch.setattr(atomic_files, "write_flushed", crashing)
    monkeypatch.setattr(safetensor_files, "write_flushed", crashing)
    with pytest.raises(KeyboardInterrupt):
        _save(run, _moment(2, 0.5))
    assert _loaded(run) == _numbers(*_moment(1, 0.25))


@pytest.mark.parametrize("crash", range(1, 5))
def test_a_crash_while_old_files_are_deleted_keeps_the_new_round(run, monkeypatch, crash):
    _save(run, _moment(1, 0.25))
    unlink, calls = Path.unlink, []

    def crashing(path, *args, **options):
        calls.append(path)
        if len(calls) == crash:
            raise KeyboardInterrupt
        unlink(path, *args, **options)

    monkeypatch.setattr(Path, "unlink", crashing)
    with pytest.raises(KeyboardInterrupt):
        _save(run, _moment(2, 0.5))
    monkeypatch.setattr(Path, "unlink", unlink)
    assert _loaded(run) == _numbers(*_moment(2, 0.5))


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path, kept):
    path = tmp_path / "a.safetensors"
    save_state(path, {"w": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:kept])
    for read in (load_state, load_metadata, load_shapes):
        with pytest.raises(InputError, match=r"a\.safetensors is damaged or not a safetensors file"):
            read(path)


def test_a_missing_file_is_named(tmp_path):
    for read in (load_state, load_metadata, load_shapes):
        with pytest.raises(InputError, match=r"There is no checkpoint at .*absent"):
            read(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("name", ["client-1", "model", "extras"])
def test_a_missing_file_of_the_saved_round_is_named(run, name):
    _save(run, _moment(1, 0.25))
    (run.resume_folder / f"{name}-joint-000001.safetensors").unlink()
    with pytest.raises(InputError, match=rf"There is no checkpoint at .*{name}-joint-000001"):
        load_progress(run)


def test_states_of_clients_are_not_read(run, monkeypatch):
    files, read = _save(run, _moment(1, 0.25)), []
    monkeypatch.setattr(checkpoints, "load_state", lambda path: read.append(path.name) or {})
    assert load_progress(run).clients == files
    assert [name.split("-")[0] for name in read] == ["model", "extras"]


def test_clients_are_saved_one_at_a_time(run):
    progress, rows, states = _moment(1, 0.25)

    def one_by_one():
        for client, state in states.items():
            yield client, state
            assert (run.resume_folder / f"client-{client}-joint-000001.safetensors").exists()

    save_progress(run, progress, rows, one_by_one())


def test_shapes_are_read_without_the_tensors(tmp_path):
    save_state(tmp_path / "a.safetensors", {"w": torch.zeros(3, 2), "n": torch.tensor(1)})
    assert load_shapes(tmp_path / "a.safetensors") == {"w": (3, 2), "n": ()}


@pytest.mark.parametrize(
    "change",
    [
        {"clients": ["a"]},
        {"holders": 3},
        {"holders": {"online.encoder": ["a"]}},
        {"clients": {"x": "extras-joint-000001.safetensors"}},
    ],
)
def test_a_damaged_listing_is_named(run, change):
    _save(run, _moment(1, 0.25))
    path = run.resume_folder / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"progress\.json is damaged"):
        load_progress(run)
    path.write_text("{")
    with pytest.raises(InputError, match=r"progress\.json is damaged"):
        load_progress(run)


def test_a_network_takes_its_online_branch_from_a_checkpoint(tmp_path):
    net, path = Net(), tmp_path / "a.safetensors"
    state = {"online.weight": torch.ones(3, 2), "online.bias": torch.zeros(3)}
    save_state(path, state)
    target = net.target.weight.detach().clone()
    load_network(net, path)
    assert torch.equal(net.online.weight.detach(), torch.ones(3, 2))
    assert torch.equal(net.target.weight.detach(), target)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"online.weight": torch.ones(4, 2)}, r"online\.weight is \(4, 2\) in the file and \(3, 2\)"),
        ({"online.conv": torch.ones(1)}, r"the file has online\.conv, the network does not"),
        ({"online.weight": torch.ones(3, 2)}, r"the network has online\.bias, the file does not"),
        ({}, r"the network has online\.bias, the file does not"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused_and_changes_nothing(tmp_path, state, sentence):
    net, path = Net(), tmp_path / "a.safetensors"
    before = net.online.weight.detach().clone()
    save_state(path, state)
    with pytest.raises(InputError, match="is of another architecture: .*" + sentence):
        load_network(net, path)
    assert torch.equal(net.online.weight.detach(), before)


def test_all_files_of_a_round_are_on_disk_before_the_list_that_names_them(run, monkeypatch):
    flush, write, order = atomic_files.flush_folder, atomic_files.write_flushed, []
    monkeypatch.setattr(safetensor_files, "flush_folder", lambda path: (order.append("flushed"), flush(path)))

    def recording(path, content, *mode):
        order.append(path.name.split("-")[0])
        write(path, content, *mode)

    monkeypatch.setattr(atomic_files, "write_flushed", recording)
    monkeypatch.setattr(safetensor_files, "write_flushed", recording)
    _save(run, _moment(1, 0.25))
    assert order == ["model", "extras", "client", "client", "flushed", "progress.json"]
