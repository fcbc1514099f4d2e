import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

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
        ({"n_clusters": 1}, "clusters is 1"),
        ({"method": "mc"}, "Did you mean 'mcc'"),
        ({"views": "photos"}, "Did you mean 'photo'"),
        ({"epochs": 0}, r"set method\.rounds"),
        ({"settings": {"training.batchsize": 3}}, "Did you mean 'batch_size'"),
    ],
)
def test_invalid_parameters_are_refused(images, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        _model(**changes).fit(images)


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


def test_groups_must_name_one_owner_per_image(images):
    with pytest.raises(InputError, match="groups has the shape"):
        _model().fit(images, groups=["here"])
