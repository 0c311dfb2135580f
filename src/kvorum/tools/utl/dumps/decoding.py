"""Run a user's program that decodes entries: it reads lines of hex and answers each with a line.

An answer is `STATUS|TEXT`. The program must answer each line before it gets the next one.
"""

import shlex
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Self

from kvorum.tools.cli.errors import CommandError

_DELIMITER = "|"


class EntryDecoder:
    """The running program; leaving the block normally checks the program's exit code."""

    def __init__(self, command: str) -> None:
        self._command = command
        try:
            self._process = subprocess.Popen(  # noqa: S603
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except (OSError, ValueError, IndexError) as error:
            raise CommandError(f"the decoder {command!r} cannot be run: {error}") from error

    def ask(self, data: bytes) -> str:
        """Return the program's answer for an entry's data; raise CommandError if it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(data.hex().encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        answer = stdout.readline()
        if not answer:
            raise self._ended()
        return answer.decode("utf-8", "surrogateescape").removesuffix("\n")

    def _ended(self) -> CommandError:
        return CommandError(
            f"the decoder {self._command!r} ended before it was asked about all entries"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if kind is not None:
            self._process.kill()
        with suppress(BrokenPipeError):
            stdin.close()
        stdout.close()
        code = self._process.wait()
        if kind is None and code:
            raise CommandError(f"the decoder {self._command!r} ended with {code}")


def decoded_columns(answer: str) -> tuple[str, str]:
    """Return status and text of an answer, in the words of etcd-dump-logs."""
    status, *texts = answer.split(_DELIMITER)
    if not texts:
        return "decoder output format is not right, print output anyway", answer
    if len(texts) > 1:
        status += "(*WARNING: data might contain deliminator used by etcd-dump-logs)"
    return status, "".join(texts)
