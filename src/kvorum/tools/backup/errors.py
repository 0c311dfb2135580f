"""The errors of archives."""


class ArchiveError(Exception):
    """An archive, or one of its objects, is not as expected; the text names it and the reason."""


class StoreError(ArchiveError):
    """A store cannot be read or written now; a retry may succeed."""


class HistoryEndedError(Exception):
    """The recorded history cannot be continued; the text says why."""
