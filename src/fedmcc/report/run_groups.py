"""Groups runs of equal configuration, and names each group by the options in which it differs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmcc.report.charts import html_label
from fedmcc.report.palette import palette
from fedmcc.report.run_facts import Facts
from fedmcc.report.schema import Table

IGNORED_OPTIONS = ("seed", "device", "threads", "engine")  # they do not change what is learned
DATASETS_CHOSEN_BY_ROOT = ("folder", "arrays")  # for other data sets data.root is only their location
MAX_OPTIONS_IN_NAME = 3  # if no method, data set, encoder etc. differs

Options = Sequence[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds."""

    number: int
    name: str
    label: str  # the name, shortened for legends
    colour: str
    runs: Sequence[Facts]


def group_runs(runs: Sequence[Facts]) -> list[Group]:
    """The runs grouped by configuration, in the order given."""
    by_options: dict[str, list[Facts]] = defaultdict(list)
    for run in runs:
        by_options[repr(sorted(_options(run.config).items()))].append(run)
    groups = list(by_options.values())
    names = _names(groups)
    columns = zip(names, _labels(names), palette(len(groups)), groups, strict=True)
    return [Group(number, *fields) for number, fields in enumerate(columns)]


def _labels(names: Sequence[str]) -> list[str]:
    """Shortened names, with a number added where shortening made them equal."""
    short = [html_label(name) for name in names]
    return [f"{name} ({number})" if short.count(name) > 1 else name for number, name in enumerate(short, 1)]


def _names(groups: Sequence[Sequence[Facts]]) -> list[str]:
    """The differing methods, data sets etc., or else a few options; more options while names are equal."""
    options = [_options(runs[0].config) for runs in groups]
    differing = _differing_keys(options)
    registered = [key for key in differing if key.endswith(".name")]
    parts = [[str(option[key]) for key in registered if key in option] for option in options]
    for key in differing[:MAX_OPTIONS_IN_NAME] if not registered else ():
        _add_option(key, options, parts, range(len(parts)))
    for key in differing if registered else differing[MAX_OPTIONS_IN_NAME:]:
        for indices in _equal_names(parts):
            _add_option(key, options, parts, indices)
    unnamed = {index for index, words in enumerate(parts) if not words}.union(*_equal_names(parts))
    for index in unnamed:
        parts[index].append(groups[index][0].name)
    return [", ".join(words) for words in parts]


def _add_option(key: str, options: Options, parts: Sequence[list[str]], indices: Sequence[int]) -> None:
    """Add an option to the names at these indices if its values differ among them."""
    if key in _differing_keys([options[index] for index in indices]):
        for index in indices:
            if key in options[index]:
                parts[index].append(f"{key.split('.')[-1]} {options[index][key]}")


def _equal_names(parts: Sequence[Sequence[str]]) -> list[list[int]]:
    """The indices of names that occur more than once, name by name."""
    indices: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, words in enumerate(parts):
        indices[tuple(words)].append(index)
    return [equal for equal in indices.values() if len(equal) > 1]


def _differing_keys(options: Options) -> list[str]:
    """The keys whose values are not all equal."""
    keys = dict.fromkeys(key for option in options for key in option)
    return [key for key in keys if len({repr(option.get(key)) for option in options}) > 1]


def differences(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every option that differs between groups, with its value in each group."""
    options = [_options(group.runs[0].config) for group in groups]
    return [
        {"key": key, "values": ["" if option.get(key) is None else str(option[key]) for option in options]}
        for key in _differing_keys(options)
    ]


def _options(config: Table) -> dict[str, Any]:
    """A configuration with dotted keys, without the options that do not change what is learned."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key in IGNORED_OPTIONS:
            continue
        flat |= (
            {f"{key}.{inner}": option for inner, option in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    if config.get("data", {}).get("name") not in DATASETS_CHOSEN_BY_ROOT:
        flat.pop("data.root", None)
    return flat
