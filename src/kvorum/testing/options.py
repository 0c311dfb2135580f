"""The options in the marks of a test: `@pytest.mark.kvorum(tls=True, auth=True, flags={})`.

Flags are those of the `kvorum` command, with dashes or underscores. A mark must not set the flags
that the fixtures set themselves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.testing.certificates import Certificates

USER, PASSWORD = "root", "root"
RESERVED_FLAGS = (
    "name",
    "data-dir",
    "wal-dir",
    "config-file",
    "ephemeral",
    "logger",
    "unsafe-no-fsync",
)
"""Flags that the fixtures set, beside those that begin with one of `RESERVED_PREFIXES`."""
RESERVED_PREFIXES = ("advertise-", "discovery", "initial-", "listen-", "log-")


CLIENT_CERTIFICATES = ("client-cert-auth", "true")
"""This flag makes a server require client certificates, so it also needs a CA."""


class MarkError(Exception):
    """An invalid mark; the text says what a mark may contain."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a store."""

    tls: bool = False
    auth: bool = False
    flags: tuple[tuple[str, str], ...] = ()
    """Names and values as on a command line, sorted by name."""


def server_flags(options: StoreOptions, certificates: "Certificates | None") -> dict[str, str]:
    """Return the flags for these options, as far as they concern clients."""
    flags = {}
    if options.auth:
        # Passwords of tests need no protection.
        flags["bcrypt-cost"] = "4"
    if certificates is not None:
        flags |= certificates.flags()
        if CLIENT_CERTIFICATES in options.flags:
            flags |= certificates.require_client_flags()
    return flags | dict(options.flags)


def options_of(marks: Iterable[tuple[tuple[object, ...], Mapping[str, object]]]) -> StoreOptions:
    """Merge marks, given as positional and named arguments; later marks override earlier ones."""
    choices = {"tls": False, "auth": False}
    flags: dict[str, str] = {}
    for positional, named in marks:
        if positional:
            raise MarkError(f"the mark kvorum takes names only, but was given {positional[0]!r}")
        for name, value in named.items():
            if name in choices and isinstance(value, bool):
                choices[name] = value
            elif name == "flags" and isinstance(value, Mapping):
                flags |= dict(_flag(str(flag), each) for flag, each in value.items())
            else:
                raise MarkError(
                    f"the mark kvorum was given {name}={value!r}; it takes tls=True, auth=True and "
                    "flags={name: value}"
                )
    return StoreOptions(choices["tls"], choices["auth"], tuple(sorted(flags.items())))


def _flag(given: str, value: object) -> tuple[str, str]:
    name = given.lstrip("-").replace("_", "-")
    if name in RESERVED_FLAGS or name.startswith(RESERVED_PREFIXES):
        raise MarkError(
            f"the flag {given} cannot be set by the mark kvorum: its fixtures set it themselves"
        )
    if isinstance(value, bool):
        return name, "true" if value else "false"
    if isinstance(value, list | tuple):
        return name, ",".join(map(str, value))
    return name, str(value)
