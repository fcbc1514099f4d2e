from pathlib import Path

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.federation.engines.client_states import Store
from fedmcc.storage.safetensor_files import save_state
from fedmcc.training.memory import memory_size

BYTES = 400


def _state(value):
    return {"net.w": torch.full((100,), float(value))}


def _committed(limit, clients):
    store = Store(limit)
    for client in clients:
        store.propose(client, _state(client))
        store.settle([client])
    return store


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the files beyond memory go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _files(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500", 500), ("2kb", 2048), ("1.5 MB", 1_572_864), ("1GiB", 2**30)]
)
def test_a_size_is_read_as_people_write_it(text, size):
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1PB", "1 G B", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match=r"engine\.memory is '.*': give a size such as 500MB"):
        memory_size(text)


@pytest.mark.parametrize("limit", [0, BYTES, 3 * BYTES, 100 * BYTES])
def test_every_state_comes_back_whatever_the_limit(limit):
    store = _committed(limit, range(7))
    assert sorted(store) == list(range(7))
    assert len(store) == 7
    assert all(torch.equal(store[client]["net.w"], _state(client)["net.w"]) for client in range(7))
    store.close()


def test_memory_holds_what_fits_and_files_the_rest(folder):
    store = _committed(3 * BYTES, range(7))
    assert store.held == 3
    assert len(_files(folder)) == 4
    store.close()


def test_what_was_used_longest_ago_leaves_first(folder):
    store = _committed(3 * BYTES, range(3))
    store[0]
    store.propose(3, _state(3))
    (left,) = _files(folder)
    assert left.name.startswith("client-1-")
    store.close()


@pytest.mark.parametrize("limit", [0, 100 * BYTES])
def test_a_proposed_state_counts_only_when_it_is_accepted(limit, folder):
    store = _committed(limit, [0, 1])
    for client in (0, 1, 2):
        store.propose(client, _state(10 + client))
    assert [store[client]["net.w"][0].item() for client in (0, 1)] == [0, 1]
    assert 2 not in store
    store.settle([1])
    assert {client: state["net.w"][0].item() for client, state in store.items()} == {0: 0, 1: 11}
    assert len(_files(folder)) == (2 if limit == 0 else 0)
    store.close()


def test_states_in_files_are_read_when_they_are_needed(folder):
    files = {client: folder / f"{client}.safetensors" for client in range(3)}
    store = Store(100 * BYTES)
    store.begin(folder, files)
    assert sorted(store) == [0, 1, 2]
    save_state(files[1], _state(5))  # only now
    assert store[1]["net.w"][0].item() == 5


def test_what_a_run_has_filed_is_not_written_again(folder):
    store = _committed(BYTES, [0])
    save_state(folder / "0.safetensors", _state(0))
    store.mark_saved({0: folder / "0.safetensors"})
    store.propose(1, _state(1))
    assert store.held == 1
    assert _files(folder) == [folder / "0.safetensors"]
    assert store[0]["net.w"][0].item() == 0


def test_what_a_run_has_filed_stays_in_memory_for_the_last_clients_alone(folder):
    store = _committed(100 * BYTES, range(5))
    files = {client: folder / f"{client}.safetensors" for client in range(5)}
    for client, path in files.items():
        save_state(path, _state(client))
    assert store.held == 5
    store.mark_saved(files)
    assert store.held == 1
    assert [store[client]["net.w"][0].item() for client in range(5)] == [0, 1, 2, 3, 4]


def test_the_files_of_a_run_are_left_alone(folder):
    filed = folder / "0.safetensors"
    save_state(filed, _state(0))
    store = Store(0)
    store.begin(folder, {0: filed})
    store.propose(0, _state(1))
    store.settle([0])
    assert store[0]["net.w"][0].item() == 1
    store.close()
    assert _files(folder) == [filed]


def test_a_closed_store_leaves_nothing(folder):
    store = _committed(0, range(3))
    assert _files(folder)
    store.close()
    assert len(store) == store.held == 0
    assert list(folder.iterdir()) == []
