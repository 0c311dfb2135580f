"""What goes wrong with a member that is embedded."""

from kvorum.client.errors import ForkedError
from kvorum.settings.config import ConfigError

__all__ = ["ConfigError", "ForkedError", "StartError"]


class StartError(Exception):
    """The member did not start; the text says why, and what to do."""
