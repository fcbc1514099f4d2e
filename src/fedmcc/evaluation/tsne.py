"""Features as points of a plane, for people to look at: t-SNE on a sample."""

import numpy as np
from jaxtyping import Float32, Int, Int64
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from fedmcc.numerics import kmeans

MAX_TSNE_IMAGES = 4_000  # images: t-SNE of more takes minutes
STEPS = 500
DIMENSIONS = 50  # that PCA leaves to t-SNE
PERPLEXITY = 30.0
ANGLE = 0.7  # how coarsely far points count; a third faster than .5, and the same picture
FEWEST = 4  # images that can be told apart in a plane
SAME = 1e-6

Rows = Float32[np.ndarray, "n d"]


def embed(features: Rows, seed: int) -> Float32[np.ndarray, "n 2"]:
    """t-SNE of rows of length 1 after PCA; too few rows, or all the same, are put in one place."""
    rows = kmeans.unit_rows(features)
    if len(rows) < FEWEST or np.ptp(rows, axis=0).max() < SAME:
        return np.zeros((len(rows), 2), dtype=np.float32)
    seed = seed % 2**32  # the range scikit-learn takes
    reduced = PCA(min(DIMENSIONS, *rows.shape), svd_solver="randomized", random_state=seed).fit_transform(
        rows
    )
    start = np.zeros((len(rows), 2), dtype=np.float32)
    start[:, : reduced.shape[1]] = reduced[:, :2] / reduced[:, 0].std() * 1e-4  # as scikit-learn begins
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    found = TSNE(perplexity=perplexity, max_iter=STEPS, init=start, angle=ANGLE, random_state=seed)
    return np.asarray(found.fit_transform(reduced), dtype=np.float32)


def stratified_sample(strata: Int[np.ndarray, " n"], most: int, seed: int) -> Int64[np.ndarray, " m"]:
    """Rows in ascending order, at most so many: one of each stratum, the others by the strata's shares."""
    count = len(strata)
    if count <= most:
        return np.arange(count)
    shuffled = np.random.default_rng(seed).permutation(count)
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    firsts = np.unique(strata[by_stratum], return_index=True)[1][:most]
    others = np.delete(by_stratum, firsts)
    spread = np.linspace(0, len(others) - 1, most - len(firsts)).round().astype(np.int64)
    return np.sort(np.concatenate([by_stratum[firsts], others[spread]])).astype(np.int64)


def typicality(features: Rows, assigned: Int[np.ndarray, " n"]) -> Float32[np.ndarray, " n"]:
    """The cosine of each row to the mean of its cluster's rows of length 1: large at the cluster's heart."""
    rows = kmeans.unit_rows(features)
    found = np.zeros(len(rows), dtype=np.float32)
    for cluster in np.unique(assigned):
        own = assigned == cluster
        found[own] = rows[own] @ kmeans.unit_rows(rows[own].mean(axis=0, keepdims=True))[0]
    return found
