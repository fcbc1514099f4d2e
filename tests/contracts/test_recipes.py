"""Every recipe in recipes/ is a configuration that this version understands, and says what its name says."""

from importlib.resources import as_file, files
from pathlib import Path

import pytest

from fedmcc import config
from fedmcc.methods.cc import CC
from fedmcc.methods.mcc import MCC
from fedmcc.networks.resnet import ResNet34

RECIPES = Path(__file__).parents[2] / "recipes"
ALL = sorted(RECIPES.rglob("*.toml"))
PAPER = sorted((RECIPES / "paper" / "centralized").glob("*.toml"))
SETS = ("cifar10", "cifar20", "stl10", "imagenet10", "imagenet-dogs", "tiny-imagenet")


def name(path: Path) -> str:
    return path.relative_to(RECIPES).with_suffix("").as_posix()


@pytest.mark.parametrize("path", ALL, ids=name)
def test_recipe_loads_and_its_name_says_data_set_and_method(path: Path) -> None:
    loaded = config.load(path)
    data, method = config.name_of("data", loaded.data), config.name_of("method", loaded.method)
    assert path.stem == f"{data}-{method}"


@pytest.mark.parametrize("path", ALL, ids=name)
def test_recipe_survives_being_written_into_a_run(path: Path, tmp_path: Path) -> None:
    loaded = config.load(path)
    written = tmp_path / "config.toml"
    written.write_text(config.dump(loaded))
    assert config.load(written) == loaded


def test_the_centralized_table_has_a_recipe_for_each_data_set_and_method() -> None:
    assert {path.stem for path in PAPER} == {f"{data}-{method}" for data in SETS for method in ("cc", "mcc")}


@pytest.mark.parametrize("path", PAPER, ids=name)
def test_paper_recipe_has_the_settings_that_the_paper_prints(path: Path) -> None:
    loaded = config.load(path)
    method = loaded.method
    assert isinstance(loaded.encoder, ResNet34)
    assert isinstance(method, CC | MCC)
    assert (method.instance_temperature, method.cluster_temperature, method.projections) == (0.5, 1.0, 128)
    assert (loaded.training.optimizer, loaded.training.learning_rate) == ("adam", 0.0003)
    assert loaded.training.batch_size == (256 if isinstance(method, CC) else 128)
    assert loaded.views.size == 224


@pytest.mark.parametrize("path", PAPER, ids=name)
def test_paper_recipe_has_the_views_that_cc_publishes(path: Path) -> None:
    views, small = config.load(path).views, path.stem.startswith(("cifar", "tiny"))
    strength = 0.5 if small else 1.0
    jitter = (views.brightness, views.contrast, views.saturation, views.hue)
    assert jitter == pytest.approx((0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength))
    assert (views.crop, views.ratio) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert (views.flip, views.jitter, views.greyscale) == (0.5, 0.8, 0.2)
    assert views.blur == (0.5 if path.stem.startswith("imagenet") else 0.0)


def test_the_demo_is_the_recipe_for_digits() -> None:
    with as_file(files("fedmcc") / "demo.toml") as demo:
        assert config.load(demo) == config.load(RECIPES / "digits-mcc.toml")
