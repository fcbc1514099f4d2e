"""Matrices that clients send: their properties, and symmetric ones as half of their numbers."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def is_positive_semidefinite(matrix: Float[Tensor, "n n"], tolerance: float) -> bool:
    """Whether a matrix is symmetric and has no eigenvalue below zero, up to the tolerance.

    This factorises the matrix once, which takes a fraction of the time of computing its eigenvalues.
    """
    matrix = matrix.double()
    if not (matrix - matrix.T).abs().max() <= tolerance:  # also true for nan
        return False
    shifted = matrix + tolerance * torch.eye(len(matrix), dtype=matrix.dtype)
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def nearest_positive_semidefinite(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The symmetric matrix without negative eigenvalues that is nearest to the symmetric part of a matrix."""
    variance, directions = torch.linalg.eigh((matrix + matrix.T) / 2)
    nearest: Tensor = (directions * variance.clamp_min(0)) @ directions.T
    return nearest


def upper_triangle(matrix: Float[Tensor, "n n"]) -> Float[Tensor, " m"]:
    """The numbers on and above the diagonal, row by row."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix))
    return matrix[rows, columns]


def from_upper_triangle(values: Float[Tensor, " m"]) -> Float[Tensor, "n n"]:
    """The symmetric matrix that has these numbers on and above its diagonal."""
    size = (math.isqrt(8 * len(values) + 1) - 1) // 2
    matrix = values.new_zeros(size, size)
    rows, columns = torch.triu_indices(size, size)
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix
