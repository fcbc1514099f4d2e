"""A cell that the paper prints in several tables is trained once: later tables copy its finished run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedmcc.errors import InputError
from fedmcc.reproduction.cells import PLAN_FILE, Cell, recipe_text
from fedmcc.runs.directory import load_run


def copy_equal_run(cell: Cell) -> bool:
    """Copy a finished run of the same recipe, settings and seed from a table beside this one, if any.

    The t-SNE figures also need the networks of earlier rounds, which the runs of other tables do not keep. A
    cell with the encoder of another row is not copied: that row may be another one there.
    """
    if cell.protocol == "tsne" or cell.encoder_of is not None:
        return False
    for path in _equal_runs(cell):
        unfinished = cell.path.with_name(f".{cell.name}.copy")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(path, unfinished)
        unfinished.rename(cell.path)
        return True
    return False


def _equal_runs(cell: Cell) -> Iterator[Path]:
    """Folders of finished runs of the same recipe, settings and seed, in all tables beside this one."""
    wanted = recipe_text(cell)
    for plan in sorted(cell.path.parents[2].glob(f"*/{PLAN_FILE}")):
        for name, recipe in _recipes(plan).items():
            path = plan.parent / "cells" / f"{name}-seed{cell.seed}"
            if recipe == wanted and path != cell.path and _finished(path):
                yield path


def _recipes(plan: Path) -> dict[str, str]:
    try:
        content = json.loads(plan.read_text())
    except (OSError, ValueError):
        return {}
    recipes = content.get("recipes") if isinstance(content, dict) else None
    return recipes if isinstance(recipes, dict) else {}


def _finished(path: Path) -> bool:
    try:
        return load_run(path).finished
    except InputError:
        return False
