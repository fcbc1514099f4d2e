import numpy as np

from fedmcc.evaluation.geometry import Geometry, fit_geometry
from fedmcc.evaluation.splitting import split_rows
from fedmcc.runs.clusters import Edits


def _rows(draw, axis, count):
    return (np.eye(4)[axis] + 0.05 * draw.normal(size=(count, 4))).astype(np.float32)


def _two_in_one():
    """Features of three groups, of which the first two are cluster 0, with certain assignments."""
    draw = np.random.default_rng(0)
    rows = np.concatenate([_rows(draw, 0, 30), _rows(draw, 1, 20), _rows(draw, 2, 25)])
    clusters = np.repeat([0, 0, 1], [30, 20, 25])
    return rows, clusters, np.eye(2, dtype=np.float32)[clusters]


def test_a_split_parts_the_groups_and_the_largest_keeps_the_number():
    rows, clusters, soft = _two_in_one()
    split = split_rows(rows[clusters == 0], (0, 2), {})
    divided = Edits(splits=(split,)).apply(soft, rows)
    np.testing.assert_array_equal(divided.argmax(axis=1), np.repeat([0, 2, 1], [30, 20, 25]))
    np.testing.assert_array_equal(divided.sum(axis=1), soft.sum(axis=1))


def test_merges_before_and_after_a_split_are_applied_in_order():
    rows, _, soft = _two_in_one()
    both = Edits().with_merged(0, [1])
    split = split_rows(rows, (0, 2, 3), both.merged)
    edits = Edits(both.names, both.merged, (split,))
    np.testing.assert_array_equal(edits.apply(soft, rows).argmax(axis=1), np.repeat([0, 3, 2], [30, 20, 25]))
    again = edits.with_merged(2, [0])
    np.testing.assert_array_equal(again.apply(soft, rows).argmax(axis=1), np.repeat([2, 3, 2], [30, 20, 25]))


def test_the_geometry_of_the_parts_is_that_of_their_images():
    rows, clusters, _ = _two_in_one()
    given = fit_geometry(rows, clusters, 2)
    split = split_rows(rows[clusters == 0], (0, 2), {})
    extended = Edits(splits=(split,)).extend(Geometry(given.centres, given.spread, 3.0, 2.0))
    expected = fit_geometry(rows, np.repeat([0, 2, 1], [30, 20, 25]), 3)
    np.testing.assert_allclose(extended.centres, expected.centres, atol=1e-5)
    np.testing.assert_allclose(extended.spread, expected.spread, atol=1e-5)
    assert (extended.limit, extended.temperature) == (3.0, 2.0)
