import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.methods import CLUSTERINGS, METHODS
from fedmcc.runs.resolve import (
    check,
    check_images,
    image_sides,
    resolve,
    with_possible_batch,
    with_statistics,
    without_first_weights,
)


def _images(n=20, labels=None, size=8):
    return ImageSet(np.zeros((n, 1, *np.broadcast_to(size, 2)), dtype=np.uint8), labels)


@pytest.mark.parametrize(
    ("stated", "threads"),
    [("3", 3), ("2,1", 2), ("", os.cpu_count()), ("many", os.cpu_count()), ("0", os.cpu_count())],
)
def test_the_default_number_of_threads_is_that_of_openmp(monkeypatch, stated, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert resolve(parse({"clusters": 2}), _images()).general.threads == threads
    assert resolve(parse({"clusters": 2, "threads": 5}), _images()).general.threads == 5


def test_options_that_depend_on_images_or_machine_are_filled_in(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    labels = np.array([0, 1, 2, -1] * 5)
    config = resolve(parse({}), _images(labels=labels, size=(12, 9)))
    assert config.general.clusters == 3  # -1 is not a class
    assert config.views.size == 9
    assert config.general.threads == os.cpu_count()
    assert config.general.device in ("cpu", str(torch.accelerator.current_accelerator()))
    assert config.training.keep_optimizer is True  # D14: a single client


def test_a_client_that_trains_alone_has_the_optimiser_of_a_federation():
    table = {"partition": {"clients": 2}, "federation": {"only": 0}}
    config = resolve(parse(table), _images(labels=np.arange(20) % 4))
    assert config.training.keep_optimizer is False  # D14: comparable with all clients together


@pytest.mark.parametrize(
    ("clients", "stated", "expected"),
    [(1, {}, 1), (2, {}, 10), (1, {"smallest": 10}, 10), (2, {"smallest": 3}, 3)],
)
def test_centroids_of_single_images_are_allowed_unasked_only_if_nothing_is_sent(clients, stated, expected):
    sharing = {"partition": {"clients": clients}}
    clustering = {"clustering": {"name": "kmeans", **stated}, "method": {"name": "fedu"}}
    images = _images(labels=np.arange(20) % 4)
    assert with_statistics(parse(sharing | clustering), images).clustering.smallest == expected


def _limits(options):
    """The limits of an entry's stages, with those of stages that are inside others."""
    stages = [getattr(stage, "inner", stage) for stage in options.stages()]
    return [getattr(stage, "smallest", None) for stage in stages]


@pytest.mark.parametrize(
    "entry", [entry for entry in (*METHODS.values(), *CLUSTERINGS.values()) if hasattr(entry, "smallest")]
)
def test_a_real_site_sends_no_centroids_of_few_images_unless_that_is_stated(entry):
    stated = _limits(entry(smallest=37))
    assert 37 in stated
    assert _limits(entry()) == [10 if limit == 37 else limit for limit in stated]


def test_of_a_single_site_centroids_leave_the_machine():
    config = with_statistics(parse({"partition": {"clients": 1}}), None)
    assert config.clustering.smallest == 10


def test_options_that_were_set_are_kept():
    table = {"clusters": 5, "views": {"size": 16}, "training": {"keep_optimizer": False}, "threads": 1}
    config = resolve(parse(table), _images(labels=np.arange(20)))
    assert (config.general.clusters, config.general.threads, config.views.size) == (5, 1, 16)
    assert config.training.keep_optimizer is False


def test_a_resolved_configuration_resolves_to_itself():
    images = _images(labels=np.arange(20) % 4)
    once = resolve(parse({"device": "cpu", "threads": 1}), images)
    assert resolve(once, images) == once


@pytest.mark.parametrize("labels", [None, np.full(20, -1), np.zeros(20, dtype=np.int64)])
def test_without_labels_the_number_of_clusters_must_be_given(labels):
    with pytest.raises(InputError, match="set the number of clusters, such as --clusters 10"):
        resolve(parse({}), _images(labels=labels))
    assert resolve(parse({"clusters": 3}), _images(labels=labels)).general.clusters == 3


def test_more_clusters_than_images_are_refused():
    config = parse({"clusters": 21, "training": {"batch_size": 8}})
    with pytest.raises(InputError, match=r"^21 clusters of 20 images: lower clusters"):
        check_images(config, _images())


@pytest.mark.parametrize(
    ("count", "counted"), [(1, "1 image, and 3 files were"), (2, "2 images, and 3 files")]
)
def test_skipped_files_are_counted_if_there_are_too_few_images(count, counted):
    images = replace(_images(n=count), skipped=("a.heic: HEIC",) * 3)
    with pytest.raises(InputError, match=rf"^5 clusters of {counted}"):
        check_images(parse({"clusters": 5}), images)


def test_a_batch_larger_than_the_data_shrinks_with_a_message(caplog):
    config = parse({"clusters": 2, "training": {"batch_size": 8}})
    assert with_possible_batch(config, _images(n=8)) == config
    assert not caplog.messages
    assert with_possible_batch(config, _images(n=7)).training == replace(config.training, batch_size=7)
    assert caplog.messages == ["training.batch_size is 8: batches have all 7 images."]


@pytest.mark.parametrize(
    ("section", "table"),
    [
        ("method", {"method": {"name": "mcc"}}),
        ("clustering", {"method": {"name": "fedsimclr"}, "clustering": {"name": "mcc"}}),
    ],
)
@pytest.mark.parametrize("field", ["rounds", "epochs"])
def test_a_stage_without_rounds_or_epochs_is_refused(section, table, field):
    check(parse(table))
    with pytest.raises(InputError, match=rf"set {section}\.rounds and {section}\.epochs to 1 or more"):
        check(parse(table | {section: table[section] | {field: 0}}))


def test_pretrained_weights_are_left_out_of_encoders_that_have_them():
    config = parse({"encoder": {"name": "resnet18", "weights": "w.safetensors"}})
    assert without_first_weights(config).encoder.weights is None
    assert without_first_weights(parse({})) == parse({})


def test_decoded_files_have_the_size_of_data_and_other_images_that_of_views():
    files = {"data": {"name": "folder", "root": "images", "size": 20}, "views": {"size": 8}}
    assert image_sides(parse(files)) == (20, 20)
    assert image_sides(parse({"views": {"size": 8}})) == (8, 8)
    assert image_sides(parse({})) is None
