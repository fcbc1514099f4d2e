"""Reads TOML as people write it, with errors that name the file; without torch, so that they come at once."""

import tomllib
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError


def read_recipe(path: Path) -> str:
    """The text of a recipe."""
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows may write a byte order mark
    except FileNotFoundError:
        raise InputError(
            f"There is no recipe at {path}: give the path of a TOML file, or of a folder of images."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read the recipe {path}: {error}. Give a TOML file.") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The table of a TOML text; errors call the text by its source."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not valid TOML: {error}.") from None
