"""The progress of what goes through the content of a database."""

from kvorum.backend.images import Content, Entries
from kvorum.cli import progress


class Progress(progress.Progress):
    """Counts bytes of a total while the block lasts, and draws them now and then."""

    def counted(self, content: Content) -> Content:
        """Count the content of a database while it passes."""
        for bucket, entries in content:
            yield bucket, self._counted(entries)

    def _counted(self, entries: Entries) -> Entries:
        for key, value in entries:
            self.add(len(key) + len(value))
            yield key, value
