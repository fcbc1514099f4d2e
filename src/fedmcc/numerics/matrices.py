"""Properties of matrices that clients send."""

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
