"""Flags from the environment: `KVORUM_<FLAG>` and `ETCD_<FLAG>`.

As with etcd, an empty variable counts as unset, and an option given both on the command line and in
the environment is an error, because one of the two would be silently ignored. An option whose two
variables disagree is an error for the same reason.
"""

from collections.abc import Mapping
from typing import Any

from kvorum.process.settings.flags import FLAGS, FlagError, parse_value

PREFIXES = ("KVORUM_", "ETCD_")
OTHERS = frozenset(
    {"KVORUM_EDGE", "KVORUM_COMPILED", "KVORUM_VERSION"}
    | {"ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_CLIENT_DEBUG", "ETCD_VERSION"}
)
"""Variables with these prefixes that are no flags; container images set `ETCD_VERSION`."""


class EnvironmentRefusedError(Exception):
    """An environment that cannot be used; the process ends with exit code 1."""


def variables_of(name: str) -> list[str]:
    """Return the names of a flag's variables, Kvorum's first."""
    return [prefix + name.upper().replace("-", "_") for prefix in PREFIXES]


def file_in_environment(environment: Mapping[str, str]) -> str:
    """Return the path of the configuration file in the environment; empty: none."""
    texts = {name: environment.get(name, "") for name in variables_of("config-file")}
    return _only(texts)[1]


def set_in_environment(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the flags' variables that are set."""
    known = {name for flag in FLAGS for name in variables_of(flag.name)}
    return sorted(name for name in known if environment.get(name))


def _only(texts: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and text of the variable that is set, among those of one flag."""
    texts = {name: text for name, text in texts.items() if text}
    if len(set(texts.values())) > 1:
        pairs = " and ".join(f"{name}={text}" for name, text in texts.items())
        raise EnvironmentRefusedError(f"{pairs} contradict each other: unset one of them")
    return next(iter(texts.items()), ("", ""))


def from_environment(
    environment: Mapping[str, str], given: Mapping[str, object]
) -> tuple[dict[str, object], list[tuple[str, dict[str, Any]]]]:
    """Return the flags set in the environment, and warnings about unknown variables."""
    found: dict[str, object] = {}
    known: set[str] = set()
    for flag in FLAGS:
        if flag.name == "version":
            continue
        texts = {name: environment[name] for name in variables_of(flag.name) if name in environment}
        known |= texts.keys()
        set_names = [name for name, text in texts.items() if text]
        if not set_names:
            continue
        if flag.name in given:
            raise EnvironmentRefusedError(
                f"{set_names[0]} is shadowed by --{flag.name}: "
                "unset the variable or leave the flag out"
            )
        name, text = _only(texts)
        try:
            found[flag.name] = parse_value(flag, text)
        except FlagError as error:
            _, _, problem = str(error).partition(": ")
            raise EnvironmentRefusedError(f'invalid value "{text}" for {name}: {problem}') from None
    text = "unrecognized environment variable"
    warned: list[tuple[str, dict[str, Any]]] = [
        (text, {"environment_variable": f"{name}={environment[name]}"})
        for name in sorted(environment)
        if name.startswith(PREFIXES) and name not in known and name not in OTHERS
    ]
    return found, warned
