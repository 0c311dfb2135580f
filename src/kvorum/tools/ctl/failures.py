"""Turn failures into etcdctl's error texts and exit codes."""

import sys

from kvorum.api.errors import Code
from kvorum.client.errors import (
    CallError,
    DeadlineError,
    KvorumError,
    OutcomeUnknownError,
    UnavailableError,
)
from kvorum.tools.cli.errors import BAD_CONNECTION, GENERAL, CommandError
from kvorum.tools.cli.text import printable

DEADLINE = "context deadline exceeded"
UNKNOWN = "it may have taken effect, or not: look before it is repeated"


def failure_of(error: Exception) -> CommandError | None:
    """Return the CommandError for an error, or None if the error is a bug."""
    if isinstance(error, KvorumError):
        code = BAD_CONNECTION if error.is_of_login else GENERAL
        return CommandError(error_text(error), code, hint_of(error))
    return None


def hint_of(error: BaseException) -> str:
    """Return the cause that etcdctl's text hides, and what to do; "" if nothing is hidden."""
    if isinstance(error, OutcomeUnknownError):
        return UNKNOWN
    if not isinstance(error, UnavailableError | DeadlineError):
        return ""
    text = str(error)
    for sign, advice in _ADVICE:
        if sign in text:
            return f"{text}; {advice}"
    if isinstance(error, UnavailableError):
        return f"{text}; see whether the members run and whether --endpoints names them"
    return (
        f"{text}; see whether a majority of the members runs and reaches each other, "
        "or allow more time with --command-timeout"
    )


def print_hint(error: BaseException) -> None:
    """Write the hint of an error that does not end the command."""
    hint = hint_of(error)
    if hint:
        print_error_line(f"Hint: {hint}")


def print_error_line(text: str) -> None:
    """Write a line to the standard error; escape control characters for a terminal."""
    if sys.stderr.isatty():
        text = printable(text, kept="\n\t")
    sys.stderr.write(f"{text}\n")


_IS_TLS = "it is http:// without TLS, and https:// (or --cacert, --cert) with it"
_ADVICE = (
    (
        "certificate has expired",
        "renew the server's certificate, or see whether this machine's clock is right",
    ),
    (
        "certificate is not accepted",
        "--cacert names the authority to trust, and the endpoint a name that the certificate has",
    ),
    ("certificate required", "the server wants a certificate: --cert and --key name it"),
    ("does not speak TLS", "use http://, or no --cacert, --cert, --key"),
    ("the port speaks TLS", _IS_TLS),
    ("does not speak gRPC", "--endpoints has to name ports for clients"),
    (" cannot be read: ", "see --cacert, --cert and --key"),
    (" in PEM", "see --cacert, --cert and --key"),
    ("does not belong to the certificate", "see --cert and --key"),
    ("the server closed the connection", _IS_TLS),
    ("Connection reset by peer", _IS_TLS),
)


def error_text(error: BaseException) -> str:
    """Return the text that etcd's client has for an error."""
    if isinstance(error, OutcomeUnknownError) and error.__cause__ is not None:
        return error_text(error.__cause__)
    if isinstance(error, DeadlineError | UnavailableError):
        return DEADLINE
    if isinstance(error, CallError):
        if type(error) is not CallError:
            return error.text
        return f"rpc error: code = {code_name(error.code)} desc = {error.text}"
    return str(error)


def code_name(code: Code) -> str:
    """Return a code as gRPC in Go writes it: `NotFound`."""
    if code is Code.OK:
        return "OK"
    if code is Code.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in code.name.split("_"))
