import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import numpy as np
import pytest

from fedmcc.data import DATASETS, ImageSet, Source, load_dataset
from fedmcc.data.base import split_parts
from fedmcc.errors import InputError


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_built_without_options_and_names_its_views(name):
    source = DATASETS[name]()
    assert is_dataclass(source)
    assert isinstance(source, Source)
    assert source.views in ("digits", "fashion", "photo")
    with pytest.raises(InputError, match=r"data\.limit is 0"):
        DATASETS[name](limit=0).load()


@pytest.mark.parametrize(
    "name", [name for name, kind in DATASETS.items() if "split" in {field.name for field in fields(kind)}]
)
def test_unknown_split_is_refused_before_anything_is_downloaded(name):
    with pytest.raises(InputError, match=r"Unknown split 'trian'\. Did you mean 'train'"):
        load_dataset(name, split="trian")


def test_unknown_names_and_options_get_a_suggestion():
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        load_dataset("cifar-10")
    with pytest.raises(InputError, match="Did you mean 'limit'"):
        load_dataset("digits", limits=3)
    with pytest.raises(InputError, match=r"Unknown channels '2'\. Known: 1, 3, auto"):
        load_dataset("folder", channels=2)


def test_a_folder_can_be_text(tmp_path):
    np.savez(tmp_path / "images.npz", images=np.zeros((3, 4, 4), np.uint8))
    assert len(load_dataset("arrays", root=str(tmp_path / "images.npz"))) == 3


def test_parts_of_a_split_are_known_and_named_once():
    assert split_parts("test+train", ("train", "test")) == ["test", "train"]
    with pytest.raises(InputError, match="contains a part twice"):
        split_parts("train+train", ("train", "test"))
    with pytest.raises(InputError, match="Unknown split 'val'"):
        split_parts("train+val", ("train", "test"))


def test_digits_span_the_full_range_of_grey():
    digits = load_dataset("digits")
    assert digits.images.shape == (1797, 1, 8, 8)
    assert (digits.images.min(), digits.images.max()) == (0, 255)
    assert np.bincount(digits.labels).min() == 174  # from scikit-learn's description


def test_limit_keeps_the_first_images_and_their_labels():
    whole, cut = load_dataset("digits"), load_dataset("digits", limit=7)
    np.testing.assert_array_equal(cut.images, whole.images[:7])
    np.testing.assert_array_equal(cut.labels, whole.labels[:7])
    assert len(load_dataset("digits", limit=5000)) == 1797


def test_taken_rows_keep_their_names_and_labels():
    images = ImageSet(np.zeros((3, 1, 2, 2), np.uint8), np.array([5, 6, 7]), names=["a", "b", "c"])
    taken = images.take(np.array([2, 0]))
    assert (taken.labels.tolist(), taken.names) == ([7, 5], ["c", "a"])


def test_adding_a_data_set_is_one_class_and_one_line(monkeypatch):
    class Black(Source):
        def read(self) -> ImageSet:
            return ImageSet(np.zeros((4, 1, 2, 2), np.uint8))

    monkeypatch.setitem(DATASETS, "black", Black)
    assert len(load_dataset("black", limit=3)) == 3


def test_importing_the_registry_loads_no_heavy_library():
    heavy = {"sklearn", "scipy", "torch", "PIL", "pooch", "requests", "rich"}
    code = f"import sys, fedmcc.data; print({heavy} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.splits])
def test_labels_are_learned_from_one_split_and_scored_on_another(name):
    known = get_args(get_type_hints(DATASETS[name])["split"])
    learned, scored = DATASETS[name].splits
    assert learned != scored
    assert {learned, scored} <= set(known)


def test_a_data_set_with_splits_names_the_one_to_learn_from():
    split = {name for name, source in DATASETS.items() if "split" in get_type_hints(source)}
    assert split == {name for name, source in DATASETS.items() if source.splits}
