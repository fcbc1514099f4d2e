"""The closed forms of the paper's memory section, corrected (D3 to D5): dL/du, dL/dv and dH/du.

They go through the n x n similarities in row blocks, once for xi and once for the gradients.
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
BLOCK_SIMILARITIES = 1 << 19  # similarities at a time, unless a form says how many rows


@dataclass(frozen=True)
class ContrastOptions:
    """Which contrastive loss, and how many of its rows at a time."""

    temperature: float  # tau
    positive_in_denominator: bool = False  # D1
    block: int | None = None  # rows at a time; None: about half a million similarities

    def blocks(self, n: int) -> Iterator[slice]:
        """The rows of each block; the last may be shorter."""
        step = self.block or max(1, BLOCK_SIMILARITIES // n)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))


class ContrastGradients(NamedTuple):
    """dL/du, dL/dv, and dL/d log of what else is in each row's denominator."""

    u: Rows
    v: Rows
    further: Column | None


def similarity_gradient(u: Rows, v: Rows) -> Rows:
    """s'(u, v) = v / (|u| |v|) - s(u, v) u / |u|², row by row (D3)."""
    s = (_unit(u) * _unit(v)).sum(dim=1, keepdim=True)
    return _unit(v) / _norm(u) - s * u / _norm(u).square()


def contrast_value(u: Rows, v: Rows, form: ContrastOptions, further: Column | None = None) -> Scalar:
    """L(u, v; tau) in row blocks, without a graph."""
    with torch.no_grad():
        log_xi, positive = _log_normalisers(_unit(u), _unit(v), form, further)
        return (log_xi - positive).mean()


def contrast_gradients(
    u: Rows, v: Rows, form: ContrastOptions, further: Column | None = None
) -> ContrastGradients:
    """dL/du and dL/dv of L(u, v; tau) (D4)."""
    with torch.no_grad():
        log_xi, _ = _log_normalisers(_unit(u), _unit(v), form, further)
        du, dv = _slopes(u, v, log_xi, form, (True, True))
        assert du is not None
        assert dv is not None
        return ContrastGradients(du, dv, None if further is None else _further_slope(further, log_xi))


