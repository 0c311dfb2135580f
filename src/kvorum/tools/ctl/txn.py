"""`txn`: read a transaction line by line in etcdctl's grammar, and run it."""

import sys

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.options import FOREVER
from kvorum.tools.cli.commands import Command
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INVALID_INPUT, CommandError, UsageError
from kvorum.tools.cli.output import ResultOutput
from kvorum.tools.cli.parsing import parse
from kvorum.tools.cli.text import quoted
from kvorum.tools.cli.values import decimal, hexadecimal
from kvorum.tools.cli.words import SPACES, InputLines, as_text, read_quoted, split_words
from kvorum.tools.ctl.commands import DELETE_FLAGS, GET_FLAGS, PUT_FLAGS
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import (
    as_bytes,
    delete_fields,
    delete_request,
    put_fields,
    put_request,
    range_fields,
    range_request,
    simple_delete,
    simple_put,
    simple_range,
)

_STEPS = Command(
    "txn",
    "Steps of a transaction",
    children=(
        Command("put", "Sets a key", "put", "[options] <key> <value>", PUT_FLAGS),
        Command("get", "Reads keys", "get", "[options] <key> [range_end]", GET_FLAGS),
        Command("del", "Deletes keys", "del", "[options] <key> [range_end]", DELETE_FLAGS),
    ),
)
_OPERATORS = {
    "=": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    ">": pb.Compare.GREATER,
    "<": pb.Compare.LESS,
}
_TARGETS = {
    "ver": "VERSION",
    "version": "VERSION",
    "c": "CREATE",
    "create": "CREATE",
    "m": "MOD",
    "mod": "MOD",
    "val": "VALUE",
    "value": "VALUE",
    "lease": "LEASE",
}
_NUMBERS = {"VERSION": "version", "CREATE": "create_revision", "MOD": "mod_revision"}


def txn(invocation: CtlInvocation) -> None:
    """Read a transaction, and run it."""
    if invocation.arguments:
        raise CommandError("txn command does not accept argument", BAD_ARGUMENTS)
    with invocation.client() as client:
        lines = InputLines()
        request = pb.TxnRequest()
        _prompt(invocation, "compares:")
        while line := _next(lines):
            request.compare.append(comparison(line))
        _prompt(invocation, "success requests (get, put, del):")
        while line := _next(lines):
            request.success.append(_step(invocation, line))
        _prompt(invocation, "failure requests (get, put, del):")
        while line := _next(lines):
            request.failure.append(_step(invocation, line))
        answer = invocation.ask(client, rpcs.TXN, request, pb.TxnResponse, timeout=FOREVER)
    output = invocation.output
    output.show(
        answer,
        lambda done: _simple(output, done),
        fields=lambda done: _fields(output, done),
    )


def _prompt(invocation: CtlInvocation, text: str) -> None:
    if invocation.switch("interactive"):
        invocation.output_line(text)
        sys.stdout.flush()


def _next(lines: InputLines) -> str:
    line = lines.next()
    if line is None:
        raise CommandError("EOF", INVALID_INPUT)
    return line.strip(SPACES)


# Conditions.


def comparison(line: str) -> pb.Compare:
    """Read a condition: `target("key") operator "value"`."""
    target, is_opened, rest = line.partition("(")
    if not is_opened:
        raise CommandError(f"malformed comparison: {line}", INVALID_INPUT)
    found = ["", "", ""]
    try:
        _scan(rest, found)
    except ValueError:
        key, operator, value = found
        raise CommandError(
            f"malformed comparison: {line}; got {target}({quoted(key)}) {operator} {quoted(value)}",
            INVALID_INPUT,
        ) from None
    key, operator, value = found
    kind = _TARGETS.get(target)
    if kind is None:
        raise CommandError(f"malformed comparison: {line} (unknown target {target})", INVALID_INPUT)
    compare = pb.Compare(key=as_bytes(key), target=kind)
    try:
        if kind == "VALUE":
            compare.value = as_bytes(value)
        elif kind == "LEASE":
            compare.lease = hexadecimal(value, is_signed=True)
        else:
            setattr(compare, _NUMBERS[kind], decimal(value))
    except ValueError:
        raise CommandError(f"invalid txn compare request: {line}", INVALID_INPUT) from None
    if operator not in _OPERATORS:
        raise CommandError(
            f"malformed comparison: {line} (unknown operator {operator}, expected =, !=, < or >)",
            INVALID_INPUT,
        )
    compare.result = _OPERATORS[operator]
    return compare


def _scan(text: str, found: list[str]) -> None:
    """Read `"key") operator "value"` into a list, up to the first mismatch; raises ValueError."""
    found[0], at = read_quoted(text, _after_spaces(text, 0))
    if text[at : at + 1] != ")":
        raise ValueError("input does not match format")
    at = _after_blank(text, at + 1)
    end = at
    while end < len(text) and text[end] not in SPACES:
        end += 1
    if end == at:
        raise ValueError("unexpected EOF")
    found[1] = as_text(text[at:end])
    found[2], _ = read_quoted(text, _after_blank(text, end))


def _after_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACES:
        at += 1
    return at


def _after_blank(text: str, at: int) -> int:
    if at < len(text) and text[at] not in SPACES:
        raise ValueError("expected space in input to match format")
    return _after_spaces(text, at)


# Steps.


def _step(invocation: CtlInvocation, line: str) -> pb.RequestOp:
    """Read a step: a command line of `put`, `get` or `del`."""
    try:
        words = split_words(line)
    except ValueError as error:
        raise CommandError(str(error), INVALID_INPUT) from None
    if len(words) < 2:
        raise CommandError(f"invalid txn compare request: {line}", INVALID_INPUT)
    try:
        given = parse(_STEPS, words)
    except UsageError as error:
        if error.usage.startswith("Usage:"):
            sys.stderr.write(error.usage)
        raise CommandError(f"invalid txn request: {line}", INVALID_INPUT) from None
    step = CtlInvocation(invocation.root, given)
    match "" if given.is_help_asked else given.command.run:
        case "put":
            return pb.RequestOp(request_put=pb.PutRequest.FromString(put_request(step)))
        case "get":
            return pb.RequestOp(request_range=pb.RangeRequest.FromString(range_request(step)))
        case "del":
            request = pb.DeleteRangeRequest.FromString(delete_request(step))
            return pb.RequestOp(request_delete_range=request)
    raise CommandError(f"invalid txn request: {line}", INVALID_INPUT)


# Output formats.


def _simple(output: ResultOutput, done: pb.TxnResponse) -> None:
    output.line("SUCCESS" if done.succeeded else "FAILURE")
    for each in done.responses:
        output.line()
        match each.WhichOneof("response"):
            case "response_put":
                simple_put(output, each.response_put)
            case "response_range":
                simple_range(output, each.response_range)
            case "response_delete_range":
                simple_delete(output, each.response_delete_range)


def _fields(output: ResultOutput, done: pb.TxnResponse) -> None:
    output.header_fields(done.header)
    output.field("Succeeded", done.succeeded)
    for each in done.responses:
        match each.WhichOneof("response"):
            case "response_put":
                put_fields(output, each.response_put)
            case "response_range":
                range_fields(output, each.response_range)
            case "response_delete_range":
                delete_fields(output, each.response_delete_range)
