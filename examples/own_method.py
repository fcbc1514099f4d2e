"""Add a method in one file and run it on handwritten digits: python examples/own_method.py"""

import argparse
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

import fedmcc
from fedmcc import METHODS, Branch, Network, Stage, instance_projector, losses


@dataclass(frozen=True)
class Decorrelated:
    """Instance contrast with decorrelated projections; it has no cluster head: k-means makes the clusters."""

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
    trained: tuple[str, ...] = ("online",)  # updated by the optimiser
    shared: tuple[str, ...] = ("online",)  # averaged over the clients after each round

    def represent(self, net: Network, a: Tensor, b: Tensor) -> Outputs:
        f, g = net.online.encoder, net.online.instance_projector
        return Outputs(g(f(a)), g(f(b)))

    def loss(self, outputs: Outputs) -> Tensor:
        correlation = outputs.z_a.T.corrcoef().square().fill_diagonal_(0).mean()
        contrast = losses.nt_xent(*outputs, self.method.temperature)
        return contrast + self.method.decorrelation * correlation


METHODS["decorrelated"] = Decorrelated  # inside fedmcc: a line in methods/__init__.py

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    method = {"name": "decorrelated", "rounds": parser.parse_args().epochs}
    run = fedmcc.run(fedmcc.load_config({"method": method}))
    print(run.path, run.read_json("scores.json")["scores"])
