"""What a site learns of its own images before it joins."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmcc import config
from fedmcc.data.imagenet import ImageNet10
from fedmcc.deployment.site.check import resolve_recipe, survey
from fedmcc.deployment.site.worker import SiteWorker
from fedmcc.errors import InputError

RECIPE = """
threads = 1
device = "cpu"
clusters = 12
[data]
name = "folder"
size = 8
[partition]
clients = 3
[encoder]
width = 4
[method]
name = "fedmcc"
hidden = 16
projections = 8
rounds = 2
[training]
batch_size = 4
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, size in enumerate([(10, 8), (12, 9), (12, 9), (30, 40), (20, 10)]):
        pixels = np.full((size[1], size[0]), 40 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def test_a_survey_counts_measures_and_names_what_is_unreadable(images: Path, recipe: Path) -> None:
    found = survey(resolve_recipe(images, recipe))
    assert len(found.images) == 5
    assert [report.split(":")[0] for report in found.images.skipped] == ["broken.png"]
    assert found.sizes[:3] == ((10, 8), (12, 9), (30, 40))
    assert found.sizes.bytes == sum((images / f"{number}.png").stat().st_size for number in range(5))


def test_a_survey_estimates_every_stage_that_trains(images: Path, recipe: Path) -> None:
    found = survey(resolve_recipe(images, recipe))
    assert [load.stage for load in found.loads] == ["representation", "clustering"]
    assert all(load.seconds > 0 and load.sent > 0 for load in found.loads)
    assert found.memory > 50 * 2**20  # torch alone takes more


def test_memory_is_that_of_the_process_where_the_recipe_says_cpu(
    images: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda *device: 0)
    assert survey(resolve_recipe(images, recipe)).memory > 50 * 2**20


@pytest.mark.parametrize("name", ["folder", "digits", "imagenet10", "tiny-imagenet"])
def test_a_survey_decodes_as_the_site_would(name: str, tmp_path: Path, images: Path, recipe: Path) -> None:
    text = RECIPE.replace("folder", name).replace("size = 8", "")
    recipe.write_text(text)
    assert resolve_recipe(images, recipe).data == SiteWorker("a", tmp_path, images)._source(
        config.load(recipe)
    )


def test_a_survey_measures_the_files_of_a_known_data_set(tmp_path: Path, recipe: Path) -> None:
    for wnid in ImageNet10.wnids:
        (tmp_path / "own" / "train" / wnid).mkdir(parents=True)
        Image.new("L", (20, 16)).save(tmp_path / "own" / "train" / wnid / "1.png")
    recipe.write_text(RECIPE.replace("folder", "imagenet10"))
    found = survey(resolve_recipe(tmp_path / "own", recipe))
    assert (len(found.images), found.sizes.largest) == (10, (20, 16))


def test_a_single_image_is_refused(tmp_path: Path, recipe: Path) -> None:
    (tmp_path / "one").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "one" / "1.png")
    with pytest.raises(InputError, match="2 images or more"):
        survey(resolve_recipe(tmp_path / "one", recipe))
