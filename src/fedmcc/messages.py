"""Task and Update: all that crosses the wire between a server and its clients."""

from dataclasses import dataclass, field

from fedmcc.states import State, bytes_of


@dataclass(frozen=True, eq=False)
class Task:
    """What the server asks of one client in one round."""

    client: int
    stage: str
    round: int
    weights: State
    extras: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the numbers sent down."""
        return bytes_of(self.weights) + bytes_of(self.extras)


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back: the shared weights after its local training, and how it went."""

    client: int
    stage: str
    round: int
    samples: int
    loss: float | None  # None where nothing was trained
    weights: State
    extras: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the numbers sent up."""
        return bytes_of(self.weights) + bytes_of(self.extras)
