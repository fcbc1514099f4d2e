"""The average of a round where no single update is public: the server's step is done with it alone."""

from dataclasses import replace
from typing import NamedTuple

from fedmcc.messages import Update
from fedmcc.numerics.state_dicts import State


class PublicAverage(NamedTuple):
    """What is learned of a round with secure aggregation, or published with noise."""

    weights: State
    extras: State  # means over images or clients, and sums divided by the number of images
    sums: frozenset[str]  # names of those extras that are sums

    def replace_in(self, update: Update) -> Update:
        """The update with the average instead of its own numbers; the mean of such updates is the average."""
        extras = {
            name: value * update.samples if name in self.sums else value
            for name, value in self.extras.items()
        }
        return replace(update, weights={**counters(update.weights), **self.weights}, extras=extras)


def counters(weights: State) -> State:
    """The tensors of integers, which are neither masked nor averaged with noise."""
    return {name: value for name, value in weights.items() if not value.is_floating_point()}
