"""Errors caused by the user's input: one sentence that names the problem and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """The user's input is wrong; the command line prints the message and exits with code 2.

    Examples
    --------
    >>> import fedmcc
    >>> try:
    ...     fedmcc.load_config({"method": {"name": "mc"}})
    ... except fedmcc.InputError as error:
    ...     print(error)
    Unknown method 'mc'. Did you mean 'mcc'?
    """


class InvalidArrayError(InputError, ValueError):
    """An array has a wrong shape, type or range; a ValueError too, as scikit-learn's users expect."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Build an error that suggests a similar name, or lists all known names if none is similar."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(known)}."
    return InputError(f"Unknown {kind} '{name}'. {hint}")
