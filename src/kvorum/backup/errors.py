"""What goes wrong with archives."""


class ArchiveError(Exception):
    """An archive, or an object of it, is not what it should be; the text says which and how."""


class StoreError(ArchiveError):
    """A store cannot be read or written now; another attempt may succeed."""


class HistoryEndedError(Exception):
    """The history that is recorded cannot be continued; the text says why."""
