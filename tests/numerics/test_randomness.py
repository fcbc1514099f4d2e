import itertools

import numpy as np
import pytest
import torch

from fedmcc.numerics.randomness import GlobalRandomState, derive, generator


def test_same_place_gives_the_same_numbers_whatever_ran_before():
    first = torch.rand(5, generator=generator(3, "train", 0, "joint", 7))
    torch.rand(100)
    generator(3, "train", 1, "joint", 7)
    assert torch.equal(first, torch.rand(5, generator=generator(3, "train", 0, "joint", 7)))


def test_every_client_stage_round_and_seed_has_its_own_seed():
    places = itertools.product((0, 1, 2**40), (0, 1, 2), ("joint", "instance", "cluster"), range(1, 30))
    seeds = {derive(seed, "train", client, stage, round) for seed, client, stage, round in places}
    assert len(seeds) == 3 * 3 * 3 * 29


def test_order_of_client_and_round_matters():
    assert derive(0, "train", 1, "joint", 2) != derive(0, "train", 2, "joint", 1)


def test_derived_seeds_fit_every_generator():
    seeds = [derive(seed, "weights") for seed in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**61  # not cut to 32 bits
    np.random.default_rng(seeds[0])


def test_generators_do_not_change_the_global_ones():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    torch.rand(10, generator=generator(0, "views"))
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


def test_derived_seeds_stay_the_same_from_version_to_version():
    """A resumed run must use the same numbers: seed, crc32("train") and a final 1."""
    expected = int(np.random.SeedSequence([5, 1550247075, 1]).generate_state(1, np.uint64)[0]) // 2
    assert derive(5, "train") == expected


def test_places_that_differ_in_a_trailing_zero_are_apart():
    assert derive(1, "a") != derive(1, "a", 0)


class Accelerator:
    """Stand-in for a device module whose generator state is the number of draws."""

    def __init__(self, *names):
        self.names, self.drawn = names, 0

    def get_rng_state(self, *device):
        assert device == self.names
        return torch.tensor(self.drawn)

    def set_rng_state(self, state, *device):
        assert device == self.names
        self.drawn = int(state)


def test_global_random_state_restores_the_cpu_generator():
    with torch.random.fork_rng():
        state = GlobalRandomState.of(torch.device("cpu"))
        first = torch.rand(3)
        state.restore()
        assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("name", ["cuda:1", "mps"])
def test_global_random_state_restores_the_generator_of_a_device(monkeypatch, name):
    device = torch.device(name)
    accelerator = Accelerator() if name == "mps" else Accelerator(device)
    monkeypatch.setattr(torch, "get_device_module", lambda requested: {device: accelerator}[requested])
    accelerator.drawn = 5
    state = GlobalRandomState.of(device)
    accelerator.drawn = 9
    state.restore()
    assert accelerator.drawn == 5
