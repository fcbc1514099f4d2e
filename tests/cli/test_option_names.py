from dataclasses import fields

import pytest

from fedmcc import config
from fedmcc.cli import option_names
from fedmcc.cli.option_names import check_names
from fedmcc.errors import InputError


@pytest.mark.parametrize("section", list(config.CHOICES))
def test_the_names_are_those_of_the_registries(section):
    registry, default = config.CHOICES[section]
    found, found_default = option_names._choice(section)
    assert found.keys() == registry.keys()
    assert found_default == default
    for name, kind in registry.items():
        options = option_names._fields(found[name])
        assert not options or set(options) == {field.name for field in fields(kind) if field.init}, name


def test_the_sections_are_those_of_the_configuration():
    assert [*option_names._sections()] == [field.name for field in fields(config.Config)][1:]
    for section in ("training", "evaluation", "federation", "privacy", "partition", "views"):
        known = option_names._fields(option_names._sections()[section])
        assert set(known) == {field.name for field in fields(getattr(config.parse({}), section))}


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("trainng.batch_size=8", "Did you mean 'training'"),
        ("training.batchsize=8", "Did you mean 'batch_size'"),
        ("method.name=mmc", "Did you mean 'mcc'"),
        ("method.hiden=3", "Did you mean 'hidden'"),
        ("encoder.name=convnt", "Did you mean 'convnet'"),
        ("data.name=digit", "Unknown data set 'digit'. Did you mean 'digits'"),
        ("method", "section.key=value"),
        ("=3", "section.key=value"),
        ("cluster=3", "Did you mean 'clusters'"),
    ],
)
def test_a_wrong_name_is_refused_as_the_configuration_does(setting, hint):
    with pytest.raises(InputError, match=hint) as first:
        check_names({"method": {"name": "mcc"}}, [setting])
    with pytest.raises(InputError) as second:
        config.parse(config.apply_settings({"method": {"name": "mcc"}}, [setting]))
    assert str(first.value) == str(second.value)


def test_names_of_the_recipe_and_of_the_settings_decide_the_keys():
    check_names({"data": {"name": "folder"}}, ["data.labels=false", "clusters=3", "views.preset=photo"])
    check_names({"data": {"name": "folder"}}, ["data.name=synthetic", "data.samples=3"])
    with pytest.raises(InputError, match="key in \\[data\\]"):
        check_names({"data": {"name": "folder"}}, ["data.samples=3"])


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("rotation=45", "'views.rotation'"),
        ("batch_size=8", "'training.batch_size'"),
        ("hidden=3", "'method.hidden'"),
    ],
)
def test_an_option_without_its_section_is_suggested_with_it(setting, meant):
    with pytest.raises(InputError, match=f"Did you mean {meant}"):
        check_names({"method": {"name": "mcc"}}, [setting])


@pytest.mark.parametrize("setting", ["partition.name=noniid", "method.name=xyz"])
def test_no_name_is_suggested_that_is_hardly_similar(setting):
    with pytest.raises(InputError, match="Known: "):
        config.parse(config.apply_settings({}, [setting]))


def test_a_section_without_options_says_so():
    with pytest.raises(InputError, match="There are none here: leave it out"):
        config.parse({"clustering": {"name": "none", "balance": 0}})


@pytest.mark.parametrize(("section", "name"), [("method", "fedmcc-plus"), ("clustering", "spectral")])
def test_a_name_of_an_earlier_version_says_what_to_write_instead(section, name):
    with pytest.raises(InputError, match=f"{section}.name is '{name}', which is gone: write "):
        check_names({}, [f"{section}.name={name}"])
