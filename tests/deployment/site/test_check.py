"""What `fedmcc site check` measures before a site joins."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmcc import config
from fedmcc.data.imagenet import ImageNet10
from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.site.check import check_site, resolve_recipe
from fedmcc.deployment.site.memory import RefusalError
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
rounds = 2
[training]
batch_size = 4
[clustering]
name = "mcc"
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


def test_a_check_counts_and_measures_images_and_names_unreadable_files(images: Path, recipe: Path) -> None:
    report = check_site(resolve_recipe(images, recipe))
    assert len(report.images) == 5
    assert [skipped.split(":")[0] for skipped in report.images.skipped] == ["broken.png"]
    assert report.sizes[:3] == ((10, 8), (12, 9), (30, 40))
    assert report.sizes.bytes == sum((images / f"{number}.png").stat().st_size for number in range(5))


def test_a_recipe_without_clusters_is_refused_unless_the_server_has_labels(
    images: Path, recipe: Path
) -> None:
    recipe.write_text(RECIPE.replace("clusters = 12", ""))
    with pytest.raises(InputError, match=r"recipe\.toml does not set clusters, and the server has no labels"):
        resolve_recipe(images, recipe)
    recipe.write_text(recipe.read_text() + "[evaluation]\nat_server = true\n")
    assert resolve_recipe(images, recipe).general.clusters == 10


@pytest.mark.parametrize(
    ("clustering", "stages"),
    [("mcc", ["clustering"]), ("informative", [])],
)
def test_a_check_estimates_every_stage_that_trains(
    images: Path, recipe: Path, clustering: str, stages: list[str]
) -> None:
    smallest = "smallest = 2" if clustering == "informative" else ""
    recipe.write_text(RECIPE.replace('"mcc"', f'"{clustering}"') + smallest)
    report = check_site(resolve_recipe(images, recipe))
    assert [cost.stage for cost in report.costs] == ["representation", *stages]
    assert all(cost.seconds > 0 and cost.sent > 0 for cost in report.costs)
    assert report.memory > 50 * 2**20  # torch alone takes more


def test_memory_is_that_of_the_process_if_the_recipe_sets_cpu(
    images: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda *device: 0)
    assert check_site(resolve_recipe(images, recipe)).memory > 50 * 2**20


@pytest.mark.parametrize("name", ["folder", "digits", "imagenet10", "tiny-imagenet"])
def test_a_check_decodes_images_like_the_site(name: str, tmp_path: Path, images: Path, recipe: Path) -> None:
    text = RECIPE.replace("folder", name).replace("size = 8", "")
    recipe.write_text(text)
    assert resolve_recipe(images, recipe).data == SiteWorker("a", tmp_path, images)._source(
        config.load(recipe)
    )


def test_a_check_measures_the_files_of_a_registered_data_set(tmp_path: Path, recipe: Path) -> None:
    for wnid in ImageNet10.wnids:
        (tmp_path / "own" / "train" / wnid).mkdir(parents=True)
        Image.new("L", (20, 16)).save(tmp_path / "own" / "train" / wnid / "1.png")
    recipe.write_text(RECIPE.replace("folder", "imagenet10"))
    report = check_site(resolve_recipe(tmp_path / "own", recipe))
    assert (len(report.images), report.sizes.largest) == (10, (20, 16))


def test_a_single_image_is_refused(tmp_path: Path, recipe: Path) -> None:
    (tmp_path / "one").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "one" / "1.png")
    with pytest.raises(InputError, match="at least 2 images"):
        check_site(resolve_recipe(tmp_path / "one", recipe))


CENTROIDS = RECIPE.replace('"mcc"', '"lloyd"').replace("fedmcc", "fedema")


@pytest.mark.parametrize(("stated", "fewest"), [("", 10), ("smallest = 6", 6)])
def test_a_check_refuses_fewer_images_than_the_site_needs_for_the_recipe(
    images: Path, recipe: Path, stated: str, fewest: int
) -> None:
    recipe.write_text(CENTROIDS + stated)
    sentence = rf"fewer different images than a centroid must represent \({fewest}\): add images"
    with pytest.raises(InputError, match=sentence):
        check_site(resolve_recipe(images, recipe))
    with pytest.raises(RefusalError, match=sentence):
        SiteWorker("a", images.parent, images).hello(Greeting(config.dump(config.load(recipe))))


def test_a_check_accepts_as_many_images_as_a_centroid_must_represent(images: Path, recipe: Path) -> None:
    recipe.write_text(CENTROIDS + "smallest = 5")
    assert len(check_site(resolve_recipe(images, recipe)).images) == 5


def test_an_encoder_file_is_refused_if_the_encoder_of_the_recipe_takes_none(
    images: Path, recipe: Path
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_recipe(images, recipe, Path("some.onnx"))
    assert str(caught.value) == (
        f"The encoder of {recipe} is convnet, which takes no file: leave out --encoder."
    )
    with pytest.raises(InputError, match=r"takes no file: leave out --encoder, or give --recipe\.$"):
        resolve_recipe(images, None, Path("some.onnx"))


def test_a_check_names_the_encoder_file_that_does_not_exist(images: Path, recipe: Path) -> None:
    recipe.write_text('clusters = 2\n[encoder]\nname = "onnx"\n')
    with pytest.raises(InputError) as caught:
        resolve_recipe(images, recipe, Path("nosuch.onnx"))
    assert str(caught.value) == ("There is no encoder at nosuch.onnx: give its file or folder as --encoder.")
