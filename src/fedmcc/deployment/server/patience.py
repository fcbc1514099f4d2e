"""How long the server waits for the last sites of a round, learned from the answers of the others."""

import math
from collections.abc import Collection
from statistics import median_low

SHORTEST = 60.0  # seconds; Flower needs about as long to notice a lost connection
USUAL = 5.0  # times the median; a slower site misses one round, since its own time then counts
OWN = 2.0  # times the last time of a site that is still at work


class Patience:
    """The seconds that sites needed for one kind of work, last time."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by client; none for a client that has not answered

    def answered(self, client: int, seconds: float) -> None:
        """Record that a client answered, in time or late."""
        self._seconds[client] = seconds

    def gave_up(self, client: int) -> None:
        """Forget a client that did not answer: it must not keep the others waiting a second time."""
        self._seconds.pop(client, None)

    def seconds(self, asked: Collection[int], waiting: Collection[int], limit: float) -> float:
        """How long to wait for the waiting ones of these clients, from the moment they were asked.

        The median counts those without a known time as infinitely slow: at least half must have answered, and
        hostile sites that answer at once do not shorten it unless they are half of all.
        """
        usual = median_low([self._seconds.get(client, math.inf) for client in asked])
        own = max((self._seconds.get(client, 0.0) for client in waiting), default=0.0)
        return min(limit, max(SHORTEST, USUAL * usual, OWN * own))
