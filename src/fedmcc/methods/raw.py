"""The encoder without training, for a clustering of pixels or of pretrained features."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmcc.methods.about import About
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Branch, Network


@dataclass(frozen=True)
class Raw:
    """No training: a clustering of the encoder's features, such as pixels or pretrained features."""

    about: ClassVar[About] = About(
        "classical", "MacQueen (k-means)", 1967, "a clustering, such as lloyd or landmarks"
    )

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """The encoder alone."""
        return Network(Branch(encoder))

    def stages(self) -> tuple[Stage, ...]:
        """No stages."""
        return ()
