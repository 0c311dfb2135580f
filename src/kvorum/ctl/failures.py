"""What a failure is called at the command line: etcdctl's words and exit codes."""

from kvorum.api.errors import Code
from kvorum.cli.errors import BAD_CONNECTION, GENERAL, CommandError
from kvorum.client.errors import (
    CallError,
    DeadlineError,
    KvorumError,
    OutcomeUnknownError,
    UnavailableError,
)

DEADLINE = "context deadline exceeded"


def failure_of(error: Exception) -> CommandError | None:
    """Return what is told of an error, or None if it is a mistake of the program."""
    if isinstance(error, KvorumError):
        return CommandError(error_text(error), BAD_CONNECTION if error.is_of_login else GENERAL)
    return None


def error_text(error: BaseException) -> str:
    """Return the words that etcd's client has for an error."""
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
