"""The row that defines a flag, and the kinds of values that rows have.

`flag` attaches a row to the field of `Config` that it fills; `flags` holds the rows of flags that
fill none. A flag's default and help text are defined only in its row.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Final, Generic, NamedTuple, TypeVar

from kvorum.api.durations import SECOND, duration
from kvorum.api.integers import integer
from kvorum.process.settings import values
from kvorum.process.settings.gates import gates

Value = TypeVar("Value")
Parsed = TypeVar("Parsed", covariant=True)


class FlagKind(NamedTuple, Generic[Parsed]):
    """A kind of value: its name, and its parser."""

    name: str
    parse: Callable[[str], Parsed]


class FlagRow(NamedTuple):
    """One flag; its default and `zero` are texts, as on a command line."""

    name: str
    kind: FlagKind[object]
    default: str
    section: str
    help: str
    zero: str = ""
    """The value that 0 stands for; empty: 0 means 0."""
    only_in_file: bool = False
    """Whether this is only a key of the configuration file."""

    def meaning(self, value: object) -> object:
        """Return a parsed value, or the meaning of 0 if the value is 0."""
        return self.kind.parse(self.zero) if self.zero and not value else value


METADATA: Final = "flag"
"""The key of the row in a dataclass field's metadata."""
DEFAULT: Final = "default"
"""A value of `zero`: 0 stands for the row's default."""


def flag(
    name: str,
    kind: FlagKind[Value],
    default: str,
    section: str,
    text: str,
    *,
    zero: str = "",
    only_in_file: bool = False,
) -> Value:
    """Return the dataclass field that a flag fills; type checkers see the type of its value."""
    zero = default if zero == DEFAULT else zero
    row = FlagRow(name, kind, default, section, text, zero=zero, only_in_file=only_in_file)
    value = kind.parse(default)
    if row.zero and not value:
        value = kind.parse(row.zero)
    return field(default=value, metadata={METADATA: row})


def _seconds(text: str) -> float:
    try:
        return duration(text) / SECOND
    except ValueError:
        raise ValueError("parse error") from None


BOOL = FlagKind("bool", values.boolean)
UINT = FlagKind("uint", lambda text: integer(text, 0, 2**64 - 1))
UINT32 = FlagKind("uint32", values.uint32)
INT = FlagKind("int", lambda text: integer(text, -(2**63), 2**63 - 1))
SECONDS = FlagKind("duration", _seconds)
STRING = FlagKind("string", str)
STRINGS = FlagKind("list", values.strings)
URLS = FlagKind("urls", values.urls)
ORIGINS = FlagKind("origins", values.urls_or_star)
FEATURE_GATES = FlagKind("gates", gates)
STATES = FlagKind("string", values.one_of("new", "existing"))

MEMBER = "Member"
CLUSTERING = "Clustering"
SECURITY = "Security"
AUTH = "Auth"
MONITORING = "Profiling and Monitoring"
LOGGING = "Logging"
TUNING = "Behaviour"
TRACING = "Distributed tracing"
BACKUP = "Backups"
UNSAFE = "Unsafe"
SECTIONS = (
    MEMBER,
    CLUSTERING,
    SECURITY,
    AUTH,
    MONITORING,
    LOGGING,
    TUNING,
    TRACING,
    BACKUP,
    UNSAFE,
)
"""The sections in the order in which the help shows them."""