def cluster_contrast_gradients(
    y_a: Float[Tensor, "n k"], y_b: Float[Tensor, "n k"], form: ContrastOptions
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """The same for the loss on columns, L(c^a, c^b; tau): a row per image again."""
    du, dv, _ = contrast_gradients(y_a.T, y_b.T, form)
    return du.T, dv.T


def balance_gradient(c: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """dH/dc of the entropy of cluster sizes: -(H + log p_l) / |c|₁ sign(c_l) in column l (D5)."""
    sizes = c.abs().sum(dim=0)
    p = sizes / sizes.sum()
    entropy = torch.special.entr(p).sum()
    slope: Tensor = -(entropy + p.log()) / sizes.sum() * c.sign()
    return slope


def contrast_by_closed_form(u: Rows, v: Rows, form: ContrastOptions, further: Column | None = None) -> Scalar:
    """L(u, v; tau) for autograd, its gradient by the closed form."""
    loss: Tensor = _Contrast.apply(u, v, further, form)  # type: ignore[no-untyped-call]
    return loss


def contrast_by_autograd(u: Rows, v: Rows, form: ContrastOptions, further: Column | None = None) -> Scalar:
    """L(u, v; tau) for autograd, each block computed anew when its gradient is wanted."""
    u, v = _unit(u), _unit(v)
    parts = [
        checkpoint(_block_loss, u, v, rows, form, further, use_reentrant=False, preserve_rng_state=False)
        for rows in form.blocks(len(u))
    ]
    return torch.stack(parts).sum() / len(u)


class _Contrast(torch.autograd.Function):
    """Keeps the rows and log xi between the two streaming passes, nothing of size n x n."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, further: Tensor | None, form: ContrastOptions) -> Tensor:
        log_xi, positive = _log_normalisers(_unit(u), _unit(v), form, further)
        ctx.save_for_backward(u, v, further, log_xi)
        ctx.form = form
        return (log_xi - positive).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, v, further, log_xi = ctx.saved_tensors
        slopes = _slopes(u, v, log_xi, ctx.form, ctx.needs_input_grad[:2])
        last = _further_slope(further, log_xi) if ctx.needs_input_grad[2] else None
        return (*(None if slope is None else slope.mul_(grad) for slope in (*slopes, last)), None)


def _log_normalisers(
    u: Rows, v: Rows, form: ContrastOptions, further: Column | None
) -> tuple[Column, Column]:
    """log xi_l and s(u_l, v_l) / tau of unit rows: the first streaming pass."""
    log_xi, positive = u.new_empty(len(u)), (u * v).sum(dim=1) / form.temperature
    for rows in form.blocks(len(u)):
        uu, uv = _logits(u, v, rows, form)
        log_xi[rows] = torch.logaddexp(uu.logsumexp(dim=1), uv.logsumexp(dim=1))
    return log_xi if further is None else torch.logaddexp(log_xi, further), positive


def _slopes(
    u: Rows, v: Rows, log_xi: Column, form: ContrastOptions, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The second streaming pass: dL/du and dL/dv, as far as they are wanted."""
    unit_u, unit_v = _unit(u), _unit(v)
    du = unit_v.neg() if wanted[0] else None  # the positive pair's part of n tau dL/du, before s'
    dv = unit_u.neg() if wanted[1] else None
    for rows in form.blocks(len(u)):
        uu, uv = _logits(unit_u, unit_v, rows, form)
        uv = uv.sub_(log_xi[rows, None]).exp_()
        if du is not None:
            both = (uu - log_xi[rows, None]).exp_().add_(uu.sub_(log_xi).exp_())  # (1/xi_l + 1/xi_i) e^s
            du[rows] += both @ unit_u + uv @ unit_v
        if dv is not None:
            dv.addmm_(uv.T, unit_u[rows])
    scale = 1 / (len(u) * form.temperature)
    return _along_sphere(du, unit_u, u, scale), _along_sphere(dv, unit_v, v, scale)


def _logits(u: Rows, v: Rows, rows: slice, form: ContrastOptions) -> tuple[Tensor, Tensor]:
    """s / tau of these unit rows with all of u and v; what is not in xi is minus infinity."""
    anchors = u[rows] / form.temperature
    uu, uv = anchors @ u.T, anchors @ v.T
    uu.diagonal(rows.start).fill_(-math.inf)
    if not form.positive_in_denominator:
        uv.diagonal(rows.start).fill_(-math.inf)
    return uu, uv


def _along_sphere(slope: Rows | None, unit: Rows, raw: Rows, scale: float) -> Tensor | None:
    """Weighted sums of v become those of s'(u, v), which has no part along u (D3)."""
    if slope is None:
        return None
    along = (slope * unit).sum(dim=1, keepdim=True)
    return slope.addcmul_(along, unit, value=-1).mul_(scale / _norm(raw))


def _further_slope(further: Column, log_xi: Column) -> Column:
    return (further - log_xi).exp() / len(log_xi)


def _block_loss(u: Rows, v: Rows, rows: slice, form: ContrastOptions, further: Column | None) -> Scalar:
    """The sum of these rows' losses, for autograd."""
    uu, uv = u[rows] @ u.T / form.temperature, u[rows] @ v.T / form.temperature
    positive = uv.diagonal(rows.start)
    itself = torch.zeros_like(uu, dtype=torch.bool)
    itself.diagonal(rows.start).fill_(True)
    uu = uu.masked_fill(itself, -math.inf)
    if not form.positive_in_denominator:
        uv = uv.masked_fill(itself, -math.inf)
    log_xi = torch.logaddexp(uu.logsumexp(dim=1), uv.logsumexp(dim=1))
    if further is not None:
        log_xi = torch.logaddexp(log_xi, further[rows])
    return (log_xi - positive).sum()


def _unit(x: Rows) -> Rows:
    return F.normalize(x, dim=1, eps=MIN_NORM)


def _norm(x: Rows) -> Float[Tensor, "n 1"]:
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return norm.clamp_min(MIN_NORM)
