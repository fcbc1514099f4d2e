"""A method of one's own is a class and a line in METHODS, a data set a class and a line in DATASETS."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

from fedmcc import DATASETS, METHODS, Branch, ImageSet, Network, Source, Stage, cluster_projector, losses
from fedmcc.cli import app
from fedmcc.config import CHOICES


@dataclass(frozen=True)
class Agreement:
    """Two views of an image agree on its cluster, and the clusters are of one size."""

    rounds: int = 2
    weight: float = 1.0

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        return Network(Branch(encoder, cluster_projector=cluster_projector(features, features, clusters)))

    def stages(self) -> tuple[Stage, ...]:
        return (Agree(rounds=self.rounds, epochs=1, weight=self.weight),)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclass(frozen=True, kw_only=True)
class Agree(Stage):
    weight: float
    name: str = "agree"
    trained: tuple[str, ...] = ("online",)
    shared: tuple[str, ...] = ("online",)

    def represent(self, net: Network, a: Tensor, b: Tensor) -> Pair:
        head = net.online.cluster_projector
        assert head is not None
        return Pair(head(net.online.encoder(a)), head(net.online.encoder(b)))

    def loss(self, outputs: Pair) -> Tensor:
        return (outputs.a - outputs.b).square().sum(dim=1).mean() - self.weight * losses.cluster_balance(
            outputs.a
        )


@dataclass(frozen=True)
class Halves(Source):
    """Noise that is bright above or below."""

    count: int = 40

    def read(self) -> ImageSet:
        images = np.random.default_rng(0).integers(0, 100, (self.count, 1, 8, 8), dtype=np.uint8)
        labels = np.arange(self.count) % 2
        images[labels == 0, :, :4] += 150
        images[labels == 1, :, 4:] += 150
        return ImageSet(images, labels, ("above", "below"))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setitem(METHODS, "agreement", Agreement)
    monkeypatch.setitem(DATASETS, "halves", Halves)
    return CliRunner()


def test_what_is_registered_can_be_configured() -> None:
    assert CHOICES["method"][0] is METHODS
    assert CHOICES["data"][0] is DATASETS


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [("methods", "agreement", "Two views of an image"), ("datasets", "halves", "Noise that is bright")],
)
def test_what_is_registered_is_listed(registered: CliRunner, kind: str, name: str, words: str) -> None:
    lines = registered.invoke(app, ["list", kind]).stdout.splitlines()
    assert any(name in line and words[:12] in line for line in lines)


def test_a_method_and_a_data_set_of_ones_own_go_all_the_way(registered: CliRunner, tmp_path: Path) -> None:
    recipe, run = tmp_path / "own.toml", tmp_path / "run"
    recipe.write_text(
        'threads = 1\n[data]\nname = "halves"\n[method]\nname = "agreement"\nweight = 0.5\n'
        "[encoder]\nwidth = 2\n[training]\nbatch_size = 20\n"
    )
    for words in (["run", recipe, "--out", run], ["evaluate", run], ["resume", run]):
        result = registered.invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
    assert 'name = "agreement"' in (run / "config.toml").read_text()
    assert json.loads((run / "scores.json").read_text())["sizes"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["round"]) for row in rows] == [("agree", 1), ("agree", 2)]


def test_a_key_that_the_own_method_lacks_is_refused(registered: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[method]\nname = "agreement"\nwieght = 0.5\n')
    result = registered.invoke(app, ["run", str(tmp_path / "own.toml")])
    assert result.exit_code == 2
    assert "Did you mean 'weight'?" in result.stderr
