"""k-means centres, as every part of the program finds them: several starts, one thread, the same bits.

scikit-learn is imported where it computes: sites start a process for every message, and few of these need it.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Int64
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

RESTARTS = 20  # half of them end in a poor optimum on features of handwritten digits
MAX_RESTART_ROWS = 10_000  # rows on which restarts are tried; the best goes on with all of them


def fit(
    rows: Float[np.ndarray, "n d"],
    clusters: int,
    seed: int,
    weights: Float[np.ndarray, " n"] | None = None,
    restarts: int = RESTARTS,
) -> "KMeans":
    """The best of several k-means of rows that may weigh differently; needs as many rows as clusters."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    model = KMeans(clusters, n_init=restarts, random_state=seed % 2**32)  # the range scikit-learn takes
    # Threads add up their parts of a centre in the order they finish: only one gives the same bits each time.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="openmp"):
        # Fewer distinct rows than clusters leave clusters empty, which the scores show.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if weights is not None or len(rows) <= max(MAX_RESTART_ROWS, clusters):
            return model.fit(rows, sample_weight=weights)
        some = np.random.default_rng(seed).choice(len(rows), max(MAX_RESTART_ROWS, clusters), replace=False)
        return KMeans(clusters, n_init=1, init=model.fit(rows[some]).cluster_centers_).fit(rows)


def merge_small_clusters(
    rows: Float[np.ndarray, "n d"], model: "KMeans", smallest: int
) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " k"]]:
    """Centres and sizes, none below `smallest` (but a single one): rows of small ones join the nearest."""
    from sklearn.metrics import pairwise_distances_argmin

    centres, sizes = model.cluster_centers_, np.bincount(model.labels_, minlength=model.n_clusters)
    while len(sizes) > 1 and sizes.min() < smallest:
        kept = np.delete(centres, sizes.argmin(), axis=0)
        nearest = pairwise_distances_argmin(rows, kept)
        sizes = np.bincount(nearest, minlength=len(kept))
        sums = np.zeros_like(kept)
        np.add.at(sums, nearest, rows)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], kept)
    return centres, sizes


def unit_rows(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Rows scaled to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
