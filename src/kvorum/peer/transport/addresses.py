"""The addresses of a peer: one is used until it fails, then the next."""

from collections.abc import Sequence


class Addresses:
    """At least one address, `scheme://host:port`. All channels to a peer share them."""

    __slots__ = ("_place", "_urls", "current")

    def __init__(self, urls: Sequence[str]) -> None:
        self.use(urls)

    def use(self, urls: Sequence[str]) -> None:
        """Replace the addresses."""
        assert urls, "a peer has an address"
        self._urls = tuple(urls)
        self._place = 0
        self.current = self._urls[0]

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return self._urls

    def failed(self, url: str) -> None:
        """Switch to the next address, unless that has happened already."""
        if url == self.current:
            self._place = (self._place + 1) % len(self._urls)
            self.current = self._urls[self._place]


def problem_at(url: str, problem: str) -> str:
    """Return what went wrong with an address; the dialer may have named it already."""
    return problem if url in problem else f"{url}: {problem}"
