import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedmcc.config import apply_settings, dump, load, name_of, parse, set_key
from fedmcc.errors import InputError
from fedmcc.methods import CLUSTERINGS, METHODS, RENAMED
from fedmcc.views import PRESETS


def _refused(table):
    with pytest.raises(InputError) as caught:
        parse(table)
    return str(caught.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sed": 3}, "Unknown key 'sed'. Did you mean 'seed'?"),
        ({"trainings": {}}, "Unknown key 'trainings'. Did you mean 'training'?"),
        ({"training": {"batchsize": 3}}, "Unknown key in [training] 'batchsize'. Did you mean 'batch_size'?"),
        ({"method": {"momentun": 0.9}}, "Unknown key in [method] 'momentun'. Did you mean 'momentum'?"),
        ({"method": {"name": "mc"}}, "Unknown method 'mc'. Did you mean 'mcc'?"),
        ({"encoder": {"name": "resnet8"}}, "Unknown encoder 'resnet8'. Did you mean 'resnet18'?"),
        ({"data": {"name": "digit"}}, "Unknown data set 'digit'. Did you mean 'digits'?"),
        ({"views": {"preset": "photos"}}, "Unknown preset of views 'photos'. Did you mean 'photo'?"),
        ({"views": {"rotations": 3}}, "Unknown key in [views] 'rotations'. Did you mean 'rotation'?"),
        ({"encoder": {"momentum": 3}}, "Unknown key in [encoder] 'momentum'. Known: norm, width."),
    ],
)
def test_an_unknown_name_gets_a_suggestion(table, sentence):
    assert _refused(table) == sentence


def test_a_number_of_clusters_that_is_a_word_names_the_only_word_allowed():
    assert _refused({"clusters": "auto1"}) == "clusters is 'auto1': give a number, or auto."


def test_a_key_of_another_method_is_unknown():
    assert "Unknown key in [method] 'momentum'" in _refused({"method": {"name": "cc", "momentum": 0.9}})


@pytest.mark.parametrize(
    ("table", "start"),
    [
        ({"seed": "one"}, "seed is 'one': "),
        ({"seed": 1.5}, "seed is 1.5: "),
        ({"device": 3}, "device is 3: "),
        ({"training": {"batch_size": [3]}}, "training.batch_size is [3]: "),
        (
            {"training": {"optimizer": "adm"}},
            "training.optimizer is 'adm': input should be 'adam', 'sgd' or 'rmsprop'.",
        ),
        ({"method": {"anchor": "b"}}, "method.anchor is 'b': input should be 'paper' or 'online'."),
        ({"views": {"crop": [0.1, "x"]}}, "views.crop.1 is 'x': "),
        ({"views": {"crop": [0.1]}}, "views.crop.1 is "),
        ({"training": 3}, "training is 3: it is a section, so set one of its keys."),
        ({"data": {"root": 3}}, "data.root is 3: "),
        ({"method": {"name": ["mcc"]}}, "Unknown method '['mcc']'. "),
        ({"views": {"preset": {}}}, "Unknown preset of views '{}'. "),
    ],
)
def test_a_value_of_the_wrong_type_is_named(table, start):
    assert _refused(table).startswith(start)


@pytest.mark.parametrize(
    ("table", "start"),
    [
        ({"clusters": 1}, "clusters is 1: give 2 or more."),
        ({"seed": -1}, "seed is -1: give 0 or more."),
        ({"threads": 0}, "threads is 0: give 1 or more, at most 1024."),
        ({"threads": 20_000}, "threads is 20000: give 1 or more, at most 1024."),
        ({"training": {"batch_size": 1}}, "training.batch_size is 1: "),
        ({"training": {"learning_rate": -0.1}}, "training.learning_rate is -0.1: "),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate is nan: "),
        ({"evaluation": {"every": 0}}, "evaluation.every and batch_size must be 1 or more"),
        ({"views": {"flip": 2}}, "views.flip is 2: "),
        ({"method": {"momentum": 1.1}}, "method.momentum is 1.1: "),
        ({"method": {"temperature": 0}}, "method.temperature is 0.0: "),
        ({"method": {"name": "cc", "cluster_temperature": -1}}, "method.cluster_temperature is -1.0: "),
        ({"method": {"hidden": 0}}, "method.hidden is 0: "),
    ],
)
def test_an_invalid_value_is_refused_by_name(table, start):
    assert _refused(table).startswith(start)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("a.b=3", 3),
        ("a.b=3e-4", 3e-4),
        ("a.b = true", True),
        ("a.b=text", "text"),
        ('a.b="quoted text"', "quoted text"),
        ("a.b='3'", "3"),
        ("a.b=[0.5, 1]", [0.5, 1]),
        ("a.b=x=y", "x=y"),
        ("a.b=", ""),
        ("a.b=~/images of 2024", "~/images of 2024"),
        ("a.b=2024-01-31", "2024-01-31"),
    ],
)
def test_settings_are_read_as_toml_or_else_as_text(setting, value):
    assert apply_settings({}, [setting]) == {"a": {"b": value}}


