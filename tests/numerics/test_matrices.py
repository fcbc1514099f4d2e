"""Symmetric matrices sent as the half of their numbers."""

import pytest
import torch

from fedmcc.numerics.matrices import from_upper_triangle, upper_triangle


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_symmetric_matrix_is_restored_from_its_upper_triangle(size):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    matrix = matrix + matrix.T
    triangle = upper_triangle(matrix)
    assert len(triangle) == sum(range(size + 1))
    assert from_upper_triangle(triangle).equal(matrix)
