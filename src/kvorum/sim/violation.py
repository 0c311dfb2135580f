"""What a run ends with when a guarantee does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.sim.history import Record


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the simulator)
    """A guarantee, how it was broken, and what that is about: requests, and names of members."""

    def __init__(self, guarantee: str, text: str, *about: Record | str) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee
        self.text = text
        self.about = about

    @property
    def records(self) -> list[Record]:
        """The requests that it is about."""
        return [each for each in self.about if not isinstance(each, str)]

    @property
    def names(self) -> list[str]:
        """Who it is about, or otherwise the first word of the text, which mostly names them."""
        names = [each for each in self.about if isinstance(each, str)]
        return names if self.about else self.text.split(maxsplit=1)[:1]
