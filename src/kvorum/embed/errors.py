"""The errors of an embedded member."""

from kvorum.client.errors import ForkedError
from kvorum.process.refusals import REFUSALS, text_of, title_of
from kvorum.process.settings.config import ConfigError

__all__ = ["ConfigError", "ForkedError", "StartError", "StoppedError", "translate_error"]


class StartError(Exception):
    """The member did not start; the text says why, and what to do."""


class StoppedError(Exception):
    """A member in a process of its own stopped without a request to do so."""


def translate_error(error: Exception, *, is_start: bool) -> Exception:
    """Return the error to raise to the caller for an error that ended a member."""
    if isinstance(error, ConfigError) or not is_start or not isinstance(error, REFUSALS):
        return error
    return StartError(f"{title_of(error)}: {text_of(error)}")