def test_settings_are_applied_in_order_and_do_not_change_the_table():
    table = {"seed": 1, "method": {"name": "cc", "epochs": 2}}
    changed = apply_settings(table, ["method.epochs=3", "seed=2", "method.epochs=4", "views.size=8"])
    assert changed == {"seed": 2, "method": {"name": "cc", "epochs": 4}, "views": {"size": 8}}
    assert table == {"seed": 1, "method": {"name": "cc", "epochs": 2}}


@pytest.mark.parametrize("setting", ["seed", "=3", " = 3", ""])
def test_a_setting_without_key_or_value_is_refused(setting):
    with pytest.raises(InputError, match=r"is not a setting: write it as section\.key=value"):
        apply_settings({}, [setting])


def test_a_setting_below_a_value_is_refused():
    with pytest.raises(InputError, match="seed is 3: it has no key x"):
        set_key({"seed": 3}, "seed.x", 1)


def test_defaults_are_fedmcc_and_informative_on_digits_with_the_views_of_digits():
    config = parse({})
    sections = ("data", "encoder", "method", "clustering")
    names = [name_of(section, getattr(config, section)) for section in sections]
    assert names == ["digits", "convnet", "fedmcc", "informative"]
    assert config.views == PRESETS["digits"]
    assert (config.training.learning_rate, config.training.optimizer) == (3e-4, "adam")


def test_views_are_those_of_the_data_set_unless_named_and_every_number_can_be_changed():
    assert parse({"data": {"name": "synthetic"}}).views == PRESETS["photo"]
    changed = parse(
        {"data": {"name": "synthetic"}, "views": {"preset": "digits", "shear": 0, "size": 8}}
    ).views
    assert changed == replace(PRESETS["digits"], shear=0.0, size=8)


def test_a_dump_reads_back_as_the_same_configuration():
    table = {
        "clusters": 7,
        "threads": 2,
        "data": {"name": "synthetic", "limit": 30},
        "method": {"name": "cc", "hidden": 5},
        "views": {"crop": [0.3, 1.0], "padding": "zeros"},
        "training": {"keep_optimizer": False},
        "evaluation": {"split": "test"},
    }
    config = parse(table)
    assert parse(tomllib.loads(dump(config))) == config


def test_a_relative_root_becomes_absolute_so_that_resume_finds_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert parse({"data": {"name": "folder", "root": "images"}}).data.root == tmp_path.resolve() / "images"
    assert parse({"data": {"name": "folder", "root": "~/x"}}).data.root == (tmp_path / "home" / "x").resolve()
    config = parse({"encoder": {"name": "resnet18", "weights": "w.safetensors"}})
    assert config.encoder.weights == tmp_path.resolve() / "w.safetensors"


def test_settings_change_a_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('seed = 4\n[method]\nname = "cc"\n')
    config = load(path, ["method.epochs=3"])
    assert (config.general.seed, config.method.epochs, name_of("method", config.method)) == (4, 3, "cc")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"There is no recipe at .*recipe\.toml"),
        (b"seed = \n", r"recipe\.toml is not valid TOML: .+line 1"),
        (b"\xff\xfe", r"Cannot read the recipe .*recipe\.toml"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_refused(tmp_path, content, sentence):
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        load(path)


def test_a_folder_is_not_a_recipe(tmp_path):
    with pytest.raises(InputError, match="Cannot read the recipe"):
        load(Path(tmp_path))


@pytest.mark.parametrize("table", [{"seed": 2**63}, {"encoder": {"width": 10**30}}, {"clusters": -(2**63)}])
def test_a_number_beyond_64_bits_is_refused(table):
    with pytest.raises(InputError, match="give a number of at most 64 bits"):
        parse(table)


@pytest.mark.parametrize("name", ["fedmcc", "fedbyol", "fedsimclr", "fedmoco"])
def test_a_method_that_learns_features_is_followed_by_the_default_clustering_unless_it_is_turned_off(name):
    table = {"method": {"name": name}}
    assert name_of("clustering", parse(table).clustering) == "informative"
    off = parse({**table, "clustering": {"name": "none"}})
    assert name_of("clustering", off.clustering) == "none"


def test_a_method_with_a_cluster_head_is_followed_by_no_clustering():
    assert name_of("clustering", parse({"method": {"name": "mcc"}}).clustering) == "none"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"method": {"name": "fedmcc-plus", "members": 5}},
            "method.name is 'fedmcc-plus', which is gone: write method.name = \"fedmcc\" "
            'and clustering.name = "informative".',
        ),
        (
            {"method": {"name": "fedu"}, "clustering": {"name": "spectral"}},
            "clustering.name is 'spectral', which is gone: write clustering.name = \"informative\".",
        ),
        (
            {"clustering": {"name": "best"}},
            "clustering.name is 'best', which is gone: write clustering.name = \"informative\".",
        ),
    ],
)
def test_a_name_of_an_earlier_version_says_what_to_write_instead(table, sentence):
    assert _refused(table) == sentence


def test_every_renamed_name_is_gone_and_has_a_successor():
    for name, instead in RENAMED.items():
        assert name not in METHODS.keys() | CLUSTERINGS.keys()
        assert 'clustering.name = "informative"' in instead
