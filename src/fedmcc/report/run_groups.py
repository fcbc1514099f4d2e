"""Which runs are of one configuration, and what the configurations are called."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmcc.report.charts import plain
from fedmcc.report.palette import palette
from fedmcc.report.run_facts import Facts
from fedmcc.report.schema import Table

# What does not change what is learned.
APART = ("seed", "device", "threads", "engine")
OWN = ("folder", "arrays")  # data sets that data.root chooses; of others it says only where they lie
Options = Sequence[dict[str, Any]]
FEW = 3  # options that make a name where no method, data set and so on differs


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds."""

    number: int
    name: str
    label: str  # the name as short as legends need it
    colour: str
    runs: Sequence[Facts]


def grouped(runs: Sequence[Facts]) -> list[Group]:
    """The runs by configuration, in the order given; named by what tells them apart."""
    found: dict[str, list[Facts]] = defaultdict(list)
    for run in runs:
        found[repr(sorted(_options(run.config).items()))].append(run)
    several = list(found.values())
    names = _names(several)
    told = zip(names, _labels(names), palette(len(several)), several, strict=True)
    return [Group(place, *own) for place, own in enumerate(told)]


def _labels(names: Sequence[str]) -> list[str]:
    """Names cut short, and told apart by number where they are equal then."""
    short = [plain(name) for name in names]
    return [f"{name} ({place})" if short.count(name) > 1 else name for place, name in enumerate(short, 1)]


def _names(several: Sequence[Sequence[Facts]]) -> list[str]:
    """The methods, data sets and so on that differ, else a few options; more while names are equal."""
    options = [_options(own[0].config) for own in several]
    apart = _apart(options)
    first = [key for key in apart if key.endswith(".name")]
    words = [[str(option[key]) for key in first if key in option] for option in options]
    for key in apart[:FEW] if not first else ():
        _say(key, options, words, range(len(words)))
    for key in apart if first else apart[FEW:]:
        for places in _alike(words):
            _say(key, options, words, places)
    unnamed = {place for place, own in enumerate(words) if not own}.union(*_alike(words))
    for place in unnamed:
        words[place].append(several[place][0].name)
    return [", ".join(own) for own in words]


def _say(key: str, options: Options, words: Sequence[list[str]], places: Sequence[int]) -> None:
    """Add an option to the names at these places if it tells them apart."""
    if key in _apart([options[place] for place in places]):
        for place in places:
            words[place] += [f"{key.split('.')[-1]} {options[place][key]}"] if key in options[place] else []


def _alike(words: Sequence[Sequence[str]]) -> list[list[int]]:
    """The places of equal names."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        found[tuple(own)].append(place)
    return [places for places in found.values() if len(places) > 1]


def _apart(options: Options) -> list[str]:
    """The keys that do not have the same value everywhere."""
    every = dict.fromkeys(key for option in options for key in option)
    return [key for key in every if len({repr(option.get(key)) for option in options}) > 1]


def differences(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every option that is not the same in all groups, with its value in each."""
    options = [_options(group.runs[0].config) for group in groups]
    return [
        {"key": key, "values": ["" if option.get(key) is None else str(option[key]) for option in options]}
        for key in _apart(options)
    ]


def _options(config: Table) -> dict[str, Any]:
    """A configuration with dotted keys, but for what does not change what is learned."""
    flat: dict[str, Any] = {}
    own = config.get("data", {}).get("name") in OWN
    for key, value in config.items():
        if key in APART:
            continue
        flat |= (
            {f"{key}.{inner}": option for inner, option in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    return {key: value for key, value in flat.items() if own or key != "data.root"}
