"""Output of dumps: lines of text, or of JSON with bytes in base64; problems go to stderr."""

import json
import sys
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from kvorum.tools.cli.errors import BAD_FEATURE, CommandError
from kvorum.tools.cli.output import ResultOutput, check_format


class DumpOutput:
    """The output of one dump; a pipe receives each line at once."""

    def __init__(self, form: str) -> None:
        """Refuse a format that dumps do not support."""
        check_format(form)
        if form not in ("simple", "json"):
            raise CommandError(
                f"{form} not supported as output format",
                BAD_FEATURE,
                hint="dumps are text, or with -w json a line of JSON for each entry",
            )
        self.is_json = form == "json"
        self._output = ResultOutput(form)

    def text(self, text: str = "") -> None:
        """Write a line of text."""
        self._output.line(text)

    def part(self, text: str) -> None:
        """Write text without a line end."""
        self._output.write(text)

    def object(self, shown: Mapping[str, Any]) -> None:
        """Write a line of JSON."""
        self._output.line(json.dumps(shown, default=_plain, separators=(",", ":")))


def warn(text: str) -> None:
    """Write a message about the dump to standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def _plain(value: object) -> str:
    assert isinstance(value, bytes), f"{value!r} has no place in a dump"
    return b64encode(value).decode()
