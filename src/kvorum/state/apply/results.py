"""Results that may take several turns: generators that yield where the turn may end.

A function with short work returns its result; one with long work returns a generator that returns
it, so short work never pays for slices. The points of suspension must not change the result.
"""

from collections.abc import Generator

from kvorum.api.errors import Status

Result = bytes | Status

Slices = Generator[None, None, Result]
Sliced = Result | Slices
