"""Features as points of a plane, by t-SNE, and the sample of images to draw."""

import numpy as np
from jaxtyping import Float32, Int, Int64
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from fedmcc.numerics import kmeans

MAX_TSNE_IMAGES = 4_000  # t-SNE of more takes minutes
ITERATIONS = 500
PCA_DIMENSIONS = 50  # before t-SNE
PERPLEXITY = 30.0
ANGLE = 0.7  # of the Barnes-Hut approximation: a third faster than 0.5, and the same picture
MIN_TSNE_IMAGES = 4  # with fewer the perplexity would be below 1
MIN_RANGE = 1e-6  # of a feature; below it all images are the same

Rows = Float32[np.ndarray, "n d"]


def embed(features: Rows, seed: int) -> Float32[np.ndarray, "n 2"]:
    """Points of t-SNE on rows scaled to unit length, after PCA; all 0 if rows are too few or identical."""
    rows = kmeans.unit_rows(features)
    if len(rows) < MIN_TSNE_IMAGES or np.ptp(rows, axis=0).max() < MIN_RANGE:
        return np.zeros((len(rows), 2), dtype=np.float32)
    seed = seed % 2**32  # the range that scikit-learn accepts
    pca = PCA(min(PCA_DIMENSIONS, *rows.shape), svd_solver="randomized", random_state=seed)
    reduced = pca.fit_transform(rows)
    start = np.zeros((len(rows), 2), dtype=np.float32)
    start[:, : reduced.shape[1]] = reduced[:, :2] / reduced[:, 0].std() * 1e-4  # scikit-learn's scale
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, max_iter=ITERATIONS, init=start, angle=ANGLE, random_state=seed)
    return np.asarray(tsne.fit_transform(reduced), dtype=np.float32)


def stratified_sample(strata: Int[np.ndarray, " n"], limit: int, seed: int) -> Int64[np.ndarray, " m"]:
    """At most `limit` rows in ascending order: one per stratum, the rest in proportion to its size."""
    count = len(strata)
    if count <= limit:
        return np.arange(count)
    shuffled = np.random.default_rng(seed).permutation(count)
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    firsts = np.unique(strata[by_stratum], return_index=True)[1][:limit]
    others = np.delete(by_stratum, firsts)
    spread = np.linspace(0, len(others) - 1, limit - len(firsts)).round().astype(np.int64)
    return np.sort(np.concatenate([by_stratum[firsts], others[spread]])).astype(np.int64)


def typicality(features: Rows, assigned: Int[np.ndarray, " n"]) -> Float32[np.ndarray, " n"]:
    """Cosine similarity of each row to the mean of its cluster: high at the centre of the cluster."""
    rows = kmeans.unit_rows(features)
    cosines = np.zeros(len(rows), dtype=np.float32)
    for cluster in np.unique(assigned):
        own = assigned == cluster
        cosines[own] = rows[own] @ kmeans.unit_rows(rows[own].mean(axis=0, keepdims=True))[0]
    return cosines
