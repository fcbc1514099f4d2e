"""One function per equation of the paper. Rows are samples; single letters are the paper's symbols.

Inputs in half precision are converted to single precision first, so that autocast does not lower the
accuracy of a loss.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.numerics.loss_gradients import (
    MIN_NORM,
    ContrastOptions,
    contrast_by_autograd,
    contrast_by_closed_form,
)

__all__ = [
    "Quartet",
    "cluster_balance",
    "contrast",
    "cosine_distance",
    "in_blocks",
    "momentum_contrast",
    "nt_xent",
    "spectral_contrast",
]

Scalar = Float[Tensor, ""]
Anchor = Literal["paper", "online"]

_GRADIENT_IN_BLOCKS: ContextVar[Literal["closed form", "autograd"] | None] = ContextVar(
    "blocks", default=None
)


def contrast(
    u: Float[Tensor, "*pairs n d"],
    v: Float[Tensor, "*pairs n d"],
    temperature: float,
    positive_in_denominator: bool = False,
    further: Float[Tensor, "*pairs n"] | None = None,
) -> Scalar:
    """Contrastive loss L(u, v; tau) with anchors u: (u_i, v_i) is the positive pair, the rest are negatives.

    Parameters
    ----------
    u, v
        Representations of two views, one row per sample, at least two rows; several pairs give the mean loss.
    temperature
        tau; cosine similarities are divided by it.
    positive_in_denominator
        Whether the positive pair is also in the denominator; as printed, it is not (D1).
    further
        Logarithm of additional terms in the denominator of each row.

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import contrast
    >>> u = torch.eye(2)
    >>> round(contrast(u, u, temperature=1.0).item(), 3)  # log(2) - 1
    -0.307
    """
    if (gradient := _GRADIENT_IN_BLOCKS.get()) is not None:
        blockwise = contrast_by_closed_form if gradient == "closed form" else contrast_by_autograd
        options = ContrastOptions(temperature, positive_in_denominator)
        return blockwise(_single_precision(u), _single_precision(v), options, further)
    u, v = _unit(u), _unit(v)
    anchors = u / temperature
    positive = (anchors * v).sum(dim=-1)
    no_diagonal = torch.zeros(u.shape[-2], u.shape[-2], device=u.device).fill_diagonal_(-math.inf)
    uu, uv = anchors @ u.mT + no_diagonal, anchors @ v.mT  # s(u_i, u_j) / tau, s(u_i, v_j) / tau
    denominator_uv = uv if positive_in_denominator else uv + no_diagonal
    log_xi = torch.logaddexp(uu.logsumexp(dim=-1), denominator_uv.logsumexp(dim=-1))
    return ((log_xi if further is None else torch.logaddexp(log_xi, further)) - positive).mean()


@contextmanager
def in_blocks(closed_form: bool) -> Iterator[None]:
    """Compute losses in row blocks, without any n x n matrix, inside a `with` statement.

    Parameters
    ----------
    closed_form
        Whether gradients are computed by the closed form, else by autograd.

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import contrast, in_blocks
    >>> u = torch.eye(2)
    >>> with in_blocks(closed_form=True):
    ...     round(contrast(u, u, temperature=1.0).item(), 3)
    -0.307
    """
    token = _GRADIENT_IN_BLOCKS.set("closed form" if closed_form else "autograd")
    try:
        yield
    finally:
        _GRADIENT_IN_BLOCKS.reset(token)


def nt_xent(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    positive_in_denominator: bool = True,
) -> Scalar:
    """NT-Xent as published for CC and SimCLR: 2n anchors, and the positive in the denominator (D1).

    Parameters
    ----------
    u, v
        Representations of two views, one row per sample.
    temperature
        tau; cosine similarities are divided by it.
    positive_in_denominator
        Whether the positive pair is also in the denominator.

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import nt_xent
    >>> u = torch.eye(2)
    >>> round(nt_xent(u, u, temperature=1.0).item(), 3)  # log(2 + e) - 1
    0.551
    """
    return _mean_contrast((u, v), (v, u), temperature, positive_in_denominator)


class Quartet(NamedTuple):
    """Outputs of the online and the target network for two views; those of the target have no gradient.

    Attributes
    ----------
    a, b
        Outputs of the online network for the views a and b, one row per sample.
    a_target, b_target
        Outputs of the target network.

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import Quartet
    >>> online, target = torch.eye(2), torch.eye(2)
    >>> Quartet(online, online, target, target).b_target.shape
    torch.Size([2, 2])
    """

    a: Float[Tensor, "n d"]
    b: Float[Tensor, "n d"]
    a_target: Float[Tensor, "n d"]
    b_target: Float[Tensor, "n d"]


def momentum_contrast(
    u: Quartet, temperature: float, anchor: Anchor = "paper", positive_in_denominator: bool = False
) -> Scalar:
    """½ (L(a online, b target) + L(a target, b online)): L_I on rows of z, L_C on columns of c.

    Parameters
    ----------
    u
        Both views through both networks.
    temperature
        tau; cosine similarities are divided by it.
    anchor
        Anchor of the second term: `"paper"` is the target's a, as printed; `"online"` is the online b (D6).
    positive_in_denominator
        Whether the positive pair is also in the denominator; as printed, it is not (D1).

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import Quartet, momentum_contrast
    >>> z = torch.eye(2)
    >>> round(momentum_contrast(Quartet(z, z, z, z), temperature=1.0).item(), 3)  # log(2) - 1
    -0.307
    """
    second = (u.a_target, u.b) if anchor == "paper" else (u.b, u.a_target)
    return _mean_contrast((u.a, u.b_target), second, temperature, positive_in_denominator)


def spectral_contrast(u: Float[Tensor, "n d"], v: Float[Tensor, "n d"], repulsion: float | Tensor) -> Scalar:
    """-2 mean u_i·v_i + repulsion · mean over i ≠ j of (u_i·v_j)², for unit rows (HaoChen et al. 2021).

    The second term is |E u uᵀ|² without the positive pairs: the repulsion depends on a second moment, and
    second moments of several clients add up.

    Parameters
    ----------
    u, v
        Representations of two views, rows of length 1.
    repulsion
        Weight of the second term.

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import spectral_contrast
    >>> u = torch.eye(2)
    >>> spectral_contrast(u, u, repulsion=1.0).item()
    -2.0
    """
    n, positive = len(u), (u * v).sum(dim=1)
    pairs = ((u.T @ u) * (v.T @ v)).sum()  # sum of all (u_i·v_j)², without an n x n matrix
    others = (pairs - positive.square().sum()) / (n * (n - 1))
    return repulsion * others - 2 * positive.mean()


def cluster_balance(c: Float[Tensor, "n k"]) -> Scalar:
    """Entropy H(c) of the cluster sizes, largest when they are all equal.

    Parameters
    ----------
    c
        Soft assignments, one row per sample and one column per cluster.

    Returns
    -------
    Scalar
        The entropy, from 0 (one cluster) to log k (equal sizes).

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import cluster_balance
    >>> round(cluster_balance(torch.eye(2)).item(), 3)  # log(2)
    0.693
    """
    sizes = _single_precision(c).abs().sum(dim=0)
    tiny = torch.finfo(sizes.dtype).tiny  # gradients stay finite when clusters are empty
    shares = (sizes / sizes.sum().clamp_min(tiny)).clamp_min(tiny)
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy


def cosine_distance(p: Float[Tensor, "n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """BYOL's loss 2 - 2 cos(p, z), the squared distance between unit vectors, with no gradient for z.

    Parameters
    ----------
    p
        Predictions, one row per sample.
    z
        Targets, one row per sample.

    Returns
    -------
    Scalar
        The mean over all samples, from 0 (same direction) to 4 (opposite).

    Examples
    --------
    >>> import torch
    >>> from fedmcc.losses import cosine_distance
    >>> p = torch.eye(2)
    >>> cosine_distance(p, p).item(), cosine_distance(p, -p).item()
    (0.0, 4.0)
    """
    return (2 - 2 * (_unit(p) * _unit(z.detach())).sum(dim=1)).mean()


def _mean_contrast(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], temperature: float, positive: bool
) -> Scalar:
    """½ (L(first) + L(second)), batched into one computation unless losses are computed in blocks."""
    if _GRADIENT_IN_BLOCKS.get() is not None:
        return 0.5 * (contrast(*first, temperature, positive) + contrast(*second, temperature, positive))
    u, v = (torch.stack(rows) for rows in zip(first, second, strict=True))
    return contrast(u, v, temperature, positive)


def _unit(x: Float[Tensor, "*pairs n d"]) -> Float[Tensor, "*pairs n d"]:
    """Rows scaled to length 1; a zero row stays zero, with a finite gradient."""
    return F.normalize(_single_precision(x), dim=-1, eps=MIN_NORM)


def _single_precision(x: Tensor) -> Tensor:
    """The tensor, with half precision converted to single precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
