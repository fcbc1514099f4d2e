"""Changes to single keys of a recipe, such as `method.rounds=5`: the option `--set` of the commands."""

import tomllib
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from fedmcc.errors import InputError

Table = dict[str, Any]


def apply_settings(table: Table, settings: Iterable[str]) -> Table:
    """Return a copy of the table with every setting `a.b=c`; c is read as TOML, or else as plain text."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(f"'{setting}' is not a setting: write it as section.key=value.")
        table = set_key(table, key, _value(text.strip()))
    return table


def set_key(table: Table, key: str, value: object) -> Table:
    """Return a copy of the table in which the dotted key has this value."""
    first, dot, rest = (part.strip() for part in key.partition("."))
    if not dot:
        return {**table, first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise InputError(f"{first} is {inner!r}: it has no key {rest}.")
    return {**table, first: set_key(inner, rest, value)}


def _value(text: str) -> object:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # No option is a date, but a folder may be named like one.
    return text if isinstance(value, date | time) else value
