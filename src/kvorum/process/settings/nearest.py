"""Suggestions for mistyped words."""

from collections.abc import Iterable

SIMILARITY_MIN = 0.75
"""Similarity below which a suggestion would more often mislead than help."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word most similar to this one; empty if none is similar enough."""
    # Imported late, because only mistakes need difflib.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, SIMILARITY_MIN)), "")
