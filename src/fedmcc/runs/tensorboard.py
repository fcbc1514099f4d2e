"""Records the rounds of a run for TensorBoard."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from fedmcc.errors import InputError
from fedmcc.runs.experiment import Scored

Event = TypeVar("Event")


def require_tensorboard() -> None:
    """Raise InputError if TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise InputError(
            "TensorBoard is not installed: install it with pip install 'fedmcc[tensorboard]', "
            "or leave out --tensorboard."
        ) from None


def record_rounds(events: Iterable[Event], folder: Path, done: int = 0) -> Iterator[Event]:
    """Yield the events unchanged and write each round to the folder, numbered from `done` + 1."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=done + 1) as writer:
        number = done
        for event in events:
            if isinstance(event, Scored):
                number += 1
                for tag, value in _numbers(event):
                    writer.add_scalar(tag, value, number)
                writer.flush()
            yield event


def _numbers(scored: Scored) -> Iterator[tuple[str, float]]:
    """The numbers of a row of metrics; each stage has its own loss, since losses of stages do not compare."""
    row = scored.row
    if row["loss"] is not None:
        yield f"loss/{row['stage']}", float(row["loss"])
    for key in ("participants", "refused", "dropped"):
        yield f"clients/{key}", float(len(row[key]))
    for key, value in row.items():
        if isinstance(value, int | float) and key not in ("round", "loss", "attempt"):
            yield (
                f"{'cost' if key in ('seconds', 'bytes_down', 'bytes_up') else 'scores'}/{key}",
                float(value),
            )
