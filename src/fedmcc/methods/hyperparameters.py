"""Checks of hyperparameters, for the options of methods and clusterings."""

import math
from typing import Any

from fedmcc.errors import InputError


def require_positive(options: object, *names: str, section: str = "method") -> None:
    """Raise unless the named hyperparameters are positive and finite, or None."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{section}.{name} is {value}: give a number above 0.")


def require_fraction(options: object, name: str, section: str = "method") -> None:
    """Raise unless the hyperparameter is between 0 and 1."""
    value = getattr(options, name)
    if not 0 <= value <= 1:
        raise InputError(f"{section}.{name} is {value}: give a number between 0 and 1.")


def require_view_pairs(options: Any, section: str = "method") -> None:
    """Raise if `views_per_image` is negative or 1, which gives no pair of views."""
    if options.views_per_image < 0 or options.views_per_image == 1:
        value = options.views_per_image
        raise InputError(
            f"{section}.views_per_image is {value}: give 2 or more, or 0 for new views in every step."
        )
