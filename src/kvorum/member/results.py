"""Work that goes on in later turns: a generator that yields where the turn may end.

Whoever makes a result returns it, or a generator whose value it is. Short work never pays for
slices; for long work, where it is suspended may not change the result.
"""

from collections.abc import Generator

from kvorum.member.outbox import Result

Slices = Generator[None, None, Result]
Sliced = Result | Slices
