"""Progress lines for passes over the content of a database."""

from collections.abc import Iterator

from kvorum.storage.backend.bbolt.writing import PackedLeaves
from kvorum.storage.backend.images import Content, Entries, SealedContent, SealedPieces
from kvorum.tools.cli import progress

ImageContent = Iterator[tuple[bytes, Entries | PackedLeaves]]


class ByteProgress(progress.ProgressLine):
    """Counts bytes towards a total and redraws a progress line while the block lasts."""

    def count_content(self, content: Content) -> Content:
        """Pass on the content of a database and count its bytes."""
        for bucket, entries in content:
            yield bucket, self._counted(entries)

    def _counted(self, entries: Entries) -> Entries:
        for key, value in entries:
            self.add(len(key) + len(value))
            yield key, value

    def count_pieces(self, content: SealedContent) -> SealedContent:
        """Do what `count_content` does, for content that comes in pieces."""
        for bucket, pieces in content:
            yield bucket, self._counted_pieces(pieces)

    def _counted_pieces(self, pieces: SealedPieces) -> SealedPieces:
        for piece in pieces:
            self.add(sum([len(key) + len(value) for key, value in piece]))
            yield piece

    def count_image(self, content: ImageContent) -> ImageContent:
        """Do what `count_content` does, for an image to be written."""
        for bucket, entries in content:
            if isinstance(entries, Iterator):
                yield bucket, self._counted(entries)
            else:
                yield bucket, _CountedLeaves(entries, self)


class _CountedLeaves:
    def __init__(self, leaves: PackedLeaves, progress: ByteProgress) -> None:
        self._leaves = leaves
        self._progress = progress

    def next_leaves(self, number: int) -> tuple[bytes, list[tuple[bytes, int]]] | None:
        """Return the next leaves, numbered from `number` on; None if there are no more."""
        packed = self._leaves.next_leaves(number)
        if packed is not None:
            self._progress.add(len(packed[0]))
        return packed
