"""The two ways a member ends or refuses to begin. Errors for clients are in kvorum.api.errors."""


class MemberStopped(Exception):  # noqa: N818 (it names a state; nothing recovers from it)
    """The member met something it does not understand, or its disk failed; it does nothing more.

    What was acknowledged is durable; the next start looks at what is really on the disk.
    """


class StartRefused(Exception):  # noqa: N818 (it names a decision)
    """The data directory and the configuration do not fit together; the text says what to do."""
