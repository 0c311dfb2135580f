"""A value other than the default for every flag."""

from kvorum.process.settings.rows import BOOL, FlagRow

OTHERS = {
    "bool": "{not default}",
    "uint": "7",
    "uint32": "0x10",
    "int": "-5",
    "duration": "1h30m",
    "string": "revision",
    "list": "b,a",
    "urls": "http://127.0.0.1:1,http://127.0.0.1:0",
    "origins": "http://one:1",
    "gates": "LeaseCheckpoint=true",
}
"""For each kind."""
SPECIAL = {
    "initial-cluster-state": "existing",
    "discovery-fallback": "proxy",
    "v2-deprecation": "gone",
}


def default(flag: FlagRow) -> object:
    """Return the value that a flag has if it is not given."""
    return flag.kind.parse(flag.default)


def other_text(flag: FlagRow) -> str:
    """Return another value, as text."""
    if flag.kind is BOOL:
        return "false" if default(flag) else "true"
    return SPECIAL.get(flag.name, OTHERS[flag.kind.name])
