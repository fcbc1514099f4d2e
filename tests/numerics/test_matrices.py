"""Symmetric matrices sent as the half of their numbers."""

import pytest
import torch

from fedmcc.numerics.matrices import from_upper_triangle, nearest_positive_semidefinite, upper_triangle


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_symmetric_matrix_is_restored_from_its_upper_triangle(size):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    matrix = matrix + matrix.T
    triangle = upper_triangle(matrix)
    assert len(triangle) == sum(range(size + 1))
    assert from_upper_triangle(triangle).equal(matrix)


def test_the_nearest_positive_semidefinite_matrix_has_the_positive_eigenvalues_only():
    basis, _ = torch.linalg.qr(
        torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    values = torch.tensor([3.0, 1.0, 0.0, -0.5, -2.0], dtype=torch.float64)
    antisymmetric = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    matrix = basis @ values.diag() @ basis.T
    matrix[:2, :2] += antisymmetric  # has no part in the result
    expected = basis @ values.clamp_min(0).diag() @ basis.T
    torch.testing.assert_close(nearest_positive_semidefinite(matrix), expected)
