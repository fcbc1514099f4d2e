"""Features in files: computed once, continued after a stop, and kept apart by what they depend on."""

import numpy as np
import pytest
import torch

from fedmcc.methods.inputs import PLAIN, ROW
from fedmcc.networks import ENCODERS
from fedmcc.networks.onnx import OnnxEncoder, OnnxOptions
from fedmcc.training.batches import BatchSource
from fedmcc.training.feature_files import BLOCK_IMAGES, feature_file
from fedmcc.views import Views

VIEWS = Views(size=8)


@pytest.fixture
def encoder(encoder_files, tmp_path):
    return OnnxOptions(encoder_files.write_onnx(tmp_path / "tiny.onnx")).build(3, 8)


def _images(count=150, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 10, 10), dtype=np.uint8)


def _expected(encoder_files, images):
    return encoder_files.onnx_features(VIEWS.plain(torch.from_numpy(images)))


def test_features_are_those_of_every_image_in_order(encoder_files, encoder):
    images = _images()
    file = feature_file(encoder, images, VIEWS)
    torch.testing.assert_close(torch.from_numpy(np.array(file.array())), _expected(encoder_files, images))
    rows = np.array([140, 3, 77])
    part = file.take(rows)
    assert len(part) == 3
    assert torch.equal(part.read(np.array([2, 0])), file.read(np.array([77, 140])))


def test_features_are_computed_once(encoder, monkeypatch):
    first = feature_file(encoder, _images(), VIEWS)
    monkeypatch.setattr(OnnxEncoder, "encode", None)  # any further computation fails
    assert feature_file(encoder, _images().copy(), VIEWS).path == first.path


@pytest.mark.parametrize("kept", [0, 1, BLOCK_IMAGES * 24 + 13, 149 * 24])
def test_a_stopped_computation_continues_to_the_same_bits(encoder, kept):
    file = feature_file(encoder, _images(), VIEWS)
    whole = file.path.read_bytes()
    assert len(whole) == 150 * 6 * 4
    file.path.write_bytes(whole[:kept])
    assert feature_file(encoder, _images(), VIEWS).path.read_bytes() == whole


def test_a_continued_computation_does_not_repeat_what_is_done(encoder, monkeypatch):
    file, counts, original = feature_file(encoder, _images(), VIEWS), [], OnnxEncoder.encode
    file.path.write_bytes(file.path.read_bytes()[: 140 * 24])
    monkeypatch.setattr(OnnxEncoder, "encode", lambda self, x: counts.append(len(x)) or original(self, x))
    feature_file(encoder, _images(), VIEWS)
    assert sum(counts) == 10


def test_other_images_encoders_and_sizes_have_other_files(encoder_files, encoder, tmp_path):
    other = OnnxOptions(encoder_files.write_onnx(tmp_path / "other.onnx", seed=1)).build(3, 8)
    files = [
        feature_file(encoder, _images(), VIEWS),
        feature_file(encoder, _images(seed=1), VIEWS),
        feature_file(other, _images(), VIEWS),
        feature_file(OnnxOptions(tmp_path / "tiny.onnx", mean=(0.0, 0.0, 0.0)).build(3, 8), _images(), VIEWS),
    ]
    assert len({file.path for file in files}) == len(files)


def test_only_the_owner_can_read_the_features(encoder):
    assert feature_file(encoder, _images(), VIEWS).path.stat().st_mode & 0o777 == 0o600


def test_an_encoder_that_learns_has_no_file():
    assert feature_file(ENCODERS["convnet"]().build(3, 8), _images(), VIEWS) is None


def test_a_stage_that_sees_plain_images_gets_their_features(encoder):
    images = _images()
    file = feature_file(encoder, images, VIEWS)
    source = BatchSource(images, VIEWS, 50, torch.device("cpu"), file)
    plain, rows = next(source.epoch((PLAIN, ROW), {}, torch.Generator().manual_seed(0)))[:]
    assert torch.equal(plain, file.read(rows.numpy()))


def test_memory_does_not_grow_with_the_images(encoder, tmp_path):
    import tracemalloc

    peaks = []
    for count in (300, 3000):
        path = tmp_path / f"{count}.npy"
        np.save(path, _images(count, seed=count))
        mapped = np.load(path, mmap_mode="r")
        tracemalloc.start()
        feature_file(encoder, mapped, VIEWS)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
