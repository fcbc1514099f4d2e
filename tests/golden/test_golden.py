"""Training gives the numbers it gave before, and the same bits every time."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedmcc import config
from fedmcc.runs import experiment

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "losses.json").read_text())["losses"]


@pytest.fixture(scope="module")
def regenerate() -> ModuleType:
    spec = spec_from_file_location("regenerate", HERE / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_the_losses_of_five_rounds_are_what_they_were(regenerate: ModuleType, method: str) -> None:
    assert regenerate.losses(method) == pytest.approx(GOLDEN[method], rel=1e-5)


@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_a_seed_decides_every_bit(regenerate: ModuleType, tmp_path: Path, method: str) -> None:
    def weights(name: str, seed: int) -> bytes:
        options: dict[str, Any] = {"name": method, "rounds": 2, "hidden": 16}
        table = {**regenerate.TINY, "seed": seed, "method": options}
        return experiment.run(config.parse(table), tmp_path / name).model_file.read_bytes()

    first = weights("first", 5)
    assert weights("same", 5) == first
    assert weights("other", 6) != first
