"""Features as points of a plane, by t-SNE, the sample of images to draw, and similar images in it."""

import numpy as np
from jaxtyping import Float32, Int, Int32, Int64
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
BLOCK = 1024  # rows that are compared with the sample at a time

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


def nearest_in_sample(
    features: Rows, sample: Int64[np.ndarray, " m"], count: int
) -> Int32[np.ndarray, "n neighbours"]:
    """For each row the most similar other rows of the sample by cosine, as positions in the sample."""
    rows = kmeans.unit_rows(features)
    sampled, count = rows[sample], min(count, len(sample) - 1)
    place = np.full(len(rows), -1)
    place[sample] = np.arange(len(sample))
    found = np.zeros((len(rows), count), dtype=np.int32)
    for start in range(0, len(rows), BLOCK):
        cosines = rows[start : start + BLOCK] @ sampled.T
        own = place[start : start + BLOCK]
        cosines[own >= 0, own[own >= 0]] = -np.inf
        top = np.argpartition(-cosines, count - 1, axis=1)[:, :count] if count else found[:0]
        order = np.argsort(-np.take_along_axis(cosines, top, axis=1), axis=1, kind="stable")
        found[start : start + BLOCK] = np.take_along_axis(top, order, axis=1)
    return found
