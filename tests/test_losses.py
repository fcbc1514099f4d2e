"""The losses against term-by-term transcriptions of the paper's equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmcc.losses import Quartet, cluster_balance, contrast, cosine_distance, momentum_contrast, nt_xent


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assignments(n: int, k: int, seed: int = 0) -> Tensor:
    return rows(n, k, seed).softmax(dim=1)


def s(x: Tensor, y: Tensor) -> float:
    return float(x @ y / math.sqrt(float(x @ x) * float(y @ y)))


def transcribed_contrast(u: Tensor, v: Tensor, tau: float, positive: bool) -> float:
    total = 0.0
    for i in range(len(u)):
        xi = math.exp(s(u[i], v[i]) / tau) if positive else 0.0
        for j in range(len(u)):
            if j != i:
                xi += math.exp(s(u[i], u[j]) / tau) + math.exp(s(u[i], v[j]) / tau)
        total += -math.log(math.exp(s(u[i], v[i]) / tau) / xi)
    return total / len(u)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(("n", "d", "tau"), [(2, 3, 0.5), (7, 4, 1.0), (16, 128, 0.1)])
def test_contrast_is_the_printed_equation(n: int, d: int, tau: float, positive: bool) -> None:
    u, v = rows(n, d, 1), rows(n, d, 2)
    assert float(contrast(u, v, tau, positive)) == pytest.approx(
        transcribed_contrast(u, v, tau, positive), abs=1e-9
    )


def test_contrast_of_several_pairs_is_the_mean_of_theirs() -> None:
    u, v = rows(14, 4, 1).reshape(2, 7, 4), rows(14, 4, 2).reshape(2, 7, 4)
    one_by_one = [transcribed_contrast(u[pair], v[pair], 0.5, False) for pair in range(2)]
    assert float(contrast(u, v, 0.5)) == pytest.approx(sum(one_by_one) / 2, abs=1e-9)


@pytest.mark.parametrize(("anchor", "second"), [("paper", (2, 1)), ("online", (1, 2))])
def test_momentum_contrast_is_anchored_as_asked(anchor: str, second: tuple[int, int]) -> None:
    a, b, a_target, b_target = four = [rows(6, 3, seed) for seed in range(4)]
    first = transcribed_contrast(a, b_target, 0.5, False)
    other = transcribed_contrast(four[second[0]], four[second[1]], 0.5, False)
    loss = float(momentum_contrast(Quartet(a, b, a_target, b_target), 0.5, anchor))
    assert loss == pytest.approx(0.5 * (first + other), abs=1e-9)


def test_contrast_in_single_precision_is_the_printed_equation_to_1e_6() -> None:
    u, v = rows(12, 32, 1), rows(12, 32, 2)
    loss = float(contrast(u.float(), v.float(), 0.5))
    assert loss == pytest.approx(transcribed_contrast(u, v, 0.5, False), abs=1e-6)


def test_nt_xent_is_cross_entropy_over_all_other_rows() -> None:
    u, v, tau, n = rows(9, 5, 1), rows(9, 5, 2), 0.5, 9
    both = torch.cat([u, v])
    similarity = torch.nn.functional.cosine_similarity(both[:, None], both[None], dim=2) / tau
    similarity = similarity - 1e9 * torch.eye(2 * n, dtype=torch.float64)  # never itself
    partner = torch.arange(2 * n).roll(n)
    expected = torch.nn.functional.cross_entropy(similarity, partner)
    torch.testing.assert_close(nt_xent(u, v, tau), expected)


def test_cluster_balance_is_the_printed_entropy() -> None:
    c = assignments(20, 6)
    shares = [float(c[:, i].abs().sum() / c.abs().sum()) for i in range(6)]
    expected = -sum(p * math.log(p) for p in shares)
    assert float(cluster_balance(c)) == pytest.approx(expected, abs=1e-12)


def test_equal_clusters_have_the_largest_entropy_and_one_cluster_has_none() -> None:
    assert float(cluster_balance(torch.eye(5))) == pytest.approx(math.log(5))
    assert float(cluster_balance(torch.eye(5)[[0, 0, 0]])) == pytest.approx(0, abs=1e-6)


def test_cosine_distance_is_the_squared_distance_of_unit_vectors() -> None:
    p, z = rows(6, 4, 1), rows(6, 4, 2)
    unit = [x / x.norm(dim=1, keepdim=True) for x in (p, z)]
    expected = ((unit[0] - unit[1]) ** 2).sum(dim=1).mean()
    torch.testing.assert_close(cosine_distance(p, z), expected)


def test_no_gradient_reaches_the_target_of_the_cosine_distance() -> None:
    p, z = rows(6, 4, 1).requires_grad_(), rows(6, 4, 2).requires_grad_()
    cosine_distance(p, z).backward()
    assert p.grad is not None
    assert z.grad is None


@pytest.mark.parametrize("positive", [False, True])
def test_gradients_of_contrast_pass_gradcheck(positive: bool) -> None:
    u, v = rows(5, 3, 1).requires_grad_(), rows(5, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, v: contrast(u, v, 0.5, positive), (u, v))


def test_gradients_of_the_other_losses_pass_gradcheck() -> None:
    u, v = rows(5, 3, 1).requires_grad_(), rows(5, 3, 2)
    c = assignments(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(cluster_balance, (c,))
    assert torch.autograd.gradcheck(lambda u: nt_xent(u, v, 0.5), (u,))
    assert torch.autograd.gradcheck(lambda u: cosine_distance(u, v), (u,))


@settings(max_examples=25)
@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 2**31), st.booleans())
def test_contrast_ignores_the_length_of_rows_and_the_order_of_samples(
    n: int, d: int, seed: int, positive: bool
) -> None:
    u, v = rows(n, d, seed), rows(n, d, seed + 1)
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.rand(2, n, 1, generator=draw, dtype=torch.float64) * 100 + 0.1
    order = torch.randperm(n, generator=draw)
    expected = contrast(u, v, 0.5, positive)
    torch.testing.assert_close(contrast(u * lengths[0], v * lengths[1], 0.5, positive), expected)
    torch.testing.assert_close(contrast(u[order], v[order], 0.5, positive), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 4096])
def test_losses_and_gradients_stay_finite_for_small_and_large_batches(n: int, dtype: torch.dtype) -> None:
    u = rows(n, 16, 1).to(dtype).requires_grad_()
    loss = contrast(u, rows(n, 16, 2).to(dtype), 0.05) + nt_xent(u, rows(n, 16, 2).to(dtype), 0.05)
    (loss + cluster_balance(u.softmax(dim=1))).backward()
    assert loss.isfinite()
    assert u.grad is not None
    assert u.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_vectors_and_empty_clusters_have_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    logits = torch.zeros(6, 4, dtype=dtype)
    logits[:, 0], logits[:, 1:] = 0, -1000  # exp underflows: three clusters are exactly empty
    logits.requires_grad_()
    c = logits.softmax(dim=1)
    u = (rows(6, 3).to(dtype) * 0).requires_grad_()
    loss = contrast(c.T, c.T, 1.0) + contrast(u, u, 0.5) - cluster_balance(c) + cosine_distance(u, u)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None and logits.grad.isfinite().all()  # noqa: PT018
    assert u.grad is not None and u.grad.isfinite().all()  # noqa: PT018


def test_half_precision_is_summed_in_single() -> None:
    u, v = rows(64, 32, 1).bfloat16(), rows(64, 32, 2).bfloat16()
    assert contrast(u, v, 0.5).dtype == torch.float32
    torch.testing.assert_close(contrast(u, v, 0.5), contrast(u.float(), v.float(), 0.5))
