"""Variables that set global flags: `KVORUMCTL_ENDPOINTS`, or etcdctl's `ETCDCTL_ENDPOINTS`.

As in etcdctl, the command refuses a variable whose flag was given as well, ignores a variable whose
value it cannot parse, and warns of a variable that belongs to no flag.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.tools.cli.commands import Command
    from kvorum.tools.cli.parsing import Given

PREFIXES = ("KVORUMCTL_", "ETCDCTL_")
SECRET = ("auth-jwt-token", "password", "user")
"""Flags whose values `--debug` does not print."""
HIDDEN = "(not shown)"
WATCH_VARIABLES = ("WATCH_KEY", "WATCH_RANGE_END")


def apply_environment(given: Given, root: Command) -> None:
    """Set global flags from their variables; print all global flags with `--debug`."""
    known = {flag.name.upper().replace("-", "_"): flag for flag in root.passed_on}
    taken: set[str] = set()
    for prefix in PREFIXES:
        for name, flag in known.items():
            text = os.environ.get(prefix + name, "")
            if not text or name in taken:
                continue
            if flag.name in given.changed:
                _log(
                    "fatal",
                    "conflicting environment variable is shadowed by corresponding command-line "
                    "flag (either unset environment variable or disable flag))",
                    prefix + name,
                )
                raise SystemExit(1)
            taken.add(name)
            from kvorum.tools.cli.values import parse_value

            try:
                given.values[flag.name] = parse_value(flag.kind, text)
            except ValueError:
                continue
        for name, text in os.environ.items():
            rest = name.removeprefix(prefix)
            if name.startswith(prefix) and rest not in known and rest not in WATCH_VARIABLES:
                _log("warn", "unrecognized environment variable", f"{name}={text}")

    if given.values["debug"]:
        from kvorum.tools.cli.help import value_text

        for name, flag in known.items():
            shown = HIDDEN if flag.name in SECRET else value_text(flag, given.values[flag.name])
            sys.stderr.write(f"ETCDCTL_{name}={shown}\n")


def _log(level: str, message: str, variable: str) -> None:
    from datetime import UTC, datetime

    from kvorum.tools.cli.output import json_text

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    line = {"level": level, "ts": f"{now}Z", "msg": message, "environment-variable": variable}
    sys.stderr.write(f"{json_text(line)}\n")
