from pathlib import Path

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.federation.engines.client_states import ClientStates
from fedmcc.storage.safetensor_files import save_state
from fedmcc.training.memory import memory_size

BYTES = 400


def _state(value):
    return {"net.w": torch.full((100,), float(value))}


def _committed(limit, clients):
    states = ClientStates(limit)
    for client in clients:
        states.set_pending(client, _state(client))
        states.commit([client])
    return states


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder for states that do not fit into memory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _files(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500", 500), ("2kb", 2048), ("1.5 MB", 1_572_864), ("1GiB", 2**30)]
)
def test_sizes_are_parsed_with_units(text, size):
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1PB", "1 G B", "nan"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(InputError, match=r"engine\.memory is '.*': give a size such as 500MB"):
        memory_size(text)


@pytest.mark.parametrize("limit", [0, BYTES, 3 * BYTES, 100 * BYTES])
def test_every_state_is_found_with_any_limit(limit):
    states = _committed(limit, range(7))
    assert sorted(states) == list(range(7))
    assert len(states) == 7
    assert all(torch.equal(states[client]["net.w"], _state(client)["net.w"]) for client in range(7))
    states.close()


def test_states_that_do_not_fit_into_memory_are_in_files(folder):
    states = _committed(3 * BYTES, range(7))
    assert states.in_memory == 3
    assert len(_files(folder)) == 4
    states.close()


def test_the_least_recently_used_state_is_evicted_first(folder):
    states = _committed(3 * BYTES, range(3))
    states[0]
    states.set_pending(3, _state(3))
    (evicted,) = _files(folder)
    assert evicted.name.startswith("client-1-")
    states.close()


@pytest.mark.parametrize("limit", [0, 100 * BYTES])
def test_a_pending_state_is_used_only_after_its_commit(limit, folder):
    states = _committed(limit, [0, 1])
    for client in (0, 1, 2):
        states.set_pending(client, _state(10 + client))
    assert [states[client]["net.w"][0].item() for client in (0, 1)] == [0, 1]
    assert 2 not in states
    states.commit([1])
    assert {client: state["net.w"][0].item() for client, state in states.items()} == {0: 0, 1: 11}
    assert len(_files(folder)) == (2 if limit == 0 else 0)
    states.close()


def test_states_in_files_are_read_when_they_are_needed(folder):
    files = {client: folder / f"{client}.safetensors" for client in range(3)}
    states = ClientStates(100 * BYTES)
    states.begin(folder, files)
    assert sorted(states) == [0, 1, 2]
    save_state(files[1], _state(5))  # written after `begin`
    assert states[1]["net.w"][0].item() == 5


def test_a_state_saved_by_the_run_is_not_written_again(folder):
    states = _committed(BYTES, [0])
    save_state(folder / "0.safetensors", _state(0))
    states.mark_saved({0: folder / "0.safetensors"})
    states.set_pending(1, _state(1))
    assert states.in_memory == 1
    assert _files(folder) == [folder / "0.safetensors"]
    assert states[0]["net.w"][0].item() == 0


def test_saved_states_stay_in_memory_only_for_the_last_clients(folder):
    states = _committed(100 * BYTES, range(5))
    files = {client: folder / f"{client}.safetensors" for client in range(5)}
    for client, path in files.items():
        save_state(path, _state(client))
    assert states.in_memory == 5
    states.mark_saved(files)
    assert states.in_memory == 1
    assert [states[client]["net.w"][0].item() for client in range(5)] == [0, 1, 2, 3, 4]


def test_the_files_of_a_run_are_not_deleted(folder):
    saved = folder / "0.safetensors"
    save_state(saved, _state(0))
    states = ClientStates(0)
    states.begin(folder, {0: saved})
    states.set_pending(0, _state(1))
    states.commit([0])
    assert states[0]["net.w"][0].item() == 1
    states.close()
    assert _files(folder) == [saved]


def test_closing_deletes_everything(folder):
    states = _committed(0, range(3))
    assert _files(folder)
    states.close()
    assert len(states) == states.in_memory == 0
    assert list(folder.iterdir()) == []
