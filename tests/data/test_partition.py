"""Partitions: every image belongs to exactly one client, distributed as in the paper."""

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedmcc.data.arrays import Arrays
from fedmcc.data.base import ImageSet
from fedmcc.data.folder import Folder
from fedmcc.data.partition import (
    PARTITIONS,
    PartitionOptions,
    encode_partition,
    holdings,
    partition_images,
    resolve,
)
from fedmcc.errors import InputError


def images(labels=None, groups=None, count=None, **fields):
    size = next((len(values) for values in (labels, groups) if values is not None), count)
    as_array = [None if values is None else np.array(values, dtype=np.int64) for values in (labels, groups)]
    return ImageSet(np.zeros((size, 1, 1, 1), np.uint8), as_array[0], groups=as_array[1], **fields)


def counts(given, options, seed=0):
    return holdings(given, partition_images(given, options, seed)).counts.tolist()


def refusal(given, *options, **named):
    with pytest.raises(InputError) as caught:
        partition_images(given, PartitionOptions(*options, **named), 0)
    return str(caught.value)


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(-1, 4), min_size=60, max_size=90),
    name=st.sampled_from(["iid", "by_class", "dirichlet"]),
    clients=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_every_image_belongs_to_exactly_one_client(labels, name, clients, seed):
    given_images = images([*range(5), *range(5), *labels])  # every class is present
    options = PartitionOptions(name, clients, alpha=5.0)
    shards = partition_images(given_images, options, seed)
    assert len(shards) == clients
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(given_images)))
    assert all((np.diff(rows) > 0).all() and rows.dtype == np.int64 for rows in shards)
    again = partition_images(given_images, options, seed)
    assert all(np.array_equal(*pair) for pair in zip(shards, again, strict=True))


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_another_seed_gives_another_partition(name):
    given_images = images([0, 1] * 50)
    first, second = (partition_images(given_images, PartitionOptions(name, 2), seed) for seed in (0, 1))
    assert not np.array_equal(first[0], second[0])


def test_iid_clients_have_the_same_number_of_every_class():
    assert counts(images([0] * 40 + [1] * 20), PartitionOptions("iid", 4)) == [[10, 5]] * 4


def test_remainders_differ_by_one_and_go_to_different_clients():
    table = np.array(counts(images(np.arange(5).repeat(21)), PartitionOptions("iid", 5)))
    assert set(table.ravel()) == {4, 5}
    assert table.sum(axis=1).tolist() == [21] * 5


@pytest.mark.parametrize("clients", [3, 7, 150])
def test_iid_clients_differ_by_at_most_one_image(clients):
    table = np.array(counts(images(np.arange(300) ** 2 % 10), PartitionOptions("iid", clients)))
    assert np.ptp(table.sum(axis=1)) <= 1
    assert np.ptp(table, axis=0).max() <= 1


def test_uneven_clients_differ_in_size_and_keep_the_classes_in_proportion():
    table = np.array(counts(images([0] * 4000 + [1] * 2000), PartitionOptions("iid", 5, uneven=1.0)))
    assert table.sum(axis=1).max() > 2 * table.sum(axis=1).min()
    np.testing.assert_allclose(table[:, 0], 2 * table[:, 1], atol=4)


def test_images_without_labels_can_be_partitioned():
    assert counts(images(count=10), PartitionOptions("iid", 3)) == [[4], [3], [3]]


@pytest.mark.parametrize(
    ("classes", "clients", "expected"),
    [(10, 5, [2, 2, 2, 2, 2]), (10, 4, [3, 3, 2, 2]), (3, 3, [1, 1, 1]), (10, 1, [10])],
)
def test_by_class_gives_each_client_consecutive_classes(classes, clients, expected):
    labels = np.tile(np.arange(classes), 6)
    shards = partition_images(images(labels), PartitionOptions("by_class", clients), 0)
    classes_held = [np.unique(labels[rows]).tolist() for rows in shards]
    assert [len(own) for own in classes_held] == expected
    assert np.concatenate(classes_held).tolist() == list(range(classes))


