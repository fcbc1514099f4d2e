"""What the options of every registered thing promise: defaults, a sentence, a way through config.toml."""

import tomllib
from dataclasses import MISSING, dataclass, fields, replace

import numpy as np
import pytest

from fedmcc.cli.listing import KINDS, entries, groups
from fedmcc.config import CHOICES, dump, name_of, parse
from fedmcc.data.base import ImageSet
from fedmcc.data.partition import PARTITIONS, PartitionOptions, partition_images
from fedmcc.errors import InputError
from fedmcc.methods import METHODS
from fedmcc.methods.about import GROUPS, About
from fedmcc.reproduction.cost import Estimator
from fedmcc.reproduction.table_spec import read_shared
from fedmcc.runs.protocols import PROTOCOLS
from fedmcc.views import PRESETS, Views

ENTRIES = [(section, name) for section, (known, _) in CHOICES.items() for name in known]


def _options(section, name):
    return fields(CHOICES[section][0][name])


over_entries = pytest.mark.parametrize(("section", "name"), ENTRIES)


@over_entries
def test_every_option_has_a_default(section, name):
    for field in fields(CHOICES[section][0][name]):
        assert field.default is not MISSING or field.default_factory is not MISSING


@over_entries
def test_a_configuration_goes_to_toml_and_back(section, name):
    config = parse({section: {"name": name}})
    assert name_of(section, getattr(config, section)) == name
    assert parse(tomllib.loads(dump(config))) == config


@over_entries
def test_every_option_is_in_the_dump_unless_it_is_open(section, name):
    config = parse({section: {"name": name}})
    written = tomllib.loads(dump(config))[section]
    options = getattr(config, section)
    for field in fields(options):
        assert (field.name in written) == (getattr(options, field.name) is not None)


@over_entries
def test_an_option_that_may_be_open_is_open_by_default(section, name):
    """What is None is not written: reading the file back must give None again."""
    for field in fields(CHOICES[section][0][name]):
        assert field.default is None or "None" not in str(field.type)


@pytest.mark.parametrize(("section", "name"), [entry for entry in ENTRIES if _options(*entry)])
def test_a_mistyped_option_gets_a_suggestion(section, name):
    option = _options(section, name)[0].name
    with pytest.raises(
        InputError, match=rf"Unknown key in \[{section}\] '{option}s'\. Did you mean '{option}'"
    ):
        parse({section: {"name": name, f"{option}s": 1}})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_of_views_goes_to_toml_and_back(name):
    config = parse({"views": {"preset": name}})
    assert config.views == PRESETS[name]
    assert parse(tomllib.loads(dump(config))) == config


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "protocols"])
def test_every_entry_is_listed_with_a_sentence_and_its_options(kind):
    registry = KINDS[kind]
    listed = {name: (sentence, options) for name, sentence, options in entries(kind)}
    assert list(listed) == list(registry)
    for name, (sentence, options) in listed.items():
        assert sentence
        kinds = fields({"views": Views, "partitions": PartitionOptions}.get(kind, registry[name]))
        assert {option.split("=")[0] for option in options.split()} <= {field.name for field in kinds}


def test_every_protocol_is_listed_with_a_sentence_and_what_it_needs():
    listed = {name: (sentence, options) for name, sentence, options in entries("protocols")}
    assert list(listed) == list(PROTOCOLS)
    for name, protocol in PROTOCOLS.items():
        sentence, options = listed[name]
        assert sentence.startswith(protocol.measure.__doc__)
        assert ("Needs labels." in sentence) == protocol.needs_labels
        assert options == ("--seeds" if protocol.random else "")


def test_whatever_a_section_can_name_is_listed():
    listed = [set(registry) for registry in KINDS.values()]
    assert all(set(known) in listed for known, _ in CHOICES.values())


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_is_listed_with_the_options_that_it_reads(name):
    """An option that is not shown changes nobody's images."""
    (options,) = [options for listed, _, options in entries("partitions") if listed == name]
    shown = {option.split("=")[0] for option in options.split()}
    images = ImageSet(np.zeros((60, 1, 2, 2), np.uint8), np.arange(60) % 6, groups=np.arange(60) % 3)
    plain = PartitionOptions(name=name, clients=3)
    for option, value in {"alpha": 5.0, "uneven": 1.0}.items():
        dealt, other = (
            partition_images(images, sharing, 0) for sharing in (plain, replace(plain, **{option: value}))
        )
        same = all(np.array_equal(a, b) for a, b in zip(dealt, other, strict=True))
        assert same == (option not in shown)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_publication_of_its_own(name):
    about = vars(METHODS[name]).get("about")
    assert isinstance(about, About), f"{METHODS[name].__name__} inherits the publication of another method"
    assert about.group in GROUPS
    assert 1950 < about.year < 2100


def test_the_listed_cost_of_a_method_is_counted():
    small, counted = read_shared("scales")["small"]["methods"], {}
    for name in set(METHODS) - {"raw"}:
        options = small.get(name, {}).get("method", {})
        data, views = {"name": "mnist", "limit": 4_000}, {"size": 28}
        cell = parse({"data": data, "views": views, "method": {"name": name} | options})
        estimate = Estimator().cost(cell)
        counted[name] = estimate.operations / estimate.samples
    costs = {name: METHODS[name].about.cost for name in counted if METHODS[name].about.cost}
    assert len(costs) > 20
    assert costs == {name: pytest.approx(counted[name] / counted["mcc"], rel=0.15) for name in costs}


def test_methods_are_listed_once_in_their_group_with_publication():
    rows = {heading: {name: text for name, text, _ in row} for heading, row in groups("methods").items()}
    assert list(rows) == [f"methods: {group}" for group in GROUPS]
    assert sorted(name for row in rows.values() for name in row) == sorted(METHODS)
    assert "Xie, Girshick and Farhadi, ICML 2016" in rows["methods: centralized deep clustering"]["dec"]


def test_a_method_without_publication_is_listed_as_another_one(monkeypatch):
    @dataclass(frozen=True)
    class Own:
        """A method of your own."""

        rounds: int = 5

    monkeypatch.setitem(METHODS, "own", Own)
    assert groups("methods")["methods: other"] == [("own", "A method of your own.", "rounds=5")]


def test_the_summary_has_cost_and_needs_only_if_they_are_known():
    assert About("classical", "Lloyd", 1982).summary == "Lloyd 1982"
    full = About("classical", "Lloyd", 1982, "a clustering", cost=0.5)
    assert full.summary == "Lloyd 1982; needs a clustering; 0.5 times the operations of mcc"
