"""The estimator with an automatic number of clusters, and in the company of scikit-learn."""

import pickle

import numpy as np
import pytest
from sklearn.utils import _set_output

from fedmcc import DeepClustering
from fedmcc.data.synthetic import Synthetic

pytestmark = pytest.mark.slow  # takes seconds

SETTINGS = {"encoder.width": 4, "training.batch_size": 16, "threads": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def images():
    return Synthetic(samples=60, classes=3, size=8).load().images


@pytest.fixture(scope="module")
def fitted(images):
    return DeepClustering("auto", views="digits", epochs=1, progress=False, settings=SETTINGS).fit(images)


def test_the_chosen_number_is_that_of_labels_centres_and_probabilities(fitted, images):
    choice = fitted.cluster_choice_
    assert fitted.n_clusters_ == choice["chosen"] == len(fitted.cluster_centers_)
    assert [point["clusters"] for point in choice["curve"]][:5] == [2, 3, 4, 5, 6]
    assert fitted.predict_proba(images).shape == (60, choice["chosen"])
    np.testing.assert_array_equal(fitted.predict(images), fitted.labels_)


def test_the_choice_is_saved_and_copied(fitted, images, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    for same in (
        DeepClustering.load(tmp_path / "model.safetensors"),
        pickle.loads(pickle.dumps(fitted)),  # noqa: S301 (as scikit-learn copies estimators)
    ):
        assert same.cluster_choice_ == fitted.cluster_choice_
        assert same.get_params() == fitted.get_params()
        np.testing.assert_array_equal(same.predict_proba(images), fitted.predict_proba(images))


def test_a_network_of_one_step_on_noise_is_not_confident():
    noise = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8)
    settings = SETTINGS | {"training.batch_size": 80}
    model = DeepClustering(5, views="digits", epochs=1, progress=False, settings=settings).fit(noise)
    assert model.predict_proba(noise).max(axis=1).mean() < 0.6


class Named(_set_output.ContainerAdapterProtocol):
    """Rows of features with the names of their columns, as a data frame would hold them."""

    container_lib = "named"

    def create_container(self, output, original, columns, inplace=True):
        return columns() if callable(columns) else columns, output


def test_set_output_gives_the_features_their_names(fitted, images, monkeypatch):
    adapters = _set_output.ADAPTERS_MANAGER
    monkeypatch.setitem(adapters.adapters, "named", Named())
    names, features = fitted.set_output(transform="named").transform(images)
    fitted.set_output(transform="default")
    assert names.tolist() == fitted.get_feature_names_out().tolist()
    np.testing.assert_array_equal(features, fitted.transform(images))
