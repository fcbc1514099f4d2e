"""What the owner of a site allows, in the table `[policy]` of `site.toml`: all other recipes are refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fedmcc.config import Config, dump, name_of
from fedmcc.deployment.recipes import recipe_hash
from fedmcc.errors import InputError, unknown
from fedmcc.runs.resolve import stages

NO_CLUSTERING = "none"
AMOUNTS = ("max_clip", "min_noise")
SWITCHES = ("secure_aggregation", "open_statistics")
REQUIRED = {"secure-aggregation": "secure_aggregation"}  # by the name for `site start --require`


@dataclass(frozen=True)
class SitePolicy:
    """The limits of a site; None allows everything."""

    methods: tuple[str, ...] | None = None  # names of methods, and of clusterings that may follow them
    recipes: tuple[str, ...] | None = None  # hashes, as `site check` prints them
    max_rounds: int | None = None  # of all stages together
    max_epochs: int | None = None  # in one round
    min_participants: int | None = None  # smallest federation.minimum
    max_clip: float | None = None  # largest privacy.clip, which must be set
    min_noise: float | None = None  # smallest privacy.noise; the server adds it
    secure_aggregation: bool = False  # require federation.secure_aggregation
    open_statistics: bool = False  # with it, allow federation.open_statistics
    sites: tuple[str, ...] | None = None  # SHA-256 of the keys of sites to aggregate with

    def objection(self, config: Config) -> str:
        """Why the site does not take part in a run of this recipe, as a sentence; empty if it does."""
        checks = (self._recipe, self._method, self._length, self._participants, self._privacy, self._masks)
        for find in checks:
            if reason := find(config):
                return f"The policy of the site {reason}."
        return ""

    def _recipe(self, config: Config) -> str:
        if self.recipes is None or (given := recipe_hash(dump(config))) in self.recipes:
            return ""
        return f"does not list the recipe {given}"

    def _method(self, config: Config) -> str:
        names = (name_of("method", config.method), name_of("clustering", config.clustering))
        for name in names if self.methods is not None else ():
            if name not in (*(self.methods or ()), NO_CLUSTERING):
                return f"does not allow the method {name}"
        return ""

    def _length(self, config: Config) -> str:
        rounds = sum(stage.rounds for stage in stages(config))
        epochs = max((stage.epochs for stage in stages(config)), default=0)
        if self.max_rounds is not None and rounds > self.max_rounds:
            return f"allows {self.max_rounds} rounds, but the recipe has {rounds}"
        if self.max_epochs is not None and epochs > self.max_epochs:
            return f"allows {self.max_epochs} epochs in a round, but the recipe has {epochs}"
        return ""

    def _participants(self, config: Config) -> str:
        minimum = config.federation.fewest
        if self.min_participants is None or minimum >= self.min_participants:
            return ""
        return (
            f"requires federation.minimum of at least {self.min_participants}, but the recipe has {minimum}"
        )

    def _privacy(self, config: Config) -> str:
        privacy = config.privacy
        if self.max_clip is not None and (privacy.clip is None or privacy.clip > self.max_clip):
            return f"requires privacy.clip of at most {self.max_clip:g}, but the recipe has {privacy.clip}"
        if self.min_noise is None:
            return ""
        if privacy.noise < self.min_noise:
            return (
                f"requires privacy.noise of at least {self.min_noise:g}, but the recipe has {privacy.noise:g}"
            )
        return (
            "does not allow privacy.reproducible, which makes noise predictable"
            if privacy.reproducible
            else ""
        )

    def _masks(self, config: Config) -> str:
        federation = config.federation
        if self.secure_aggregation and not federation.secure_aggregation:
            return "requires federation.secure_aggregation, but the recipe does not set it"
        if self.secure_aggregation and federation.open_statistics and not self.open_statistics:
            return "does not allow federation.open_statistics, with which the server reads some statistics"
        return ""


def required(policy: SitePolicy, names: str) -> SitePolicy:
    """The policy with what the owner requires on the command line: names, separated by commas."""
    for name in filter(None, names.split(",")):
        if name not in REQUIRED:
            raise unknown("requirement", name, REQUIRED)
        switch: dict[str, Any] = {REQUIRED[name]: True}
        policy = replace(policy, **switch)
    return policy


def parse_policy(table: Mapping[str, Any]) -> SitePolicy:
    """The policy in a table; unknown keys and invalid values are errors, so that no limit is overlooked."""
    known = [field.name for field in fields(SitePolicy)]
    for key in table:
        if key not in known:
            raise unknown("key in [policy] of site.toml", key, known)
    return SitePolicy(**{key: _value(key, value) for key, value in table.items()})


def _value(key: str, value: Any) -> Any:
    valid, expected = _expected(key)
    if not valid(value):
        raise InputError(f"{key} in [policy] of site.toml is {value!r}: give {expected}.")
    if isinstance(value, list):
        return tuple(value)
    return float(value) if key in AMOUNTS else value


def _expected(key: str) -> tuple[Callable[[Any], bool], str]:
    """How a value of this key is checked, and a description of valid ones."""
    if key in SWITCHES:
        return _is_switch, "true or false"
    if key in ("methods", "recipes", "sites"):
        return _is_texts, 'a list of texts, such as ["fedmcc"]'
    if key in AMOUNTS:
        return _is_amount, "a number above 0"
    return _is_count, "a whole number above 0"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_switch(value: Any) -> bool:
    return type(value) is bool


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
