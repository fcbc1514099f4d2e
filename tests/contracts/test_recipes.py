"""Every recipe in recipes/ is a configuration that this version understands, and says what its name says."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from fedmcc import config
from fedmcc.methods.cc import CC
from fedmcc.methods.mcc import MCC
from fedmcc.networks.resnet import ResNet34
from fedmcc.reproduction.table_spec import load_table
from fedmcc.runs.resolve import stages

RECIPES = Path(__file__).parents[2] / "recipes"
ALL = sorted(path for path in RECIPES.rglob("*.toml") if "tables" not in path.parts)  # those combine them
FEDERATED = sorted((RECIPES / "paper" / "federated").rglob("*.toml"))
CENTRALIZED = sorted((RECIPES / "paper" / "centralized").glob("*.toml"))
PAPER = [path for path in CENTRALIZED if path.stem.endswith(("-cc", "-mcc"))]
PUBLISHED: dict[str, tuple[str, str, float, int, int]] = {  # encoder, optimiser, rate, batch, epochs
    "raw": ("pixels", "", 0.0, 0, 0),
    "ae": ("convnet", "adam", 1e-3, 256, 500),
    "vae": ("convnet", "adam", 1e-3, 256, 500),
    "dec": ("convnet", "adam", 1e-3, 256, 600),
    "jule": ("convnet", "sgd", 0.01, 100, 60),
    "dccm": ("convnet", "rmsprop", 1e-4, 32, 200),
    "gcc": ("resnet18", "sgd", 0.4, 256, 1000),
    "mice": ("resnet34", "sgd", 1.0, 256, 1000),
    "dac": ("convnet", "rmsprop", 1e-3, 32, 450),
    "iic": ("resnet34", "adam", 1e-4, 220, 2000),
    "pica": ("resnet34", "adam", 1e-4, 256, 200),
    "scan": ("resnet18", "adam", 1e-3, 512, 750),
    "idfd": ("resnet18", "sgd", 0.03, 128, 2000),
    "pcl": ("resnet18", "sgd", 0.1, 256, 1000),
    "propos": ("resnet18", "sgd", 0.1, 512, 1000),
}
SETS = ("cifar10", "cifar20", "stl10", "imagenet10", "imagenet-dogs", "tiny-imagenet")


load = cache(config.load)


def each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Checks all recipes in one test, which names the one that fails."""

    def over_all(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            assert paths
            for path in paths:
                try:
                    check(path)
                except Exception as error:
                    error.add_note(f"The recipe is {path.relative_to(RECIPES)}.")
                    raise

        return test

    return over_all


@each(ALL)
def test_recipe_loads_and_its_name_says_data_set_and_method(path: Path) -> None:
    loaded = load(path)
    data, method = config.name_of("data", loaded.data), config.name_of("method", loaded.method)
    assert f"{path.stem}-".startswith(f"{data}-{method}-")


@each(ALL)
def test_recipe_survives_being_written_into_a_run(path: Path) -> None:
    assert config.parse_text(config.dump(load(path))) == load(path)


def test_the_centralized_table_has_a_recipe_for_each_data_set_and_method() -> None:
    patterns = [row.recipe for row in load_table("centralized").rows.values() if row.recipe]
    rows = {pattern.removeprefix("{folder}/{data}-") for pattern in patterns}
    assert {path.stem for path in CENTRALIZED} == {f"{data}-{row}" for data in SETS for row in rows}


@each([path for path in CENTRALIZED if path not in PAPER])
def test_recipe_of_a_quoted_row_has_the_published_settings(path: Path) -> None:
    loaded = load(path)
    key = config.name_of("method", loaded.method)
    encoder, optimizer, rate, batch, epochs = PUBLISHED[key]
    assert config.name_of("encoder", loaded.encoder) == encoder
    assert sum(stage.rounds * stage.epochs for stage in stages(loaded)) == epochs
    if epochs:
        training = loaded.training
        rate = 1e-3 if path.stem == "cifar20-dccm" else rate
        assert (training.optimizer, training.learning_rate, training.batch_size) == (optimizer, rate, batch)
    assert loaded.partition.clients == 1
    assert getattr(loaded.data, "split", "all") in ("all", "train+test", "train")


@each(PAPER)
def test_paper_recipe_has_the_settings_that_the_paper_prints(path: Path) -> None:
    loaded = load(path)
    method = loaded.method
    assert isinstance(loaded.encoder, ResNet34)
    assert isinstance(method, CC | MCC)
    assert (method.instance_temperature, method.cluster_temperature, method.projections) == (0.5, 1.0, 128)
    assert (loaded.training.optimizer, loaded.training.learning_rate) == ("adam", 0.0003)
    assert loaded.training.batch_size == (256 if isinstance(method, CC) else 128)
    assert loaded.views.size == 224


@each(PAPER)
def test_paper_recipe_has_the_views_that_cc_publishes(path: Path) -> None:
    views, small = load(path).views, path.stem.startswith(("cifar", "tiny"))
    strength = 0.5 if small else 1.0
    jitter = (views.brightness, views.contrast, views.saturation, views.hue)
    assert jitter == pytest.approx((0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength))
    assert (views.crop, views.ratio) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert (views.flip, views.jitter, views.greyscale) == (0.5, 0.8, 0.2)
    assert views.blur == (0.5 if path.stem.startswith("imagenet") else 0.0)


def cells(folder: str) -> set[str]:
    return {path.stem for path in FEDERATED if path.parent.name == folder}


def crossed(rows: str, sets: str = "cifar10 cifar100") -> set[str]:
    """A name for each data set, row of the table and distribution of the data."""
    kinds = ("iid", "noniid")
    return {f"{data}-{row}-{kind}" for data in sets.split() for row in rows.split() for kind in kinds}


def test_every_cell_of_the_federated_tables_has_a_recipe() -> None:
    sets = ("cifar10", "cifar100", "stl10", "imagenet10", "mnist")
    rows = ("fedu-kmeans", "fedu-mcc", "cc", "fedmcc")
    assert cells("federated-iid") == cells("federated-noniid") == {f"{s}-{row}" for s in sets for row in rows}
    both = "fedbyol-single fedu fedema-lambda0.8 fedema-tau0.7 fedmcc"
    assert cells("linear-resnet18") == crossed(f"{both} fedmcc-tuned")
    assert cells("linear-resnet50") == crossed(f"{both} fedsimclr fedca fedsimsiam")
    assert cells("semi-supervised") == {"cifar10-fedema-lambda1-noniid"}
    assert cells("update-both") == crossed("fedmcc", "cifar10 cifar100 mnist")
    assert cells("local-epochs") == crossed("fedmcc-E1-R500 fedmcc-E2-R250 fedmcc-E5-R100 fedmcc-E10-R50")
    assert cells("momentum") == crossed("fedmcc-m0.99 fedmcc-m0.996")


@each(FEDERATED)
def test_federated_recipe_has_five_clients_and_500_local_epochs(path: Path) -> None:
    loaded = load(path)
    first, *others = stages(loaded)
    by_class = "noniid" in f"{path.parent.name}-{path.stem}"
    assert (loaded.partition.name, loaded.partition.clients) == ("by_class" if by_class else "iid", 5)
    assert (first.rounds * first.epochs, loaded.federation.fraction) == (500, 1.0)
    assert "E" not in path.stem or path.stem.split("-")[2:4] == [f"E{first.epochs}", f"R{first.rounds}"]
    two_stages = "fedmcc" in path.stem or path.stem.endswith("fedu-mcc")
    assert [(stage.rounds, stage.epochs) for stage in others] == [(10, 5)] * two_stages
    assert loaded.federation.only == (0 if "single" in path.stem else None)


@each(FEDERATED)
def test_federated_recipe_has_the_settings_of_its_table(path: Path) -> None:
    loaded, quoted = load(path), path.parent.name[:4] in ("line", "semi") and "fedmcc" not in path.stem
    training, small = loaded.training, quoted or path.stem.startswith("mnist")
    settings = (training.optimizer, training.learning_rate, training.weight_decay, training.batch_size)
    assert settings == (("sgd", 0.032, 5e-4, 128) if quoted else ("adam", 3e-4, 0.0, 128))
    assert loaded.views.size == (32 if small else 224)
    assert config.name_of("encoder", loaded.encoder) == (
        "resnet50" if "50" in path.parent.name else "resnet18"
    )
    m = 0.988 if "tuned" in path.stem else 0.996 if "m0.996" in path.stem else 0.99
    assert getattr(loaded.method, "momentum", m) == m
    assert getattr(loaded.method, "target", "keep") == ("share" if "both" in path.parent.name else "keep")


@pytest.mark.parametrize("kind", ["iid", "noniid"])
@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_a_cell_printed_in_several_tables_is_one_configuration(data: str, kind: str) -> None:
    root = RECIPES / "paper" / "federated"
    first = load(root / f"federated-{kind}" / f"{data}-fedmcc.toml")
    for other in ("linear-resnet18/{}-fedmcc", "local-epochs/{}-fedmcc-E5-R100", "momentum/{}-fedmcc-m0.99"):
        assert load(root / f"{other.format(data)}-{kind}.toml") == first


def test_the_demo_is_the_recipe_for_digits() -> None:
    with as_file(files("fedmcc.cli") / "demo.toml") as demo:
        assert config.load(demo) == load(RECIPES / "digits-fedmcc.toml")
