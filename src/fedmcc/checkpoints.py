"""Networks and progress on disk: safetensors and JSON, whole or absent, checked before they are used."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import nn

from fedmcc.errors import InputError
from fedmcc.federation import Progress
from fedmcc.files import write_atomically
from fedmcc.runs import Run
from fedmcc.states import State, adopt


def save_state(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """A state as a safetensors file."""
    contiguous = {name: value.contiguous() for name, value in state.items()}
    # An empty dictionary of metadata beside no tensors would make a file that cannot be read.
    content = safetensors.torch.save(contiguous, dict(metadata) if metadata else None)
    write_atomically(path, _sorted(content))


def _sorted(content: bytes) -> bytes:
    """The same file with its metadata in order, which safetensors leaves to chance."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + text.ljust(end - 8) + content[end:]


def load_state(path: Path) -> State:
    """A state from a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise InputError(f"There is no checkpoint at {path}: let the run finish or give another.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is damaged or no safetensors file ({error}): restore it from a copy."
        ) from None


def load_metadata(path: Path) -> dict[str, str]:
    """The words beside the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        load_state(path)  # says what is wrong
        return {}


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
    adopt(net, state)


@dataclass(frozen=True, eq=False)
class Saved:
    """A moment of a run between two rounds."""

    progress: Progress
    clients: dict[int, State]
    rows: int  # lines of metrics.jsonl that belong to it


def save_progress(run: Run, saved: Saved, changed: Collection[int]) -> None:
    """Commit a round: new files first, then the list that names them, then the old files go.

    Only the clients in `changed` are written again.
    """
    progress, folder = saved.progress, run.resume_folder
    moment = f"{progress.stage}-{progress.round:06}.safetensors"
    files = _listing(run).get("clients", {})
    for client in changed:
        files[str(client)] = f"client-{client}-{moment}"
        save_state(folder / files[str(client)], saved.clients[client])
    save_state(folder / f"model-{moment}", progress.model)
    save_state(folder / f"extras-{moment}", progress.extras)
    listing = {
        "stage": progress.stage,
        "round": progress.round,
        "rows": saved.rows,
        "met": sorted(progress.met),
        "model": f"model-{moment}",
        "extras": f"extras-{moment}",
        "clients": files,
    }
    write_atomically(folder / "progress.json", json.dumps(listing, indent=2) + "\n")
    named = {"progress.json", listing["model"], listing["extras"], *files.values()}
    for path in folder.iterdir():
        if path.name not in named:
            path.unlink()


def load_progress(run: Run) -> Saved | None:
    """The last committed round, or nothing when there is none yet."""
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
            met=frozenset(listing["met"]),
        )
        clients = {int(client): load_state(folder / name) for client, name in listing["clients"].items()}
        return Saved(progress, clients, listing["rows"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{folder / 'progress.json'} is damaged: restore it from a copy.") from None


def _listing(run: Run) -> dict[str, Any]:
    return run.read_json("resume/progress.json")
