"""Work that goes on in later turns: a generator that yields where the turn may end.

What makes a result returns it, or a generator that returns it. Short work never pays for slices;
where long work is suspended may not change its result.
"""

from collections.abc import Generator

from kvorum.member.outbox import Result

Slices = Generator[None, None, Result]
Sliced = Result | Slices
