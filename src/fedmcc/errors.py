"""What goes wrong by a person's input, said in one sentence that names the thing and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """The user's input was wrong: the CLI prints the sentence and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """`Unknown method 'mc'. Did you mean 'mcc'?`, or the list when nothing is close."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(known)}."
    return InputError(f"Unknown {kind} '{name}'. {hint}")
