"""k-means as used throughout the package: several restarts, one thread, bit-identical results.

scikit-learn is imported inside the functions: a site starts a process for every message, and few need it.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Int64
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

RESTARTS = 20  # on features of handwritten digits, half of them end in a poor local optimum
MAX_RESTART_ROWS = 10_000  # larger inputs run the restarts on a sample; the best one is refined on all rows


def fit(
    rows: Float[np.ndarray, "n d"],
    clusters: int,
    seed: int,
    weights: Float[np.ndarray, " n"] | None = None,
    restarts: int = RESTARTS,
) -> "KMeans":
    """Fit k-means to rows with optional weights and keep the best restart; needs at least `clusters` rows."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    model = KMeans(clusters, n_init=restarts, random_state=seed % 2**32)  # the range scikit-learn accepts
    # Threads add their partial sums in the order in which they finish: only one thread is deterministic.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="openmp"):
        # Fewer distinct rows than clusters leave some clusters empty, which is visible in the scores.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if weights is not None or len(rows) <= max(MAX_RESTART_ROWS, clusters):
            return model.fit(rows, sample_weight=weights)
        sample = np.random.default_rng(seed).choice(len(rows), max(MAX_RESTART_ROWS, clusters), replace=False)
        return KMeans(clusters, n_init=1, init=model.fit(rows[sample]).cluster_centers_).fit(rows)


def merge_small_clusters(
    rows: Float[np.ndarray, "n d"], model: "KMeans", min_size: int
) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " k"]]:
    """Return centres and sizes after dissolving clusters of fewer than `min_size` rows into the nearest ones.

    A single remaining cluster may be smaller.
    """
    from sklearn.metrics import pairwise_distances_argmin

    centres, sizes = model.cluster_centers_, np.bincount(model.labels_, minlength=model.n_clusters)
    while len(sizes) > 1 and sizes.min() < min_size:
        remaining = np.delete(centres, sizes.argmin(), axis=0)
        nearest = pairwise_distances_argmin(rows, remaining)
        sizes = np.bincount(nearest, minlength=len(remaining))
        sums = np.zeros_like(remaining)
        np.add.at(sums, nearest, rows)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], remaining)
    return centres, sizes


def unit_rows(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Scale rows to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
