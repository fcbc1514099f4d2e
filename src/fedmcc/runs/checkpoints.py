"""Networks and progress on disk, as safetensors and JSON: written atomically, checked when loaded."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedmcc.errors import InputError
from fedmcc.federation.rounds import Progress
from fedmcc.methods.base import Stage
from fedmcc.networks.prototypes import trim, trim_as
from fedmcc.numerics.state_dicts import State, copy_into
from fedmcc.runs.directory import PROGRESS, Run
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.storage.safetensor_files import load_metadata, load_shapes, load_state, save_state, save_states

__all__ = [
    "Saved",
    "check_architecture",
    "load_metadata",
    "load_network",
    "load_progress",
    "load_shapes",
    "load_state",
    "save_progress",
    "save_state",
]


def load_network(net: nn.Module, path: Path) -> None:
    """Load a checkpoint into a network of the same architecture."""
    state = load_state(path)
    trim_as(net, {name: value.shape for name, value in state.items()})
    own = net.state_dict()
    for name, value in state.items():
        if name not in own:
            raise InputError(
                f"{path} is of another architecture: the file has {name}, the network does not. "
                "Use the configuration it was trained with."
            )
        if value.shape != own[name].shape:
            raise InputError(
                f"{path} is of another architecture: {name} is {tuple(value.shape)} in the file and "
                f"{tuple(own[name].shape)} in the network. Use the configuration it was trained with."
            )
    missing = sorted({name for name in own if name.startswith("online.")} - set(state))
    if missing:
        raise InputError(
            f"{path} is of another architecture: the network has {missing[0]}, the file does not. "
            "Use the configuration it was trained with."
        )
    copy_into(net, state)
    trim(net)


@dataclass(frozen=True, eq=False)
class Saved:
    """The state of a run between two rounds."""

    progress: Progress
    rows: int  # of metrics.jsonl so far
    clients: Mapping[int, Path]  # file with the state of each client, read when it is needed


def save_progress(
    run: Run, progress: Progress, rows: int, changed: Iterable[tuple[int, State]]
) -> dict[int, Path]:
    """Commit a round: write new files, then the list of current files, then delete the old files.

    Only the states of the clients in `changed` are written, one at a time; returns their files.
    """
    folder = run.resume_folder
    suffix = f"{progress.stage}-{progress.round:06}.safetensors"
    files, changed_files = dict(_listing(run).get("clients", {})), {}

    def new_files() -> Iterator[tuple[str, State]]:
        yield f"model-{suffix}", progress.model
        yield f"extras-{suffix}", progress.extras
        for client, state in changed:
            files[str(client)] = name = f"client-{client}-{suffix}"
            changed_files[client] = folder / name
            yield name, state

    save_states(folder, new_files())
    position = {"stage": progress.stage, "round": progress.round, "rows": rows}
    holders = {part: sorted(clients) for part, clients in progress.holders.items()}
    names = {"model": f"model-{suffix}", "extras": f"extras-{suffix}", "clients": files}
    # 0.1 requires `met`; with an empty one it sends frozen parts again.
    _write_listing(folder, {**position, "holders": holders, "met": [], **names})
    return changed_files


def _write_listing(folder: Path, listing: dict[str, Any]) -> None:
    write_atomically(folder / "progress.json", json.dumps(listing) + "\n")
    _delete_others(
        folder, {"progress.json", listing["model"], listing["extras"], *listing["clients"].values()}
    )


def _delete_others(folder: Path, kept: set[str]) -> None:
    """Delete everything from the folder except these files."""
    with os.scandir(folder) as entries:  # a Path for each of thousands of clients would be slow
        others = [entry for entry in entries if entry.name not in kept]
    for entry in others:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry)
        else:
            Path(entry).unlink()


def load_progress(run: Run) -> Saved | None:
    """Load the last committed round, or None if there is none; states of clients are not read."""
    folder, listing = run.resume_folder, _listing(run)
    if not listing and not (folder / "progress.json").exists():
        folder.mkdir(exist_ok=True)
        return None
    try:
        progress = Progress(
            model=load_state(folder / listing["model"]),
            stage=listing["stage"],
            round=listing["round"],
            extras=load_state(folder / listing["extras"]),
            holders={part: frozenset(map(int, held)) for part, held in listing.get("holders", {}).items()},
        )
        clients = {int(client): folder / name for client, name in listing["clients"].items()}
        for path in clients.values():
            load_shapes(path)  # raises InputError if the file is missing or damaged
        return Saved(progress, int(listing["rows"]), clients)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{folder / 'progress.json'} is damaged: restore it from a copy.") from None


def _listing(run: Run) -> dict[str, Any]:
    return run.read_json(PROGRESS)


def check_architecture(run: Run, saved: Saved, net: nn.Module, stages: Sequence[Stage]) -> None:
    """Raise InputError if the saved networks or the saved stage do not fit the configuration."""
    expected, model = (
        {name: tuple(value.shape) for name, value in state.items()}
        for state in (net.state_dict(), saved.progress.model)
    )
    clients = (load_shapes(path) for path in saved.clients.values())
    same = model == expected and all(expected == _network_shapes(shapes) for shapes in clients)
    if not same or saved.progress.stage not in ("", *(stage.name for stage in stages)):
        raise InputError(
            f"{run.resume_folder} is of another architecture than {run.config_file.name}: "
            "restore the configuration that the run was started with."
        )


def _network_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix("net."): shape for name, shape in shapes.items() if name.startswith("net.")}
