import pytest
import safetensors.torch
import torch

from fedmcc.storage.safetensor_files import (
    DTYPE_NAMES,
    from_bytes,
    load_state,
    save_state,
    save_states,
    to_bytes,
)

STATE = {
    **{f"kind of {kind}": torch.arange(6).reshape(2, 3).to(kind) for kind in DTYPE_NAMES},
    "scalar": torch.tensor(1.5),
    "nothing": torch.zeros(0, 3),
    "größe": torch.tensor([2.0]),
    "channels last": torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).contiguous(
        memory_format=torch.channels_last
    ),
    "every other": torch.arange(10)[::2],
}


@pytest.mark.parametrize("state", [STATE, {}, {"a": torch.ones(2)}])
def test_the_bytes_are_those_of_the_safetensors_library(state):
    in_order = {name: value.contiguous() for name, value in state.items()}
    assert to_bytes(state) == safetensors.torch.save(in_order)


def test_what_was_packed_is_unpacked_with_its_types_and_shapes():
    found = from_bytes(to_bytes(STATE))
    assert found.keys() == STATE.keys()
    assert all(found[name].dtype == value.dtype for name, value in STATE.items())
    assert all(torch.equal(found[name], value) for name, value in STATE.items())


def test_metadata_are_in_order_whatever_order_they_come_in(tmp_path):
    words = {"b": "2", "a": "1", "c": "ü"}
    save_state(tmp_path / "one", STATE, words)
    save_state(tmp_path / "two", STATE, dict(reversed(words.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with safetensors.safe_open(tmp_path / "one", framework="pt") as file:
        assert file.metadata() == words


def test_states_are_saved_one_after_the_other(tmp_path):
    made = []

    def states():
        for number in range(3):
            made.append((number, len(list(tmp_path.iterdir()))))
            yield f"state-{number}", {"w": torch.full((2,), float(number))}

    save_states(tmp_path, states())
    assert made == [(0, 0), (1, 1), (2, 2)]
    assert torch.equal(load_state(tmp_path / "state-2")["w"], torch.tensor([2.0, 2.0]))
