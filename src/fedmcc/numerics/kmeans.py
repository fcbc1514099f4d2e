"""k-means as used throughout the package: several restarts, one thread, bit-identical results.

scikit-learn is imported inside the functions: a site starts a process for every message, and few need it.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int64
from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

RESTARTS = 20  # on features of handwritten digits, half of them end in a poor local optimum
MAX_RESTART_CENTRES = 2_000  # of all restarts together on weighted rows: all 20 up to 100 clusters
MAX_CENTRES = 500  # of one k-means on weighted rows; for more, the rows are divided first
PARTS = 8  # into which they are divided
MAX_RESTART_ROWS = 10_000  # larger inputs run the restarts on a sample; the best one is refined on all rows


def fit(
    rows: Float[np.ndarray, "n d"],
    clusters: int,
    seed: int,
    weights: Float[np.ndarray, " n"] | None = None,
    restarts: int = RESTARTS,
) -> "KMeans":
    """Fit k-means to rows with optional weights and keep the best restart; needs at least `clusters` rows.

    Of more than MAX_RESTART_ROWS, restarts use a sample.
    """
    from sklearn.cluster import KMeans

    most = max(MAX_RESTART_ROWS, clusters)
    model = KMeans(clusters, n_init=restarts, random_state=seed % 2**32)  # the range scikit-learn accepts
    with _deterministic():
        if len(rows) <= most:
            return model.fit(rows, sample_weight=weights)
        sample = np.random.default_rng(seed).choice(len(rows), most, replace=False)
        model.fit(rows[sample], sample_weight=None if weights is None else weights[sample])
        return fit_from(rows, model.cluster_centers_, weights)


class Grouping(NamedTuple):
    """The centres of clusters and the cluster of each row."""

    centres: Float[np.ndarray, "k d"]
    labels: Int64[np.ndarray, " n"]


def fit_weighted(
    rows: Float[np.ndarray, "n d"],
    clusters: int,
    seed: int,
    weights: Float[np.ndarray, " n"],
    restarts: int = RESTARTS,
) -> Grouping:
    """Fit k-means to weighted rows; the time grows with the rows, not with rows times clusters.

    Many clusters have fewer restarts. More than MAX_CENTRES are found within parts of the rows, to which
    they are allotted by numbers of rows.
    """
    restarts = min(restarts, max(1, MAX_RESTART_CENTRES // clusters))
    if clusters <= MAX_CENTRES:
        model = fit(rows, clusters, seed, weights, restarts)
        return Grouping(model.cluster_centers_, model.labels_.astype(np.int64))
    parts = fit(rows, PARTS, seed, weights, restarts=1).labels_
    if len(np.unique(parts)) == 1:  # all rows are equal
        return Grouping(rows[:clusters], np.arange(len(rows), dtype=np.int64) % clusters)
    shares = allot(clusters, np.bincount(parts, minlength=PARTS))
    centres: list[np.ndarray] = []
    labels = np.zeros(len(rows), dtype=np.int64)
    for part, share in enumerate(shares):
        inside = parts == part
        if share:
            found = fit_weighted(rows[inside], share, seed, weights[inside], restarts)
            labels[inside] = found.labels + sum(len(each) for each in centres)
            centres.append(found.centres)
    return Grouping(np.concatenate(centres), labels)


def allot(count: int, sizes: Int64[np.ndarray, " n"]) -> list[int]:
    """Divide a number in proportion to sizes: at least 1 where there is anything, and never above a size."""
    sizes = np.asarray(sizes)
    exact = count * sizes / sizes.sum()
    shares = np.minimum(np.maximum(exact.astype(np.int64), sizes > 0), sizes)
    while shares.sum() != count:
        step = 1 if shares.sum() < count else -1
        movable = (shares < sizes) if step > 0 else (shares > 1)
        shares[np.where(movable, step * (exact - shares), -np.inf).argmax()] += step
    return [int(share) for share in shares]


def fit_each(rows: Float32[np.ndarray, "n d"], clusters: int, seeds: Sequence[int]) -> list["KMeans"]:
    """Fit one k-means for each seed, as `fit` does with one restart.

    All seeds share one matrix of distances, so that choosing their first centres takes little time.
    """
    distances = _squared_distances(rows)
    return [fit_from(rows, rows[_spread_out(distances, clusters, seed)]) for seed in seeds]


def fit_from(
    rows: Float[np.ndarray, "n d"],
    centres: Float[np.ndarray, "k d"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> "KMeans":
    """Fit k-means from these first centres."""
    from sklearn.cluster import KMeans

    with _deterministic():
        return KMeans(len(centres), n_init=1, init=centres).fit(rows, sample_weight=weights)


@contextmanager
def _deterministic() -> Iterator[None]:
    from sklearn.exceptions import ConvergenceWarning

    # Threads add their partial sums in the order in which they finish: only one thread is deterministic.
    with warnings.catch_warnings(), _thread_pools().limit(limits=1, user_api="openmp"):
        # Fewer distinct rows than clusters leave some clusters empty, which is visible in the scores.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@cache
def _thread_pools() -> ThreadpoolController:
    """The thread pools of scikit-learn; to find them takes longer than a small k-means."""
    import sklearn.cluster  # noqa: F401  # loads them

    return ThreadpoolController()


def _squared_distances(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n n"]:
    centred = (rows - rows.mean(axis=0)).astype(np.float64)  # as scikit-learn does, against cancellation
    lengths = np.square(centred).sum(axis=1)
    squared = lengths[:, None] + lengths - 2 * (centred @ centred.T)
    np.fill_diagonal(squared, 0)
    return np.asarray(squared.clip(0), dtype=np.float32)


def _spread_out(distances: Float32[np.ndarray, "n n"], count: int, seed: int) -> Int64[np.ndarray, " count"]:
    """Choose rows as first centres by greedy k-means++ (Arthur and Vassilvitskii 2007).

    Random numbers are drawn in scikit-learn's order: equal seeds choose the rows that `fit` starts from.
    """
    nodes, trials = len(distances), 2 + int(np.log(count))
    draw, ones = np.random.RandomState(seed % 2**32), np.ones(nodes, dtype=np.float32)
    chosen = [draw.choice(nodes, p=ones / ones.sum())]
    nearest = distances[chosen[0]]
    total = nearest @ ones
    while len(chosen) < count:
        places = np.searchsorted(np.cumsum(nearest), draw.uniform(size=trials) * total)
        candidates = places.clip(max=nodes - 1)
        after = np.minimum(nearest, distances[candidates])
        totals = after @ ones
        best = totals.argmin()
        chosen.append(candidates[best])
        nearest, total = after[best], totals[best]
    return np.array(chosen)


def merge_small_clusters(
    rows: Float[np.ndarray, "n d"], model: "KMeans", min_size: int
) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " n"]]:
    """Centres and labels after clusters of fewer than `min_size` rows are dissolved into the nearest ones.

    A single remaining cluster may be smaller.
    """
    from sklearn.metrics import pairwise_distances_argmin

    centres, nearest = model.cluster_centers_, model.labels_
    sizes = np.bincount(nearest, minlength=len(centres))
    while len(sizes) > 1 and sizes.min() < min_size:
        remaining = np.delete(centres, sizes.argmin(), axis=0)
        nearest = pairwise_distances_argmin(rows, remaining)
        sizes, sums = np.bincount(nearest, minlength=len(remaining)), np.zeros_like(remaining)
        np.add.at(sums, nearest, rows)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], remaining)
    return centres, nearest.astype(np.int64)


def unit_rows(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Scale rows to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
