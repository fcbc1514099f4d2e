"""One function per equation of the paper. Rows are samples; single letters are the paper's symbols.

Numbers in half precision are summed in single, so that a loss is as exact under autocast as without.
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

Scalar = Float[Tensor, ""]
Anchor = Literal["paper", "online"]

_BLOCKS: ContextVar[Literal["closed form", "autograd"] | None] = ContextVar("blocks", default=None)


def contrast(
    u: Float[Tensor, "*pairs n d"],
    v: Float[Tensor, "*pairs n d"],
    temperature: float,
    positive_in_denominator: bool = False,
    further: Float[Tensor, "*pairs n"] | None = None,
) -> Scalar:
    """The contrastive loss L(u, v; tau), anchored on u: its own row of v attracts, all other rows repel.

    As printed, the positive pair is not in the denominator (D1). It needs at least two rows. `further` is
    the logarithm of what else each row's denominator has. Of several pairs (u, v) it is the mean.
    """
    if (gradient := _BLOCKS.get()) is not None:
        by = contrast_by_closed_form if gradient == "closed form" else contrast_by_autograd
        return by(_exact(u), _exact(v), ContrastOptions(temperature, positive_in_denominator), further)
    u, v = _unit(u), _unit(v)
    anchors = u / temperature
    positive = (anchors * v).sum(dim=-1)
    itself = torch.zeros(u.shape[-2], u.shape[-2], device=u.device).fill_diagonal_(-math.inf)
    uu, uv = anchors @ u.mT + itself, anchors @ v.mT  # s(u_i, u_j) / tau, s(u_i, v_j) / tau
    repelled = uv if positive_in_denominator else uv + itself
    log_xi = torch.logaddexp(uu.logsumexp(dim=-1), repelled.logsumexp(dim=-1))
    return ((log_xi if further is None else torch.logaddexp(log_xi, further)) - positive).mean()


@contextmanager
def in_blocks(closed_form: bool) -> Iterator[None]:
    """Within it, no loss makes a matrix of n x n; the gradient is by the closed form or by autograd."""
    token = _BLOCKS.set("closed form" if closed_form else "autograd")
    try:
        yield
    finally:
        _BLOCKS.reset(token)


def nt_xent(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    positive_in_denominator: bool = True,
) -> Scalar:
    """The loss as CC and SimCLR publish it: all 2n rows are anchors, the positive in, itself out (D1)."""
    return _both((u, v), (v, u), temperature, positive_in_denominator)


class Quartet(NamedTuple):
    """One representation of two views by two networks; no gradient reaches the target's."""

    a: Float[Tensor, "n d"]
    b: Float[Tensor, "n d"]
    a_target: Float[Tensor, "n d"]
    b_target: Float[Tensor, "n d"]


def momentum_contrast(
    u: Quartet, temperature: float, anchor: Anchor = "paper", positive_in_denominator: bool = False
) -> Scalar:
    """½ (L(a online, b target) + L(a target, b online)): L_I on rows of z, L_C on columns of c.

    As printed, the second term is anchored on the target; "online" anchors it on b (D6).
    """
    second = (u.a_target, u.b) if anchor == "paper" else (u.b, u.a_target)
    return _both((u.a, u.b_target), second, temperature, positive_in_denominator)


def spectral_contrast(u: Float[Tensor, "n d"], v: Float[Tensor, "n d"], repulsion: float | Tensor) -> Scalar:
    """-2 mean u_i·v_i + repulsion mean over i ≠ j of (u_i·v_j)², of rows on the unit sphere (HaoChen 2021).

    The second term is |E u uᵀ|² without an image's own pair: what repels is a second moment, which adds up.
    """
    n, positive = len(u), (u * v).sum(dim=1)
    pairs = ((u.T @ u) * (v.T @ v)).sum()  # of all (u_i·v_j)², without a matrix of n x n
    others = (pairs - positive.square().sum()) / (n * (n - 1))
    return repulsion * others - 2 * positive.mean()


def cluster_balance(c: Float[Tensor, "n k"]) -> Scalar:
    """Entropy H(c) of the cluster sizes, largest when they are all equal."""
    sizes = _exact(c).abs().sum(dim=0)
    tiny = torch.finfo(sizes.dtype).tiny  # an empty cluster has a finite gradient, and so has no cluster
    shares = (sizes / sizes.sum().clamp_min(tiny)).clamp_min(tiny)
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy


def cosine_distance(p: Float[Tensor, "n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """BYOL's loss 2 - 2 cos(p, z), the squared distance of unit vectors; no gradient reaches z."""
    return (2 - 2 * (_unit(p) * _unit(z.detach())).sum(dim=1)).mean()


def _both(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], temperature: float, positive: bool
) -> Scalar:
    """½ (L(first) + L(second)), at once unless memory is short: small losses cost by the operation."""
    if _BLOCKS.get() is not None:
        return 0.5 * (contrast(*first, temperature, positive) + contrast(*second, temperature, positive))
    u, v = (torch.stack(rows) for rows in zip(first, second, strict=True))
    return contrast(u, v, temperature, positive)


def _unit(x: Float[Tensor, "*pairs n d"]) -> Float[Tensor, "*pairs n d"]:
    """Rows scaled to length one; a zero row stays zero, and its gradient stays finite."""
    return F.normalize(_exact(x), dim=-1, eps=MIN_NORM)


def _exact(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
