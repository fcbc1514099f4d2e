import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, normalize

from fedmcc import DeepClustering
from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError

pytestmark = pytest.mark.slow  # takes seconds

SETTINGS = {"encoder.width": 4, "training.batch_size": 16, "threads": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def images():
    return Synthetic(samples=48, classes=3, size=8).load().images


def _model(**changes):
    options = {"n_clusters": 3, "views": "digits", "epochs": 2, "settings": SETTINGS} | changes
    return DeepClustering(**options)


@pytest.fixture(scope="module")
def fitted(images):
    return _model().fit(images)


def test_predicting_the_fitted_images_gives_their_labels(fitted, images):
    assert fitted.labels_.shape == (48,)
    assert set(fitted.labels_.tolist()) <= {0, 1, 2}
    np.testing.assert_array_equal(fitted.predict(images), fitted.labels_)


def test_the_random_state_decides_the_result(fitted, images):
    again, other = _model().fit(images), _model(random_state=1).fit(images)
    np.testing.assert_array_equal(again.labels_, fitted.labels_)
    assert again.history_ == fitted.history_ != other.history_
    np.testing.assert_array_equal(again.transform(images), fitted.transform(images))


def test_the_prediction_of_an_image_does_not_depend_on_other_images(fitted, images):
    np.testing.assert_array_equal(fitted.predict(images[5:9]), fitted.labels_[5:9])
    np.testing.assert_allclose(
        fitted.transform(images[7:8]), fitted.transform(images)[7:8], rtol=1e-4, atol=1e-5
    )


def test_the_same_images_in_other_layouts_and_types_give_the_same_clusters(fitted, images):
    last, floats = images.transpose(0, 2, 3, 1), images / 255
    for same in (last, floats, images.astype(np.int64), images.tolist(), images[:, :, ::-1][:, :, ::-1]):
        np.testing.assert_array_equal(fitted.predict(same), fitted.labels_)


def test_features_are_those_of_the_encoder_a_row_per_image(fitted, images):
    features = fitted.transform(images)
    assert features.shape == (48, 8 * 4)
    assert np.isfinite(features).all()


def test_history_has_a_finite_loss_per_epoch(fitted):
    assert len(fitted.history_) == 2
    assert np.isfinite(fitted.history_).all()


def test_a_clone_has_the_parameters_but_is_not_fitted(fitted, images):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.get_params()["settings"] == SETTINGS
    with pytest.raises(NotFittedError):
        copy.predict(images)


def test_fit_predict_and_parameters_follow_scikit_learn(images, fitted):
    model = DeepClustering().set_params(**fitted.get_params())
    np.testing.assert_array_equal(model.fit_predict(images), fitted.labels_)


def test_settings_change_every_section(images):
    changed = {"encoder.norm": "group", "method.momentum": 0.5, "views.rotation": 0}
    model = _model(method="mcc", epochs=1, settings=SETTINGS | changed).fit(images)
    assert any(isinstance(m, torch.nn.GroupNorm) for m in model._experiment.net.modules())
    assert model._experiment.config.method.momentum == 0.5
    assert model._experiment.config.views.rotation == 0.0


def test_fitting_does_not_change_the_global_generators(images):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    _model(epochs=1).fit(images)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_clusters": 49}, "49 clusters of 48 images"),
        ({"n_clusters": 1}, "n_clusters is 1: give a whole number from 2, or 'auto'"),
        ({"n_clusters": np.array([2, 3])}, r"n_clusters is array\(\[2, 3\]\): give a whole number"),
        ({"n_clusters": np.nan}, "n_clusters is nan"),
        ({"n_clusters": 2.5}, "n_clusters is 2.5"),
        ({"n_clusters": True}, "n_clusters is True"),
        ({"n_clusters": None}, "n_clusters is None"),
        ({"n_clusters": "many"}, "n_clusters is 'many'"),
        ({"method": "mc"}, "Did you mean 'mcc'"),
        ({"views": "photos"}, "Did you mean 'photo'"),
        ({"epochs": 0}, r"set method\.rounds"),
        ({"settings": {"training.batchsize": 3}}, "Did you mean 'batch_size'"),
    ],
)
def test_invalid_parameters_are_refused(images, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        _model().set_params(**changes).fit(images)


@pytest.mark.parametrize("count", [3, 20])
def test_a_few_images_are_enough_for_the_default_batch(images, caplog, count):
    model = _model(n_clusters=2, epochs=1, settings={"encoder.width": 4, "threads": 1, "device": "cpu"})
    assert model.fit(images[:count]).labels_.shape == (count,)
    assert f"training.batch_size is 128: batches have all {count} images." in caplog.messages


def test_images_of_another_shape_than_fitted_are_refused(fitted, images):
    with pytest.raises(InputError, match="X has 1 channels, but the fitted images have 3: convert X"):
        fitted.predict(images[:, :1])
    with pytest.raises(InputError, match="The images in X have shape"):
        fitted.predict(images[0, 0])


def test_owners_are_clients_of_a_federation_and_a_single_owner_trains_alone(fitted, images):
    alone = _model().fit(images, groups=["here"] * len(images))
    np.testing.assert_array_equal(alone.labels_, fitted.labels_)
    together = _model().fit(images, groups=["here", "there"] * (len(images) // 2))
    assert sorted(together._experiment.engine.clients) == [0, 1]


def test_groups_must_name_one_owner_per_image(fitted, images):
    with pytest.raises(InputError, match="groups has the shape"):
        _model().fit(images, groups=["here"])
    with pytest.raises(InputError, match="groups has 1 owners of 48 images: give one for each image"):
        fitted.predict(images, groups=["here"])


def test_predicting_the_fitted_images_of_their_owners_gives_their_labels(images):
    owners = ["here"] * 30 + ["there"] * 18
    fitted = _model(settings=SETTINGS | {"clustering.smallest": 2}).fit(images, groups=owners)
    np.testing.assert_array_equal(fitted.predict(images, groups=owners), fitted.labels_)
    there = fitted.predict(images[30:], groups=["the same"] * 18)  # other names, and nobody else's images
    np.testing.assert_array_equal(there, fitted.labels_[30:])


def test_fitted_attributes_describe_the_clustering(fitted, images):
    assert (fitted.n_clusters_, fitted.n_iter_) == (3, 2)
    features = fitted.transform(images)
    for cluster in set(fitted.labels_.tolist()):
        mean = features[fitted.labels_ == cluster].mean(axis=0)
        np.testing.assert_allclose(fitted.cluster_centers_[cluster], mean, rtol=1e-4, atol=1e-5)
    soft = fitted.predict_proba(images)
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(soft.argmax(axis=1), fitted.labels_)
    names = fitted.get_feature_names_out()
    assert names[:2].tolist() == ["deepclustering0", "deepclustering1"]
    assert len(names) == features.shape[1]


def test_the_score_is_the_rand_index_with_labels_and_the_silhouette_without(fitted, images):
    assert fitted.score(images, fitted.labels_) == 1
    if len(set(fitted.labels_.tolist())) > 1:
        unit = normalize(fitted.transform(images))
        assert fitted.score(images) == pytest.approx(silhouette_score(unit, fitted.labels_), abs=1e-4)


def test_floats_up_to_255_and_pillow_images_and_files_are_the_same_images(fitted, images, tmp_path):
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in images]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number:02}.png")
    paths = sorted(tmp_path.iterdir())
    for same in (images.astype(np.float32), pictures, paths, list(map(str, paths)), str(tmp_path)):
        np.testing.assert_array_equal(fitted.predict(same), fitted.labels_)
    again = _model(image_size=8).fit(pictures)
    np.testing.assert_array_equal(again.labels_, fitted.labels_)


def test_the_range_of_floats_is_that_of_the_fit(images):
    model = _model(epochs=1).fit(images.astype(np.float64))
    dark = np.zeros_like(images[:2], dtype=np.float64)
    np.testing.assert_array_equal(model.transform(dark + 0.4), model.transform(dark))
    with pytest.raises(InputError, match="outside"):
        model.predict(images * 2.0)


def test_a_damaged_file_in_a_list_of_paths_is_named(fitted, tmp_path):
    (tmp_path / "a.png").write_text("not an image")
    with pytest.raises(InputError, match=r"a\.png cannot be read: not an image\. Leave it out of X"):
        fitted.predict([tmp_path / "a.png"])


def test_random_states_of_every_kind_are_accepted(images):
    seeds = [_model(random_state=state)._seed() for state in (7, np.int64(7))]
    assert seeds == [7, 7]
    state = np.random.RandomState(0)
    drawn = [_model(random_state=state)._seed() for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert _model(random_state=None)._seed() != _model(random_state=None)._seed()


def test_a_saved_estimator_is_the_same_bit_for_bit(fitted, images, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    loaded = DeepClustering.load(tmp_path / "model.safetensors")
    assert loaded.get_params() == fitted.get_params()
    np.testing.assert_array_equal(loaded.transform(images), fitted.transform(images))
    np.testing.assert_array_equal(loaded.predict_proba(images), fitted.predict_proba(images))
    for name in ("labels_", "history_", "n_clusters_", "n_iter_", "cluster_centers_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_file_that_was_changed_is_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    whole = path.read_bytes()
    changed = {
        "weights": whole[:-1] + bytes([whole[-1] ^ 1]),
        "configuration": whole.replace(b"seed = 0", b"seed = 1"),
        "facts": whole.replace(b"digits", b"photos"),
    }
    for content in changed.values():
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(InputError, match="was changed after it was written"):
            DeepClustering.load(path)
    path.write_bytes(whole[:100])
    with pytest.raises(InputError, match="damaged or not a safetensors file"):
        DeepClustering.load(path)


def test_it_works_in_pipelines_and_searches(images):
    pipeline = make_pipeline(FunctionTransformer(np.flip), _model(epochs=1))
    assert pipeline.fit_predict(images).shape == (48,)
    search = GridSearchCV(_model(epochs=1), {"n_clusters": [2, 3]}, cv=2).fit(images)
    assert search.best_params_["n_clusters"] in (2, 3)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
