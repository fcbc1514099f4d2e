"""Errors caused by the user's input: one sentence that names the problem and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_TYPO = 2  # letters more or less than in a similar name that is suggested: `noniid` does not mean `iid`
CLEARLY_SIMILAR = 0.7  # by difflib's measure, whatever the lengths: `simclr` means `fedsimclr`


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


def unknown(kind: str, name: str, known: Iterable[str], remedy: str = "") -> InputError:
    """Build an error that suggests a similar name, or lists all known names and a remedy if none is."""
    known = sorted(known)
    alike = [each for each in known if abs(len(each) - len(name)) <= MAX_TYPO]
    close = get_close_matches(name, alike, n=1) or get_close_matches(name, known, 1, CLEARLY_SIMILAR)
    listed = f"Known: {', '.join(known)}.{remedy}" if known else "There are none here: leave it out."
    hint = f"Did you mean '{close[0]}'?" if close else listed
    return InputError(f"Unknown {kind} '{name}'. {hint}")
