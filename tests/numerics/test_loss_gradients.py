import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.losses import cluster_balance, contrast, in_blocks, spectral_contrast
from fedmcc.numerics.loss_gradients import (
    ContrastOptions,
    balance_gradient,
    cluster_contrast_gradients,
    contrast_by_autograd,
    contrast_by_closed_form,
    contrast_gradients,
    contrast_value,
    similarity_gradient,
)
from fedmcc.training.memory import peak_bytes

TAU = 0.4
over_forms = pytest.mark.parametrize("positive", [False, True])
over_blocks = pytest.mark.parametrize("block", [1, 3, 4, 6, 12, 100])  # of 12 rows


def _rows(n=7, d=5, count=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return list(2 * torch.randn(count, n, d, dtype=torch.float64, generator=draw))


def _s(x, y):
    return float(x @ y / (x.norm() * y.norm()))


def _slow(u, v, positive):
    """L(u, v; tau), a term at a time."""
    total = 0.0
    for i in range(len(u)):
        xi = sum(math.exp(_s(u[i], w[j]) / TAU) for w in (u, v) for j in range(len(u)) if j != i)
        xi += math.exp(_s(u[i], v[i]) / TAU) if positive else 0.0
        total += math.log(xi) - _s(u[i], v[i]) / TAU
    return total / len(u)


def _differences(function, x, step=1e-5):
    """The gradient of a function at x by central differences."""
    gradient = torch.zeros_like(x)
    for place in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.clone()
            moved.view(-1)[place] += sign * step
            ends.append(float(function(moved)))
        gradient.view(-1)[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def _autograd(loss, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(loss(*leaves), leaves)


def _close(actual, expected, tolerance=1e-8):
    assert (actual - expected).norm() < tolerance * expected.norm()


@over_forms
def test_the_closed_forms_of_the_contrast_are_finite_differences_of_it(positive):
    u, v = _rows()
    gradients = contrast_gradients(u, v, ContrastOptions(TAU, positive))
    _close(gradients.u, _differences(lambda x: _slow(x, v, positive), u))
    _close(gradients.v, _differences(lambda x: _slow(u, x, positive), v))


@over_forms
def test_the_closed_forms_of_the_contrast_agree_with_autograd(positive):
    u, v = _rows()
    gradients = contrast_gradients(u, v, ContrastOptions(TAU, positive))
    for actual, expected in zip(
        gradients[:2], _autograd(lambda *x: contrast(*x, TAU, positive), u, v), strict=True
    ):
        _close(actual, expected)


@over_forms
def test_the_closed_forms_for_columns_agree_with_autograd_and_differences(positive):
    y_a, y_b = (rows.softmax(dim=1) for rows in _rows(6, 4))
    gradients = cluster_contrast_gradients(y_a, y_b, ContrastOptions(TAU, positive))
    expected = _autograd(lambda a, b: contrast(a.T, b.T, TAU, positive), y_a, y_b)
    for actual, by_autograd in zip(gradients, expected, strict=True):
        _close(actual, by_autograd)
    _close(gradients[0], _differences(lambda y: _slow(y.T, y_b.T, positive), y_a))
    _close(gradients[1], _differences(lambda y: _slow(y_a.T, y.T, positive), y_b))


def test_the_closed_form_of_the_entropy_agrees_with_autograd_and_differences():
    (y,) = (rows.softmax(dim=1) for rows in _rows(6, 4, count=1))
    gradient = balance_gradient(y)
    _close(gradient, _autograd(cluster_balance, y)[0])
    _close(gradient, _differences(cluster_balance, y))


def test_the_closed_form_of_the_entropy_handles_negative_values():
    (c,) = _rows(6, 4, count=1)
    assert (c < 0).any()
    _close(balance_gradient(c), _differences(cluster_balance, c))


def test_the_slope_of_a_similarity_agrees_with_differences():
    u, v = _rows(3)
    _close(similarity_gradient(u, v), _differences(lambda x: F.cosine_similarity(x, v).sum(), u))


def _printed_similarity_gradient(u, v):
    """s'(u, v) as the paper prints it."""
    return _s(u, v) / u.norm() ** 2 * u + v / (u.norm() * v.norm())


def _printed_contrast_gradient(u, v, slope):
    """dL/du as the paper prints it: the last term lacks its 1 / xi."""
    n = len(u)
    e = [[[math.exp(_s(u[i], w[j]) / TAU) for j in range(n)] for i in range(n)] for w in (u, v)]
    xi = [sum(e[0][i][j] + e[1][i][j] for j in range(n) if j != i) for i in range(n)]
    rows = []
    for k in range(n):
        row = -slope(u[k], v[k])
        for i in (i for i in range(n) if i != k):
            row = row + (1 / xi[k] + 1 / xi[i]) * e[0][k][i] * slope(u[k], u[i])
            row = row + e[1][k][i] * slope(u[k], v[i])
        rows.append(row / (n * TAU))
    return torch.stack(rows)


def test_the_printed_slope_of_a_similarity_is_not_its_derivative():
    """D3: the first term has the wrong sign."""
    u, v = (rows[0] for rows in _rows(1))
    truth = _differences(lambda x: F.cosine_similarity(x, v, dim=0), u)
    assert (_printed_similarity_gradient(u, v) - truth).norm() > 0.1 * truth.norm()
    _close(_printed_similarity_gradient(u, v) - 2 * _s(u, v) * u / u.norm() ** 2, truth)


def test_the_printed_gradient_of_the_contrast_is_not_its_derivative_even_with_the_right_slope():
    """D3 and D4."""
    u, v = _rows(5)
    truth = _differences(lambda x: _slow(x, v, False), u)
    right = lambda x, y: similarity_gradient(x[None], y[None])[0]  # noqa: E731
    for slope in (_printed_similarity_gradient, right):
        printed = _printed_contrast_gradient(u, v, slope)
        assert (printed - truth).norm() > truth.norm()  # off by more than a hundred per cent


@over_forms
@over_blocks
def test_blocks_give_the_loss_and_the_gradients_of_the_whole(positive, block):
    u, v = _rows(12)
    dense, blocks = ContrastOptions(TAU, positive, 12), ContrastOptions(TAU, positive, block)
    _close(contrast_value(u, v, blocks), contrast(u, v, TAU, positive), 1e-14)
    for actual, expected in zip(
        contrast_gradients(u, v, blocks)[:2], contrast_gradients(u, v, dense)[:2], strict=True
    ):
        _close(actual, expected, 1e-13)


@over_forms
@over_blocks
@pytest.mark.parametrize("by", [contrast_by_closed_form, contrast_by_autograd])
def test_both_blockwise_losses_agree_with_the_dense_loss_with_further_negatives(by, positive, block):
    u, v = _rows(12)
    further = torch.linspace(-2, 3, 12, dtype=torch.float64)
    inputs, options = (u, v, further), ContrastOptions(TAU, positive, block)
    dense = lambda a, b, f: contrast(a, b, TAU, positive, f)  # noqa: E731
    _close(by(u, v, options, further), dense(*inputs), 1e-14)
    gradients = _autograd(lambda a, b, f: 3 * by(a, b, options, f), *inputs)
    for actual, expected in zip(gradients, _autograd(dense, *inputs), strict=True):
        _close(actual, 3 * expected, 1e-13)


def test_an_input_that_needs_no_gradient_gets_none():
    u, v = _rows()
    (only,) = torch.autograd.grad(contrast_by_closed_form(u, v.requires_grad_(), ContrastOptions(TAU)), v)
    _close(only, contrast_gradients(u, v.detach(), ContrastOptions(TAU)).v, 1e-14)


@pytest.mark.parametrize("temperature", [0.005, 0.07])
def test_low_temperatures_and_zero_rows_stay_finite_in_single_precision(temperature):
    u, v = (rows.float() for rows in _rows(8))
    u[0] = 0
    options = ContrastOptions(temperature)
    assert torch.isfinite(contrast_value(u, v, options))
    assert all(torch.isfinite(gradient).all() for gradient in contrast_gradients(u, v, options)[:2])


@pytest.mark.parametrize("closed_form", [True, False])
def test_losses_in_blocks_are_the_same_losses(closed_form):
    u, v = (F.normalize(rows, dim=1) for rows in _rows(12))
    for loss in (lambda a, b: contrast(a, b, TAU), lambda a, b: spectral_contrast(a, b, 2.0)):
        expected = loss(u, v), *_autograd(loss, u, v)
        with in_blocks(closed_form):
            in_row_blocks = loss(u, v), *_autograd(loss, u, v)
        for actual, dense in zip(in_row_blocks, expected, strict=True):
            _close(actual, dense, 1e-12)


@pytest.mark.parametrize("closed_form", [True, False])
def test_losses_in_blocks_make_no_matrix_of_all_pairs(closed_form):
    n = 3000
    u, v = (rows.float() for rows in _rows(n, 8))
    matrix = 4 * n * n
    cpu = torch.device("cpu")
    assert peak_bytes(lambda: _autograd(lambda a, b: contrast(a, b, TAU), u, v), cpu) > matrix
    with in_blocks(closed_form):
        assert peak_bytes(lambda: _autograd(lambda a, b: contrast(a, b, TAU), u, v), cpu) < matrix / 2
    # The spectral loss makes no such matrix, with or without blocks.
    assert peak_bytes(lambda: _autograd(lambda a, b: spectral_contrast(a, b, 2.0), u, v), cpu) < matrix / 2