@pytest.mark.parametrize("name", ["by_class", "dirichlet"])
def test_images_without_a_label_are_distributed_evenly(name):
    table = counts(images([0] * 30 + [1] * 30 + [-1] * 40), PartitionOptions(name, 2))
    assert [row[-1] for row in table] == [20, 20]
    if name == "by_class":
        assert [row[:-1] for row in table] == [[30, 0], [0, 30]]


def test_a_smaller_alpha_gives_more_uneven_classes():
    labels = np.tile(np.arange(10), 200)
    spread = [
        np.array(counts(images(labels), PartitionOptions("dirichlet", 5, a))).std()
        for a in (0.1, 1.0, 1000.0)
    ]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 5


def test_dirichlet_shares_have_the_mean_and_variance_of_theory():
    given_images, alpha = images([0] * 1000), 2.0
    options = PartitionOptions("dirichlet", 4, alpha)
    shares = np.array([counts(given_images, options, seed)[0][0] for seed in range(800)]) / 1000
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    assert shares.mean() == pytest.approx(0.25, abs=4 * (variance / 800) ** 0.5)
    assert shares.var() == pytest.approx(variance, rel=0.25)


def test_dirichlet_leaves_no_client_below_the_smallest_size():
    given_images = images(np.tile(np.arange(3), 60))
    options = PartitionOptions("dirichlet", 5, 0.3, smallest=12)
    for seed in range(20):
        assert min(map(len, partition_images(given_images, options, seed))) >= 12


def test_groups_are_clients_and_set_their_number_and_names():
    given_images = images([0, 1, 0, 1, 1], groups=[2, 0, 2, 0, 0], owners=("Aachen", "Bern", "Cork"))
    shards = partition_images(given_images, PartitionOptions("by_group"), 0)
    assert [rows.tolist() for rows in shards] == [[1, 3, 4], [0, 2]]
    assert holdings(given_images, shards).clients == ("Aachen", "Cork")
    assert resolve(PartitionOptions("by_group"), given_images).clients == 2
    assert holdings(given_images, partition_images(given_images, PartitionOptions("iid", 2), 0)).clients == (
        "0",
        "1",
    )


def test_the_table_names_classes_and_counts_unlabelled_images_last():
    given_images = images([3, 1, -1, 1], classes=("a", "b"))
    table = holdings(given_images, [np.array([0, 1]), np.array([2, 3])])
    assert table.classes == ("b", "3", "unlabelled")
    assert table.counts.tolist() == [[1, 1, 0], [1, 0, 1]]


def test_the_file_holds_rows_and_table_without_pickle():
    given_images = images([0, 1, 1, 0], classes=("cat", "dog"))
    file = np.load(
        io.BytesIO(encode_partition(given_images, [np.array([1, 2]), np.array([0, 3])])), allow_pickle=False
    )
    assert {key: file[key].tolist() for key in file.files} == {
        "rows_0": [1, 2],
        "rows_1": [0, 3],
        "clients": ["0", "1"],
        "classes": ["cat", "dog"],
        "holdings": [[0, 2], [2, 0]],
    }
    assert file["rows_0"].dtype == file["holdings"].dtype == np.int64
    unlabelled = np.load(
        io.BytesIO(encode_partition(images(count=2), [np.array([0, 1])])), allow_pickle=False
    )
    assert set(unlabelled.files) == {"rows_0", "clients"}


