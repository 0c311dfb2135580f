"""The addresses of a peer: all channels use one until it fails, then the next."""

from collections.abc import Sequence


class Addresses:
    """One or more addresses, `scheme://host:port`, which all channels to a peer share."""

    __slots__ = ("_current_index", "_urls", "current")

    def __init__(self, urls: Sequence[str]) -> None:
        self.use(urls)

    def use(self, urls: Sequence[str]) -> None:
        """Replace the addresses."""
        assert urls, "a peer has an address"
        self._urls = tuple(urls)
        self._current_index = 0
        self.current = self._urls[0]

    @property
    def all(self) -> tuple[str, ...]:
        """All addresses."""
        return self._urls

    def note_failure(self, url: str) -> None:
        """Switch to the next address, unless another one is current already."""
        if url == self.current:
            self._current_index = (self._current_index + 1) % len(self._urls)
            self.current = self._urls[self._current_index]


def problem_at(url: str, problem: str) -> str:
    """Return a problem prefixed with its address, unless the dialer has named it already."""
    return problem if url in problem else f"{url}: {problem}"
