"""Every flag of the server, and a parser with Go's command-line syntax.

A flag that has an effect has its row at the field of `Config` that it fills. This module adds the
flags that fill no field, so that the server accepts every flag of etcd. `parse_arguments` neither
reads the environment nor checks whether values fit together; see `environment` and `checks`.
"""

from collections.abc import Mapping, Sequence

from kvorum.process.settings import values
from kvorum.process.settings.config import ROWS
from kvorum.process.settings.nearest import nearest
from kvorum.process.settings.rows import (
    BOOL,
    CLUSTERING,
    FEATURE_GATES,
    MEMBER,
    SECTIONS,
    SECURITY,
    STRING,
    FlagKind,
    FlagRow,
)


class FlagError(Exception):
    """A command line that cannot be parsed; the process ends with exit code 2."""


_FALLBACKS = FlagKind("string", values.one_of("exit", "proxy"))
_DEPRECATIONS = FlagKind(
    "string",
    values.some_of("write-only", "write-only-skip-check", "write-only-drop-data", "gone"),
)

UNUSED: tuple[FlagRow, ...] = (
    # LMDB has only one kind of free-page list.
    FlagRow(
        "backend-bbolt-freelist-type",
        STRING,
        "",
        MEMBER,
        "No effect: the database has one kind of free list; accepted for compatibility with etcd.",
    ),
    # Kvorum has no v2 store.
    FlagRow(
        "v2-deprecation",
        _DEPRECATIONS,
        "write-only",
        CLUSTERING,
        "No effect: Kvorum never had a v2 store; accepted for compatibility with etcd. Deprecated.",
    ),
    # The server never compares clients' addresses with their certificates, unlike members'.
    FlagRow(
        "client-skip-client-san-verification",
        BOOL,
        "false",
        SECURITY,
        "No effect: clients may connect from any address; accepted for compatibility with etcd.",
        only_in_file=True,
    ),
    # The start reads it before there is a configuration.
    FlagRow(
        "config-file",
        STRING,
        "",
        MEMBER,
        "YAML file with all settings; other flags and environment variables then have no effect.",
    ),
    # Any value but 'exit' is refused.
    FlagRow(
        "discovery-fallback",
        _FALLBACKS,
        "exit",
        CLUSTERING,
        "Action if discovery fails; only 'exit' is accepted.",
    ),
    # The start answers it before there is a configuration.
    FlagRow("version", BOOL, "false", MEMBER, "Show the version and exit."),
)
"""Flags that the server accepts but that fill no field, each with the reason."""

ALL: tuple[FlagRow, ...] = tuple(
    sorted((*ROWS.values(), *UNUSED), key=lambda flag: SECTIONS.index(flag.section))
)
"""The rows of all flags, and of the keys that exist only in files."""
FLAGS: tuple[FlagRow, ...] = tuple(flag for flag in ALL if not flag.only_in_file)
BY_NAME: Mapping[str, FlagRow] = {flag.name: flag for flag in FLAGS}

SECRETS = ("discovery-password", "discovery-user")
"""Flags whose values are, or may end with, a password."""
HIDDEN = "***"

IGNORED = frozenset(
    {"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "force"}
    | {"max-result-buffer", "max-retry-attempts", "peer-heartbeat-interval", "retry-interval"}
    | {"peer-election-timeout", "snapshot", "v", "vv", "test.coverprofile", "test.outputdir"}
)
"""Flags of very old versions, accepted like booleans and without effect."""

REMOVED = {
    "discovery": "the v2 discovery was removed from etcd 3.7",
    "discovery-proxy": "the v2 discovery was removed from etcd 3.7",
    "enable-v2": "the v2 API was removed from etcd 3.6",
    "proxy": "the v2 proxy was removed from etcd 3.6",
}
"""Flags of older versions that scripts still use, with the reason of their removal."""


def parse_arguments(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Return the values of the given flags, and the arguments that are not flags.

    As with Go, nothing after the first argument without a leading hyphen is a flag.
    """
    given: dict[str, object] = {}
    # Only the feature gates accumulate when given repeatedly.
    texts: dict[str, str] = {}
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if len(argument) < 2 or not argument.startswith("-"):
            break
        place += 1
        if argument == "--":
            break
        text = argument[2:] if argument.startswith("--") else argument[1:]
        name, equals, value = text.partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {argument}")
        if name in ("h", "help"):
            given["help"] = True
            break
        if name in IGNORED:
            continue
        flag = find(name)
        if not equals:
            if flag.kind is BOOL:
                value = "true"
            elif place < len(arguments):
                value = arguments[place]
                place += 1
            else:
                raise FlagError(f"flag needs an argument: -{name}")
        given[name] = parse_value(flag, value)
        if flag.kind is FEATURE_GATES:
            texts[name] = f"{texts.get(name, '')},{value}"
            given[name] = parse_value(flag, texts[name])
    return given, list(arguments[place:])


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line with its passwords hidden."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.removeprefix("-").removeprefix("-").partition("=")
        is_flag = argument.startswith("-") and name in SECRETS
        if shown and shown[-1].startswith("-") and shown[-1].lstrip("-") in SECRETS:
            argument = HIDDEN
        elif is_flag and equals:
            argument = f"--{name}={HIDDEN}"
        shown.append(argument)
    return shown


def find(name: str) -> FlagRow:
    """Return a flag by its name; raise FlagError, with a suggestion, if there is none."""
    flag = BY_NAME.get(name)
    if flag is not None:
        return flag
    message = f"flag provided but not defined: -{name}"
    plain = name.removeprefix("experimental-")
    if name in REMOVED:
        message += f" ({REMOVED[name]})"
    elif plain != name:
        message += " (etcd 3.7 has no experimental flags any more"
        message += f"; use --{plain})" if plain in BY_NAME else ", see --feature-gates)"
    elif meant := nearest(name, BY_NAME):
        message += f"\nDid you mean --{meant}?"
    raise FlagError(message)


def parse_value(flag: FlagRow, text: str) -> object:
    """Parse a flag's value; raise FlagError in etcd's words if it is invalid."""
    try:
        value = flag.kind.parse(text)
    except ValueError as error:
        if flag.kind is BOOL:
            message = f'invalid boolean value "{text}" for -{flag.name}: {error}'
        else:
            message = f'invalid value "{text}" for flag -{flag.name}: {error}'
        raise FlagError(message) from None
    return value
