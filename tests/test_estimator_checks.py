"""The checks of scikit-learn. They fit tables: `Tables` shows each row of a table as a small image."""

import numpy as np
import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

from fedmcc import DeepClustering

pytestmark = pytest.mark.slow  # takes seconds

SETTINGS = {"encoder.width": 2, "training.batch_size": 16, "threads": 1, "device": "cpu"}
SIDE = 8  # pixels of an image
# All checks that do not call `fit`, except one that EXCEPTIONS lists.
API_CHECKS = [
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_mixin_order,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_set_params,
    estimator_checks.check_valid_tag_types,
]
EXCEPTIONS = {
    "check_do_not_raise_errors_in_init_or_set_params": "it gives `__init__` values of wrong types, which are "
    "refused where pytest checks types",
    "check_fit2d_1sample": "one image cannot have two clusters: the error says so, in other words",
}


class Tables(DeepClustering):
    """Clusters the rows of a table as images: the values, repeated until an image is full, are its pixels.

    Some checks ask for one cluster, which fedmcc refuses: they get two. Checks of tables themselves, such as
    the number of columns, are left to scikit-learn: they say nothing about images.
    """

    def fit(self, X, y=None, groups=None):  # noqa: N803
        table = validate_data(self, X, dtype=np.float64)
        self._range, given = (table.min(), table.max()), self.n_clusters
        self.n_clusters = max(2, given)
        try:
            return super().fit(self._pictures(table))
        finally:
            self.n_clusters = given

    def predict(self, X):  # noqa: N803
        return super().predict(self._checked(X))

    def predict_proba(self, X):  # noqa: N803
        return super().predict_proba(self._checked(X))

    def transform(self, X):  # noqa: N803
        return super().transform(self._checked(X))

    def score(self, X, y=None):  # noqa: N803
        return super().score(self._checked(X), y)

    def _checked(self, X):  # noqa: N803
        self._trained()
        return self._pictures(validate_data(self, X, reset=False, dtype=np.float64))

    def _pictures(self, table):
        low, high = self._range
        grey = np.rint(255 * np.clip((table - low) / ((high - low) or 1), 0, 1)).astype(np.uint8)
        return np.resize(grey.T, (SIDE * SIDE, len(grey))).T.reshape(-1, SIDE, SIDE)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        return tags


def test_it_passes_the_checks_of_scikit_learn_with_rows_of_tables_as_images():
    model = Tables(n_clusters=3, epochs=1, views="digits", progress=False, settings=SETTINGS)
    results = check_estimator(model, on_fail=None, on_skip=None, expected_failed_checks=EXCEPTIONS)
    assert len(results) > 40
    status = {one["check_name"]: one["status"] for one in results}
    expected = set(EXCEPTIONS) | {"check_array_api_input"}  # skipped unless SCIPY_ARRAY_API is set
    failed = {one["check_name"]: one["exception"] for one in results if one["status"] != "passed"}
    assert not {name: error for name, error in failed.items() if name not in expected}, failed
    assert status["check_fit2d_1sample"] == "xfail"


@pytest.mark.parametrize("check", API_CHECKS, ids=lambda check: check.__name__)
def test_the_estimator_itself_passes_the_checks_that_do_not_fit(check):
    check("DeepClustering", DeepClustering())


def test_its_tags_say_that_it_takes_no_tables():
    with pytest.warns(SkipTestWarning, match="Can't test estimator DeepClustering which requires input"):
        results = check_estimator(DeepClustering(), on_fail=None)
    assert [(one["check_name"], one["status"]) for one in results] == [
        ("check_estimator_cloneable", "passed")
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros(64), "shape"),
        (np.zeros((10, 64)), "shape"),
        (np.zeros((0, 8, 8)), "shape"),
        (np.full((10, 8, 8), np.nan), "NaN or infinite"),
        (np.full((10, 8, 8), np.inf), "NaN or infinite"),
        (np.full((10, 8, 8), 300.0), "outside"),
        (np.zeros((10, 8, 8), dtype=complex), "type complex"),
    ],
)
def test_what_is_not_an_image_is_a_value_error_as_scikit_learn_expects(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        DeepClustering(settings=SETTINGS).fit(given)
