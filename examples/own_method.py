"""A method of your own in one file, run on the digits: python examples/own_method.py"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

import fedmcc
from fedmcc import config
from fedmcc.losses import nt_xent
from fedmcc.methods import METHODS, Stage
from fedmcc.networks.heads import instance_projector
from fedmcc.networks.momentum import Branch, Network
from fedmcc.runs.directory import next_free


@dataclass(frozen=True)
class Decorrelated:
    """Instance contrast with decorrelated projections; without a head, k-means makes the clusters."""

    rounds: int = 20
    temperature: float = 0.5
    decorrelation: float = 0.1

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        return Network(Branch(encoder, instance_projector(features, hidden=features, outputs=64)))

    def stages(self) -> tuple[Stage, ...]:
        return (Contrast(name="contrast", rounds=self.rounds, epochs=1, method=self),)


class Outputs(NamedTuple):
    z_a: Tensor
    z_b: Tensor


@dataclass(frozen=True, kw_only=True)
class Contrast(Stage):
    method: Decorrelated
    trained: tuple[str, ...] = ("online",)  # by the optimiser
    shared: tuple[str, ...] = ("online",)  # averaged, were there several clients

    def represent(self, net: Network, a: Tensor, b: Tensor) -> Outputs:
        f, g = net.online.encoder, net.online.instance_projector
        return Outputs(g(f(a)), g(f(b)))

    def loss(self, outputs: Outputs) -> Tensor:
        repeated = outputs.z_a.T.corrcoef().square().fill_diagonal_(0).mean()
        return nt_xent(*outputs, self.method.temperature) + self.method.decorrelation * repeated


METHODS["decorrelated"] = Decorrelated  # inside fedmcc: a line in methods/__init__.py
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    method = {"name": "decorrelated", "rounds": parser.parse_args().epochs}
    run = fedmcc.run(config.parse({"method": method}), next_free(Path("runs"), "own-method"))
    print(run.path, run.read_json("scores.json")["scores"])
