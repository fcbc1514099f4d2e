"""Training gives the numbers it gave before, and the same bits every time."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedmcc import config
from fedmcc.runs import experiment

pytestmark = pytest.mark.slow  # whole runs or processes

Near = Callable[[Any], Any]

HERE = Path(__file__).parent
HEAD = "online.cluster_projector"
PROTOTYPES = 1e-4  # k-means on small data gives norms that differ by 2e-5 between two kinds of processor
GOLDEN = json.loads((HERE / "losses.json").read_text())["losses"]
FEDERATIONS = json.loads((HERE / "federations.json").read_text())["federations"]


@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_the_losses_of_five_rounds_are_what_they_were(regenerate: ModuleType, method: str) -> None:
    assert regenerate.losses(method) == pytest.approx(GOLDEN[method], rel=1e-5)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_federation_trains_and_sends_what_it_did(regenerate: ModuleType, near: Near, name: str) -> None:
    found, expected = regenerate.federation(*name.split()), near(FEDERATIONS[name])
    if name.startswith("informative"):
        expected["norms"][HEAD] = pytest.approx(FEDERATIONS[name]["norms"][HEAD], rel=PROTOTYPES)
    assert found == expected


@pytest.mark.parametrize("name", FEDERATIONS)
def test_sites_and_servers_of_before_take_each_others_network_for_the_same(
    regenerate: ModuleType, name: str
) -> None:
    assert regenerate.mark(*name.split()) == FEDERATIONS[name]["fingerprint"]


@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_a_seed_decides_every_bit(regenerate: ModuleType, tmp_path: Path, method: str) -> None:
    def weights(name: str, seed: int) -> bytes:
        options: dict[str, Any] = {"name": method, "rounds": 2, "hidden": 16}
        table = {**regenerate.TINY, "seed": seed, "method": options}
        return experiment.run(config.parse(table), tmp_path / name).model_file.read_bytes()

    first = weights("first", 5)
    assert weights("same", 5) == first
    assert weights("other", 6) != first
