"""Closed forms of dL/du, dL/dv and dH/du from the paper's memory section, corrected (D3 to D5).

The n x n similarities are computed in row blocks, twice: once for xi and once for the gradients.
Rows are samples; single letters are the paper's symbols.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Scalar = Float[Tensor, ""]
Rows = Float[Tensor, "n d"]
Column = Float[Tensor, " n"]
MIN_NORM = 1e-8  # a zero row stays zero, and its gradient stays finite
BLOCK_SIMILARITIES = 1 << 19  # similarities computed at a time, unless the options set the number of rows


@dataclass(frozen=True)
class ContrastOptions:
    """Variant of the contrastive loss, and the number of rows to compute at a time."""

    temperature: float  # tau
    positive_in_denominator: bool = False  # D1
    block: int | None = None  # rows at a time; None: as many as BLOCK_SIMILARITIES allows

    def blocks(self, n: int) -> Iterator[slice]:
        """Row slices of the blocks; the last block may be shorter."""
        step = self.block or max(1, BLOCK_SIMILARITIES // n)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))


class ContrastGradients(NamedTuple):
    """dL/du, dL/dv, and dL/d further, where `further` was given."""

    u: Rows
    v: Rows
    further: Column | None


def similarity_gradient(u: Rows, v: Rows) -> Rows:
    """s'(u, v) = v / (|u| |v|) - s(u, v) u / |u|², row by row (D3)."""
    s = (_unit(u) * _unit(v)).sum(dim=1, keepdim=True)
    return _unit(v) / _norm(u) - s * u / _norm(u).square()


def contrast_value(u: Rows, v: Rows, options: ContrastOptions, further: Column | None = None) -> Scalar:
    """L(u, v; tau) in row blocks, without an autograd graph.

    `further` is the logarithm of additional terms in each row's denominator, as in `losses.contrast`.
    """
    with torch.no_grad():
        log_xi, positive = _log_normalisers(_unit(u), _unit(v), options, further)
        return (log_xi - positive).mean()


def contrast_gradients(
    u: Rows, v: Rows, options: ContrastOptions, further: Column | None = None
) -> ContrastGradients:
    """dL/du and dL/dv of L(u, v; tau) (D4)."""
    with torch.no_grad():
        log_xi, _ = _log_normalisers(_unit(u), _unit(v), options, further)
        du, dv = _gradients(u, v, log_xi, options, (True, True))
        assert du is not None
        assert dv is not None
        return ContrastGradients(du, dv, None if further is None else _further_gradient(further, log_xi))


