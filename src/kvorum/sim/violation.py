"""The exception that ends a run when a guarantee does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.sim.history import Record


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the simulator)
    """A guarantee, how it was broken, and the requests and members that this concerns."""

    def __init__(self, guarantee: str, text: str, *about: Record | str) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee
        self.text = text
        self.about = about

    @property
    def records(self) -> list[Record]:
        """The requests that it concerns."""
        return [each for each in self.about if not isinstance(each, str)]

    @property
    def names(self) -> list[str]:
        """The members that it concerns, or the first word of the text, which mostly names one."""
        names = [each for each in self.about if isinstance(each, str)]
        return names if self.about else self.text.split(maxsplit=1)[:1]
