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
    **{f"type {dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPE_NAMES},
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
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


def test_a_decoded_state_has_the_same_types_and_shapes():
    decoded = from_bytes(to_bytes(STATE))
    assert decoded.keys() == STATE.keys()
    assert all(decoded[name].dtype == value.dtype for name, value in STATE.items())
    assert all(torch.equal(decoded[name], value) for name, value in STATE.items())


def test_metadata_are_sorted_whatever_their_order(tmp_path):
    metadata = {"b": "2", "a": "1", "c": "ü"}
    save_state(tmp_path / "one", STATE, metadata)
    save_state(tmp_path / "two", STATE, dict(reversed(metadata.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with safetensors.safe_open(tmp_path / "one", framework="pt") as file:
        assert file.metadata() == metadata


def test_states_are_saved_one_after_the_other(tmp_path):
    files_before = []

    def states():
        for number in range(3):
            files_before.append((number, len(list(tmp_path.iterdir()))))
            yield f"state-{number}", {"w": torch.full((2,), float(number))}

    save_states(tmp_path, states())
    assert files_before == [(0, 0), (1, 1), (2, 2)]
    assert torch.equal(load_state(tmp_path / "state-2")["w"], torch.tensor([2.0, 2.0]))