def cluster_contrast_gradients(
    y_a: Float[Tensor, "n k"], y_b: Float[Tensor, "n k"], options: ContrastOptions
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Gradients of the loss on columns, L(c^a, c^b; tau), with one row per image like the inputs."""
    du, dv, _ = contrast_gradients(y_a.T, y_b.T, options)
    return du.T, dv.T


def balance_gradient(c: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """dH/dc of the entropy of the cluster sizes: -(H + log p_l) / |c|₁ sign(c_l) in column l (D5)."""
    sizes = c.abs().sum(dim=0)
    p = sizes / sizes.sum()
    entropy = torch.special.entr(p).sum()
    gradient: Tensor = -(entropy + p.log()) / sizes.sum() * c.sign()
    return gradient


def contrast_by_closed_form(
    u: Rows, v: Rows, options: ContrastOptions, further: Column | None = None
) -> Scalar:
    """L(u, v; tau) as an autograd function whose gradient is the closed form."""
    loss: Tensor = _Contrast.apply(u, v, further, options)  # type: ignore[no-untyped-call]
    return loss


def contrast_by_autograd(u: Rows, v: Rows, options: ContrastOptions, further: Column | None = None) -> Scalar:
    """L(u, v; tau) with each block checkpointed: recomputed when autograd needs its gradient."""
    u, v = _unit(u), _unit(v)
    parts = [
        checkpoint(_block_loss, u, v, rows, options, further, use_reentrant=False, preserve_rng_state=False)
        for rows in options.blocks(len(u))
    ]
    return torch.stack(parts).sum() / len(u)


class _Contrast(torch.autograd.Function):
    """Stores only the rows and log xi between the two passes over the blocks, nothing of size n x n."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, further: Tensor | None, options: ContrastOptions) -> Tensor:
        log_xi, positive = _log_normalisers(_unit(u), _unit(v), options, further)
        ctx.save_for_backward(u, v, further, log_xi)
        ctx.options = options
        return (log_xi - positive).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, v, further, log_xi = ctx.saved_tensors
        gradients = _gradients(u, v, log_xi, ctx.options, ctx.needs_input_grad[:2])
        last = _further_gradient(further, log_xi) if ctx.needs_input_grad[2] else None
        return (*(None if each is None else each.mul_(grad) for each in (*gradients, last)), None)


def _log_normalisers(
    u: Rows, v: Rows, options: ContrastOptions, further: Column | None
) -> tuple[Column, Column]:
    """log xi_l and s(u_l, v_l) / tau of unit rows: the first pass over the blocks."""
    log_xi, positive = u.new_empty(len(u)), (u * v).sum(dim=1) / options.temperature
    for rows in options.blocks(len(u)):
        uu, uv = _logits(u, v, rows, options)
        log_xi[rows] = torch.logaddexp(uu.logsumexp(dim=1), uv.logsumexp(dim=1))
    return log_xi if further is None else torch.logaddexp(log_xi, further), positive


def _gradients(
    u: Rows, v: Rows, log_xi: Column, options: ContrastOptions, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """dL/du and dL/dv, each only if needed: the second pass over the blocks."""
    unit_u, unit_v = _unit(u), _unit(v)
    du = unit_v.neg() if needed[0] else None  # the positive pair's term of n tau dL/du, before projection
    dv = unit_u.neg() if needed[1] else None
    for rows in options.blocks(len(u)):
        uu, uv = _logits(unit_u, unit_v, rows, options)
        uv = uv.sub_(log_xi[rows, None]).exp_()
        if du is not None:
            weights = (uu - log_xi[rows, None]).exp_().add_(uu.sub_(log_xi).exp_())  # (1/xi_l + 1/xi_i) e^s
            du[rows] += weights @ unit_u + uv @ unit_v
        if dv is not None:
            dv.addmm_(uv.T, unit_u[rows])
    scale = 1 / (len(u) * options.temperature)
    return _project(du, unit_u, u, scale), _project(dv, unit_v, v, scale)


def _logits(u: Rows, v: Rows, rows: slice, options: ContrastOptions) -> tuple[Tensor, Tensor]:
    """s / tau of these unit rows with all rows of u and v; pairs that are not in xi are minus infinity."""
    anchors = u[rows] / options.temperature
    uu, uv = anchors @ u.T, anchors @ v.T
    uu.diagonal(rows.start).fill_(-math.inf)
    if not options.positive_in_denominator:
        uv.diagonal(rows.start).fill_(-math.inf)
    return uu, uv


def _project(weighted: Rows | None, unit: Rows, raw: Rows, scale: float) -> Tensor | None:
    """Turn weighted sums of v into those of s'(u, v) by removing the component along u (D3)."""
    if weighted is None:
        return None
    along = (weighted * unit).sum(dim=1, keepdim=True)
    return weighted.addcmul_(along, unit, value=-1).mul_(scale / _norm(raw))


def _further_gradient(further: Column, log_xi: Column) -> Column:
    return (further - log_xi).exp() / len(log_xi)


def _block_loss(u: Rows, v: Rows, rows: slice, options: ContrastOptions, further: Column | None) -> Scalar:
    """Sum of the losses of these rows, differentiable by autograd."""
    uu, uv = u[rows] @ u.T / options.temperature, u[rows] @ v.T / options.temperature
    positive = uv.diagonal(rows.start)
    on_diagonal = torch.zeros_like(uu, dtype=torch.bool)
    on_diagonal.diagonal(rows.start).fill_(True)
    uu = uu.masked_fill(on_diagonal, -math.inf)
    if not options.positive_in_denominator:
        uv = uv.masked_fill(on_diagonal, -math.inf)
    log_xi = torch.logaddexp(uu.logsumexp(dim=1), uv.logsumexp(dim=1))
    if further is not None:
        log_xi = torch.logaddexp(log_xi, further[rows])
    return (log_xi - positive).sum()


def _unit(x: Rows) -> Rows:
    return F.normalize(x, dim=1, eps=MIN_NORM)


def _norm(x: Rows) -> Float[Tensor, "n 1"]:
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return norm.clamp_min(MIN_NORM)
