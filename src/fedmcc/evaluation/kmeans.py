"""k-means on features, pooled or federated, and on pixels as the baseline that every method must beat."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from sklearn.cluster import KMeans
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.features import extract
from fedmcc.messages import Update
from fedmcc.methods.federated_kmeans import Centroids, FederatedKMeans
from fedmcc.methods.whitening import Whitening
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.kmeans import RESTARTS, fit, fit_each, fit_from, unit_rows
from fedmcc.numerics.state_dicts import copy_into

MAX_PIXELS = 2**28  # 1 GiB as 32-bit floats: all of CIFAR, or 87,000 colour images of 32 px
MIN_REDUCED_SIDE = 96  # images of this side or more are reduced first: k-means on 224 px would take minutes
REDUCED_SIDE = 32  # at least, after averaging over square blocks of pixels
RESTART_IMAGES = 2_500  # on which restarts of k-means on pixels are tried, if the images are a sample

Assigned = Int64[np.ndarray, " n"]
Rows = Float32[np.ndarray, "n d"]


def kmeans(features: Rows, clusters: int, seed: int) -> Assigned:
    """Cluster of each row, by k-means on rows scaled to unit length."""
    rows = unit_rows(features)
    return _predict(_fit(rows, clusters, seed), rows)


def federated_kmeans(
    clients: Sequence[Float32[np.ndarray, "_ d"]], features: Rows, clusters: int, seed: int
) -> Assigned:
    """Cluster of each row, with centres from the stages of federated k-means on the clients' features."""
    method = FederatedKMeans(smallest=1)  # nothing is sent
    net = Network(Branch(nn.Identity()))  # its inputs are features already
    method.extend(net, features.shape[1], clusters)
    for stage in (Whitening(), Centroids(method=method, seed=seed)):
        replies = [
            Update(client, stage.name, 1, len(rows), None, {}, stage.extras(net, [torch.from_numpy(rows)]))
            for client, rows in enumerate(clients)
        ]
        copy_into(net, stage.combine(replies, net.state_dict()).weights)
    assignments = extract(net.online, features, lambda rows: rows).assignments
    assert assignments is not None
    return np.asarray(assignments.argmax(axis=1), dtype=np.int64)


def raw_kmeans(
    images: UInt8[np.ndarray, "n c h w"], clusters: int, seed: int, max_images: int | None = None
) -> Assigned:
    """Cluster of each image, by k-means on its pixels in [0, 1]; large images are reduced by block averages.

    If there are more than `max_images`, or they have more than MAX_PIXELS, the centres are fitted on a random
    sample of them.
    """
    size, rows = images_at_once(images, clusters), np.arange(len(images))
    sampled = max_images is not None and len(images) > max_images
    most = max(clusters, min(size, max_images)) if max_images is not None and sampled else size
    if len(images) > most:
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    model = (_fit_quickly if sampled else _fit)(_pixels(images[rows]), clusters, seed)
    blocks = [_predict(model, _pixels(images[start : start + size])) for start in range(0, len(images), size)]
    return np.concatenate(blocks)


def images_at_once(images: UInt8[np.ndarray, "n c h w"], clusters: int) -> int:
    """How many of these images have MAX_PIXELS together, after large ones are reduced."""
    return max(clusters, MAX_PIXELS // max(1, images[:1].size // _block_side(images) ** 2))


def _fit_quickly(rows: Rows, clusters: int, seed: int) -> KMeans:
    """Fit k-means with the restarts on a part of the rows, whose distances are computed once for all."""
    count = max(RESTART_IMAGES, clusters)
    some = rows[np.random.default_rng(seed).permutation(len(rows))[:count]]
    models = fit_each(some, clusters, range(seed, seed + RESTARTS))
    best = min(models, key=lambda model: float(model.inertia_))
    return fit_from(rows, best.cluster_centers_)


def _fit(rows: Rows, clusters: int, seed: int) -> KMeans:
    if len(rows) < clusters:
        raise InputError(
            f"Cannot make {clusters} clusters of {len(rows)} images: use fewer clusters or more images."
        )
    return fit(rows, clusters, seed)


def _predict(model: KMeans, rows: Rows) -> Assigned:
    return np.asarray(model.predict(rows), dtype=np.int64)


def _pixels(images: UInt8[np.ndarray, "n c h w"]) -> Rows:
    """Pixels in [0, 1] as rows; of large images, averages over square blocks of pixels."""
    side = _block_side(images)
    if side == 1:
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
    height, width = (length // side for length in images.shape[2:])
    rows = np.empty((len(images), images.shape[1] * height * width), dtype=np.float32)
    for row, image in zip(rows, images, strict=True):  # one by one: as floats, all would take too much memory
        whole = image[:, : height * side, : width * side]
        blocks = whole.reshape(len(image), height, side, width, side)
        row[:] = blocks.mean(axis=(2, 4), dtype=np.float32).ravel() / np.float32(255)
    return rows


def _block_side(images: UInt8[np.ndarray, "n c h w"]) -> int:
    """Side of the blocks of pixels that are averaged; 1: none."""
    shorter = min(images.shape[2:])
    return 1 if shorter < MIN_REDUCED_SIDE else shorter // REDUCED_SIDE