def test_impossible_partitions_are_refused_with_a_remedy():
    two = images([0, 1] * 4, groups=[0, 1] * 4)
    assert "2 classes are too few for 3 clients: lower" in refusal(two, "by_class", 3)
    assert "The images have no labels: set partition.name to iid" in refusal(images(count=9), "by_class", 2)
    assert "The images have no labels" in refusal(images([-1] * 9), "dirichlet", 2)
    assert "raise partition.alpha" in refusal(two, "dirichlet", 4, 1e-3)
    assert "use fewer clients or more images" in refusal(two, "iid", 5)
    assert "smaller partition.uneven" in refusal(two, "iid", 3, uneven=5.0)
    assert "have 2 groups, but partition.clients is 3: remove" in refusal(two, "by_group", 3)
    assert "no groups: set data.groups for a folder" in refusal(images([0, 1]), "by_group")
    assert "2 images have no group" in refusal(images(groups=[0, -1, 1, -1]), "by_group")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "by_clas"}, "Did you mean 'by_class'"),
        ({"clients": 0}, "partition.clients is 0"),
        ({"smallest": 0}, "partition.smallest is 0"),
        ({"alpha": 0.0}, "partition.alpha is 0"),
        ({"alpha": float("nan")}, "partition.alpha is nan"),
        ({"uneven": -1.0}, "partition.uneven is -1"),
        ({"uneven": 1e4}, "give a number from 0 to 10"),
    ],
)
def test_invalid_options_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        PartitionOptions(**options)


@pytest.mark.parametrize("name", PARTITIONS)
def test_one_client_has_everything(name):
    given_images = images([0, 1, 1], groups=[0, 0, 0])
    assert [rows.tolist() for rows in partition_images(given_images, PartitionOptions(name), 0)] == [
        [0, 1, 2]
    ]


@pytest.fixture
def clinics(tmp_path):
    for name in ("bonn/cat/1.png", "bonn/dog/2.png", "ulm/dog/3.png", "ulm/dog/4.png"):
        path = tmp_path / "clinics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(path)
    (tmp_path / "clinics" / "README.txt").write_text("not an image")
    return tmp_path / "clinics"


def test_first_folders_can_be_owners_and_second_ones_classes(clinics):
    loaded = Folder(root=clinics, groups=True, size=4).load()
    assert (loaded.owners, loaded.groups.tolist()) == (("bonn", "ulm"), [0, 0, 1, 1])
    assert (loaded.classes, loaded.labels.tolist()) == (("cat", "dog"), [0, 1, 1, 1])
    assert counts(loaded, PartitionOptions("by_group")) == [[1, 1], [0, 2]]
    assert Folder(root=clinics, size=4).load().groups is None


def test_owners_need_no_classes_but_every_image_an_owner(clinics):
    Image.new("L", (4, 4)).save(clinics / "ulm" / "5.png")
    loaded = Folder(root=clinics, groups=True, size=4, limit=5).load()
    assert loaded.labels is None
    assert len(loaded.groups) == len(loaded) == 4
    Image.new("L", (4, 4)).save(clinics / "6.png")
    with pytest.raises(InputError, match=r"6\.png is not in an owner's folder"):
        Folder(root=clinics, groups=True).load()


def test_groups_come_with_arrays_and_with_their_rows(tmp_path):
    file = tmp_path / "set.npz"
    np.savez(file, images=np.zeros((4, 2, 2), np.uint8), groups=np.array(["ulm", "bonn", "ulm", "ulm"]))
    loaded = Arrays(root=file, limit=3).load()
    assert (loaded.owners, loaded.groups.tolist()) == (("bonn", "ulm"), [1, 0, 1])
    assert loaded.take(np.array([1])).groups.tolist() == [0]
    np.savez(file, images=np.zeros((4, 2, 2), np.uint8), groups=np.zeros(3, int))
    with pytest.raises(InputError, match=r"The groups in .* have shape \(3,\)"):
        Arrays(root=file).load()


@pytest.mark.parametrize("name", ["iid", "by_class", "dirichlet"])
def test_a_share_of_every_class_can_be_withheld_from_all_clients(name):
    images = ImageSet(np.zeros((120, 1, 2, 2), np.uint8), np.arange(120) % 4)
    options = PartitionOptions(name=name, clients=2, withheld=0.1)
    shards = partition_images(images, options, 0)
    missing = np.setdiff1d(np.arange(120), np.concatenate(shards))
    assert np.bincount(images.labels[missing]).tolist() == [3] * 4
    whole = partition_images(images, replace(options, withheld=0.0), 0)
    assert all(np.isin(rows, before).all() for rows, before in zip(shards, whole, strict=True))
    with pytest.raises(InputError, match=r"set partition\.withheld to 0"):
        partition_images(replace(images, labels=None), replace(options, name="iid"), 0)
