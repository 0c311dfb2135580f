"""Errors that stop a member or refuse its start. Errors for clients are in kvorum.api.errors."""

from kvorum.api.boundary import StoppingError


class MemberStopped(StoppingError):  # noqa: N818 (it names a state; nothing recovers from it)
    """The member stopped: it met input it does not understand, or its disk failed.

    Everything acknowledged is durable; the next start reads what is really on the disk.
    """


class StartRefused(StoppingError):  # noqa: N818 (it names a decision)
    """The data directory and the configuration do not fit together; the text says what to do."""
