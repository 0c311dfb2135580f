"""What the marks of a test ask of its store: `@pytest.mark.kvorum(tls=True, auth=True, flags={})`.

Flags are those of the `kvorum` command, with dashes or underscores. Those that the fixtures need
for themselves are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.testing.certificates import Certificates

USER, PASSWORD = "root", "root"
TAKEN = ("name", "data-dir", "wal-dir", "config-file", "ephemeral", "logger", "unsafe-no-fsync")
"""Flags that the fixtures set, beside those that begin with one of `TAKEN_BEGINNINGS`."""
TAKEN_BEGINNINGS = ("advertise-", "discovery", "initial-", "listen-", "log-")


CLIENT_CERTIFICATES = ("client-cert-auth", "true")
"""With this flag a server is told whom it believes, too."""


class MarkError(Exception):
    """A mark that cannot be obeyed; the text says what may be in one."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a store is to be like."""

    tls: bool = False
    auth: bool = False
    flags: tuple[tuple[str, str], ...] = ()
    """Names and values as on a command line, sorted."""


def server_flags(options: Options, certificates: "Certificates | None") -> dict[str, str]:
    """Return the flags that options stand for, for the side of clients."""
    flags = {}
    if options.auth:
        # Passwords of tests need not withstand anybody.
        flags["bcrypt-cost"] = "4"
    if certificates is not None:
        flags |= certificates.flags()
        if CLIENT_CERTIFICATES in options.flags:
            flags |= certificates.asking_flags()
    return flags | dict(options.flags)


def options_of(marks: Iterable[tuple[tuple[object, ...], Mapping[str, object]]]) -> Options:
    """Join marks, given as positional and named arguments: later ones count more."""
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
    return Options(choices["tls"], choices["auth"], tuple(sorted(flags.items())))


def _flag(given: str, value: object) -> tuple[str, str]:
    name = given.lstrip("-").replace("_", "-")
    if name in TAKEN or name.startswith(TAKEN_BEGINNINGS):
        raise MarkError(
            f"the flag {given} cannot be set by the mark kvorum: its fixtures set it themselves"
        )
    if isinstance(value, bool):
        return name, "true" if value else "false"
    if isinstance(value, list | tuple):
        return name, ",".join(map(str, value))
    return name, str(value)
