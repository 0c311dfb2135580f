"""Which known word was probably meant by a mistyped one."""

from collections.abc import Iterable

SIMILARITY_MIN = 0.75
"""Below this, a suggestion would more often mislead than help."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like this one; empty if none is."""
    # Imported late: only mistakes need it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, SIMILARITY_MIN)), "")
