"""Networks and progress on disk: safetensors and JSON, whole or absent, checked before they are used."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedmcc.errors import InputError
from fedmcc.federation.rounds import Progress
from fedmcc.numerics.state_dicts import State, copy_into
from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.storage.safetensor_files import load_metadata, load_shapes, load_state, save_state, save_states

__all__ = [
    "Saved",
    "load_metadata",
    "load_network",
    "load_progress",
    "load_shapes",
    "load_state",
    "save_progress",
    "save_state",
]


def load_network(net: nn.Module, path: Path) -> None:
    """Put a checkpoint into a network of the same architecture."""
    state, own = load_state(path), net.state_dict()
    for name, value in state.items():
        if name not in own:
            raise InputError(
                f"{path} is of another architecture: it has {name}, the network has not. "
                "Use the configuration it was trained with."
            )
        if value.shape != own[name].shape:
            raise InputError(
                f"{path} is of another architecture: {name} is {tuple(value.shape)} in the file and "
                f"{tuple(own[name].shape)} in the network. Use the configuration it was trained with."
            )
    missing = sorted({name for name in own if name.startswith("online.")} - set(state))
    if missing:
        raise InputError(f"{path} is of another architecture: {missing[0]} is not in it. Use its own config.")
    copy_into(net, state)


@dataclass(frozen=True, eq=False)
class Saved:
    """A moment of a run between two rounds."""

    progress: Progress
    rows: int  # lines of metrics.jsonl that belong to it
    clients: Mapping[int, Path]  # where what each client remembers lies, to be read when it is needed


def save_progress(
    run: Run, progress: Progress, rows: int, changed: Iterable[tuple[int, State]]
) -> dict[int, Path]:
    """Commit a round: new files first, then the list that names them, then the old files go.

    Only what the clients in `changed` remember is written, one after the other; returns where it lies.
    """
    folder = run.resume_folder
    moment = f"{progress.stage}-{progress.round:06}.safetensors"
    files, own = dict(_listing(run).get("clients", {})), {}

    def new() -> Iterator[tuple[str, State]]:
        yield f"model-{moment}", progress.model
        yield f"extras-{moment}", progress.extras
        for client, state in changed:
            files[str(client)] = name = f"client-{client}-{moment}"
            own[client] = folder / name
            yield name, state

    save_states(folder, new())
    listing: dict[str, Any] = {
        "stage": progress.stage,
        "round": progress.round,
        "rows": rows,
        "met": sorted(progress.frozen_sent),
        "model": f"model-{moment}",
        "extras": f"extras-{moment}",
        "clients": files,
    }
    write_atomically(folder / "progress.json", json.dumps(listing) + "\n")
    _keep(folder, {"progress.json", listing["model"], listing["extras"], *files.values()})
    return own


def load_progress(run: Run) -> Saved | None:
    """The last committed round, or nothing when there is none yet; what clients remember is not read."""
    listing = _listing(run)
    if not listing:
        return None
    folder = run.resume_folder
    try:
        progress = Progress(
            model=load_state(folder / listing["model"]),
            stage=listing["stage"],
            round=listing["round"],
            extras=load_state(folder / listing["extras"]),
            frozen_sent=frozenset(listing["met"]),
        )
        clients = {int(client): folder / name for client, name in listing["clients"].items()}
        for path in clients.values():
            load_shapes(path)  # says what is missing or damaged before anything is run
        return Saved(progress, listing["rows"], clients)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{folder / 'progress.json'} is damaged: restore it from a copy.") from None


def _listing(run: Run) -> dict[str, Any]:
    return run.read_json("resume/progress.json")


def _keep(folder: Path, named: set[str]) -> None:
    """Remove everything else from the folder."""
    with os.scandir(folder) as found:  # a Path for each of thousands of clients takes long
        others = [entry for entry in found if entry.name not in named]
    for entry in others:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry)
        else:
            Path(entry).unlink()
