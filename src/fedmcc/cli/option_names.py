"""Refuses unknown options of `--set` at once: their names are read from the source code, without torch.

`fedmcc.config` checks everything again, with the values; what is not found here is left to it.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError, unknown

PACKAGES = ("config", "data", "views", "networks", "methods", "training", "federation", "evaluation")


def check_names(table: Mapping[str, Any], settings: Iterable[str]) -> None:
    """Raise InputError if a setting `a.b=c` names a section, an entry of a registry or a key that is unknown.

    `table` is the recipe that the settings change.
    """
    split = [setting.partition("=") for setting in settings]
    names = {key.strip(): value.strip().strip("\"'") for key, _, value in split}
    for (key, equals, _), setting in zip(split, settings, strict=True):
        if not equals or not key.strip():
            raise InputError(f"'{setting}' is not a setting: write it as section.key=value.")
        section, _, option = (part.strip() for part in key.partition("."))
        if section not in {*_fields("General"), *_sections()}:
            raise _unknown_section(section, table, names)
        if option and section in _sections():
            known, option = _options(section, table, names), option.partition(".")[0]
            if known and option not in {*known, "name", "preset"}:
                raise unknown(f"key in [{section}]", option, known)


def require_registered(section: str, name: str) -> None:
    """Raise InputError if the registry of a section has no entry of this name."""
    registry, _ = _choice(section)
    if name in registry or (section == "encoder" and name in _plugins()):
        return
    if section in ("method", "clustering") and (instead := ast.literal_eval(_constant("RENAMED")).get(name)):
        raise InputError(f"{section}.name is '{name}', which is gone: {instead}.")
    remedy = _text("ENCODERS_OF_EXTRAS") if section == "encoder" else ""
    raise unknown({"data": "data set"}.get(section, section), name, registry, remedy)


def _unknown_section(key: str, table: Mapping[str, Any], names: Mapping[str, str]) -> InputError:
    """An error that names the sections with an option of this name, or a similar section."""
    places = [section for section in _sections() if key in _options(section, table, names)]
    if places:
        meant = " or ".join(f"'{section}.{key}'" for section in places)
        return InputError(f"Unknown key '{key}'. Did you mean {meant}?")
    return unknown("key", key, {*_fields("General"), *_sections()})


def _options(section: str, table: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    """The options of a section, which depend on the entry of a registry that is chosen in it."""
    if section not in _registries():
        return _fields(_sections()[section])
    given, (registry, default) = table.get(section), _choice(section)
    name = names.get(f"{section}.name", given.get("name") if isinstance(given, Mapping) else None)
    if section == "encoder" and name in _plugins():
        return ()
    if name is not None:
        require_registered(section, str(name))
    return _fields(registry[str(name or default)])


@cache
def _sections() -> dict[str, str]:
    """The sections of a configuration, with the class of their options."""
    return {
        item.target.id: ast.unparse(item.annotation)
        for item in _classes("Config")[0].body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        if item.target.id != "general"
    }


@cache
def _registries() -> dict[str, ast.expr]:
    """The sections with a registry, each with the expression of the registry and of the default name."""
    return dict(_pairs(_constant("CHOICES")))


@cache
def _choice(section: str) -> tuple[dict[str, str], str]:
    """The names in the registry of a section with their classes, and the default name."""
    choice = _registries()[section]
    assert isinstance(choice, ast.Tuple)
    registry, default = choice.elts
    default = _constant(default.id) if isinstance(default, ast.Name) else default
    entries = {name: ast.unparse(entry) for name, entry in _pairs(_constant(ast.unparse(registry)))}
    return entries, ast.literal_eval(default)


def _text(name: str) -> str:
    return str(ast.literal_eval(_constant(name)))


def _plugins() -> set[str]:
    """The names of encoders of other packages."""
    return set(entry_points(group=_text("PLUGINS")).names)


def _pairs(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    assert isinstance(node, ast.Dict)
    for key, value in zip(node.keys, node.values, strict=True):
        assert isinstance(key, ast.Constant)
        yield str(key.value), value


@cache
def _fields(name: str) -> tuple[str, ...]:
    """The options of a class and of the classes that it is derived from; none if its name is not unique."""
    found = _classes(name)
    if len(found) != 1:
        return ()
    inherited = [field for base in found[0].bases for field in _fields(ast.unparse(base).rpartition(".")[2])]
    own = [
        item.target.id
        for item in found[0].body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        if not ast.unparse(item.annotation).startswith("ClassVar")
    ]
    return tuple(dict.fromkeys([*inherited, *own]))


@cache
def _classes(name: str) -> list[ast.ClassDef]:
    """The classes of this name."""
    return [
        node for node in _statements(f"class {name}") if isinstance(node, ast.ClassDef) and node.name == name
    ]


def _constant(name: str) -> ast.expr:
    """The value of a constant of a module."""
    for node in _statements(name):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node.value
    raise LookupError(name)


def _statements(start: str) -> Iterator[ast.stmt]:
    """The statements of the modules in which a line starts like this; parsing all modules takes too long."""
    starts = re.compile(rf"^{start}\b", re.MULTILINE)
    for text in _modules():
        if starts.search(text):
            yield from _tree(text).body


@cache
def _modules() -> tuple[str, ...]:
    root = Path(__file__).parents[1]
    files = (path for name in PACKAGES for path in sorted((root / name).rglob("*.py")))
    return tuple(path.read_text(encoding="utf-8") for path in files)


@cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)
