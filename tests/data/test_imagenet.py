import shutil

import pytest

from fedmcc.data.imagenet import ImageNet10, ImageNetDogs
from fedmcc.data.tiny_imagenet import TinyImageNet
from fedmcc.errors import InputError


@pytest.fixture
def tiny(tmp_path, picture):
    root = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        picture(root / "train" / wnid / "images" / f"{wnid}_0.JPEG")
    picture(root / "val" / "images" / "val_0.JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t1\t2\t3\n")
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text("n01\tcat, house cat\nn09\tother\n")
    return root


@pytest.mark.parametrize(("source", "count"), [(ImageNet10, 10), (ImageNetDogs, 15)])
def test_subset_has_the_listed_classes_and_no_other(tmp_path, picture, source, count):
    for wnid in (*ImageNet10.wnids, *ImageNetDogs.wnids, "n99999999"):
        picture(tmp_path / "train" / wnid / f"{wnid}_1.JPEG")
    images = source(root=tmp_path, size=8).load()
    assert images.names == [f"{wnid}/{wnid}_1.JPEG" for wnid in sorted(source.wnids)]
    assert images.labels.tolist() == list(range(count))
    assert len(set(images.classes)) == count


def test_missing_class_folders_are_named(tmp_path, picture):
    for wnid in list(ImageNet10.wnids)[2:]:
        picture(tmp_path / wnid / "1.JPEG")
    with pytest.raises(InputError, match=r"lacks 2 of the 10 .*n02056570, n02085936\. Set"):
        ImageNet10(root=tmp_path).load()
    with pytest.raises(InputError, match=r"'imagenet-dogs' needs data\.root"):
        ImageNetDogs().load()


def test_tiny_imagenet_reads_both_splits(tiny):
    images = TinyImageNet(root=tiny.parent, split="train+val").load()
    assert images.names == [
        *("train/n01/images/n01_0.JPEG", "train/n02/images/n02_0.JPEG", "val/images/val_0.JPEG")
    ]
    assert images.labels.tolist() == [0, 1, 1]
    assert images.classes == ("cat, house cat", "n02")
    assert images.images.shape == (3, 3, 64, 64)


def test_tiny_imagenet_is_unpacked_from_its_zip(tiny, tmp_path):
    shutil.make_archive(str(tmp_path / "packed" / "tiny-imagenet-200"), "zip", tiny.parent, tiny.name)
    images = TinyImageNet(root=tmp_path / "packed").load()
    assert images.labels.tolist() == [0, 1]


def test_damaged_zip_and_table_are_named(tiny, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "tiny-imagenet-200.zip").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"tiny-imagenet-200\.zip is damaged"):
        TinyImageNet(root=tmp_path / "packed").load()
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(InputError, match=r"val_annotations\.txt is damaged"):
        TinyImageNet(root=tiny, split="val").load()
