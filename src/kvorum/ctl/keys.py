"""`get`, `put`, `del` and `compaction`: keys and their values."""

import sys
import time

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import mvccpb
from kvorum.cli.errors import BAD_ARGUMENTS, BAD_FEATURE, CommandError
from kvorum.cli.output import Output
from kvorum.cli.text import quoted
from kvorum.cli.values import decimal, hexadecimal
from kvorum.client import keys, rpcs
from kvorum.client.operations import Operation
from kvorum.client.sync.client import Client
from kvorum.ctl.invocation import Invocation

DELETE_DELAY_SECONDS = 2.0
"""How long a person has to think again before a range is deleted."""

_ORDERS = {"": "NONE", "ASCEND": "ASCEND", "DESCEND": "DESCEND"}
_TARGETS = {
    "CREATE": "CREATE",
    "KEY": "KEY",
    "VERSION": "VERSION",
    "MODIFY": "MOD",
    "VALUE": "VALUE",
}


def get(invocation: Invocation) -> None:
    """Show keys and their values."""
    request = range_request(invocation)
    with invocation.client() as client:
        if invocation.switch("stream"):
            answer = _streamed(client, request, invocation.seconds("command-timeout"))
        else:
            rpc = rpcs.SERIALIZABLE_RANGE if request.serializable else rpcs.RANGE
            answer = invocation.ask(client, rpc, request, pb.RangeResponse)
    output = invocation.output
    if invocation.switch("count-only") and output.form != "fields":
        raise CommandError("--count-only is only for `--write-out=fields`", BAD_ARGUMENTS)
    is_value_only = invocation.switch("print-value-only")
    if is_value_only and output.form != "simple":
        raise CommandError("print-value-only is only for `--write-out=simple`", BAD_ARGUMENTS)
    simple = pretty_range if invocation.switch("pretty") else simple_range
    output.show(
        answer,
        lambda found: simple(output, found, is_value_only=is_value_only),
        fields=lambda found: range_fields(output, found),
    )


def put(invocation: Invocation) -> None:
    """Set a key."""
    request = put_request(invocation)
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.PUT, request, pb.PutResponse)
    output = invocation.output
    output.show(
        answer,
        lambda done: simple_put(output, done),
        fields=lambda done: put_fields(output, done),
    )


def delete(invocation: Invocation) -> None:
    """Delete keys."""
    request = delete_request(invocation)
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.DELETE_RANGE, request, pb.DeleteRangeResponse)
    output = invocation.output
    output.show(
        answer,
        lambda done: simple_delete(output, done),
        fields=lambda done: delete_fields(output, done),
    )


def compact(invocation: Invocation) -> None:
    """Forget what keys were before a revision."""
    if len(invocation.arguments) != 1:
        raise CommandError("compaction command needs 1 argument", BAD_ARGUMENTS)
    try:
        revision = decimal(invocation.arguments[0])
    except ValueError as error:
        raise CommandError(str(error)) from None
    request = pb.CompactionRequest(revision=revision, physical=invocation.switch("physical"))
    with invocation.client() as client:
        invocation.ask(client, rpcs.COMPACT, request, pb.CompactionResponse)
    invocation.output_line(f"compacted revision {revision}")


# Requests, which transactions have too.


def range_request(invocation: Invocation) -> pb.RangeRequest:
    """Return what `get` was told to read."""
    arguments = invocation.arguments
    is_prefix, is_from_key = invocation.switch("prefix"), invocation.switch("from-key")
    if not arguments:
        raise CommandError(
            "get command needs one argument as key and an optional argument as range_end",
            BAD_ARGUMENTS,
        )
    _check_range(is_prefix=is_prefix, is_from_key=is_from_key)
    if invocation.switch("keys-only") and invocation.switch("count-only"):
        raise CommandError(
            "`--keys-only` and `--count-only` cannot be set at the same time, choose one",
            BAD_ARGUMENTS,
        )
    consistency = invocation.text("consistency")
    if consistency not in ("l", "s"):
        raise CommandError(f'unknown consistency flag "{consistency}"', BAD_FEATURE)
    key, end = key_range(arguments, is_prefix=is_prefix, is_from_key=is_from_key)
    order, target = _sorting(invocation)
    for kind in ("Create", "Mod"):
        low, high = (invocation.number(f"{side}-{kind.lower()}-rev") for side in ("min", "max"))
        if high and low > high:
            raise CommandError(f"getMin{kind}Rev(={low}) > getMax{kind}Rev(={high})", BAD_FEATURE)
    return pb.RangeRequest(
        key=key,
        range_end=end,
        limit=invocation.number("limit"),
        revision=max(0, invocation.number("rev")),
        sort_order=order,
        sort_target=target,
        serializable=consistency == "s",
        keys_only=invocation.switch("keys-only"),
        count_only=invocation.switch("count-only"),
        min_mod_revision=invocation.number("min-mod-rev"),
        max_mod_revision=invocation.number("max-mod-rev"),
        min_create_revision=invocation.number("min-create-rev"),
        max_create_revision=invocation.number("max-create-rev"),
    )


def put_request(invocation: Invocation) -> pb.PutRequest:
    """Return what `put` was told to write; the value may come from the standard input."""
    arguments = invocation.arguments
    is_value_kept = invocation.switch("ignore-value")
    if not arguments:
        raise CommandError(
            "put command needs 1 argument and input from stdin or 2 arguments", BAD_ARGUMENTS
        )
    if is_value_kept and len(arguments) > 1:
        raise CommandError(
            "put command needs only 1 argument when 'ignore-value' is set", BAD_ARGUMENTS
        )
    value = b""
    if len(arguments) > 1:
        value = as_bytes(arguments[1])
    elif not is_value_kept:
        value = sys.stdin.buffer.read()
        if not value:
            raise CommandError(
                "put command needs 1 argument and input from stdin or 2 arguments", BAD_ARGUMENTS
            )
    try:
        lease = hexadecimal(invocation.text("lease"), is_signed=True)
    except ValueError as error:
        raise CommandError(f"bad lease ID ({error}), expecting ID in Hex", BAD_ARGUMENTS) from None
    return pb.PutRequest(
        key=as_bytes(arguments[0]),
        value=value,
        lease=lease,
        prev_kv=invocation.switch("prev-kv"),
        ignore_value=is_value_kept,
        ignore_lease=invocation.switch("ignore-lease"),
    )


def delete_request(invocation: Invocation) -> pb.DeleteRangeRequest:
    """Return what `del` was told to delete, after the delay that a range has."""
    arguments = invocation.arguments
    is_prefix, is_from_key = invocation.switch("prefix"), invocation.switch("from-key")
    if not arguments:
        raise CommandError(
            "del command needs one argument as key and an optional argument as range_end",
            BAD_ARGUMENTS,
        )
    _check_range(is_prefix=is_prefix, is_from_key=is_from_key)
    key, end = key_range(arguments, is_prefix=is_prefix, is_from_key=is_from_key)
    if len(arguments) > 1 and not invocation.switch("range"):
        first, last = (quoted(as_bytes(each)) for each in arguments[:2])
        sys.stderr.write(
            f"Warning: Keys between {first} and {last} will be deleted. Please interrupt the "
            "command within next 2 seconds to cancel. You can provide `--range` flag to avoid "
            "the delay.\n"
        )
        time.sleep(DELETE_DELAY_SECONDS)
    return pb.DeleteRangeRequest(key=key, range_end=end, prev_kv=invocation.switch("prev-kv"))


def key_range(arguments: list[str], *, is_prefix: bool, is_from_key: bool) -> tuple[bytes, bytes]:
    """Return key and end of a range as arguments and flags give it."""
    key = as_bytes(arguments[0])
    if len(arguments) > 1:
        if is_prefix or is_from_key:
            raise CommandError(
                "too many arguments, only accept one argument when `--prefix` or `--from-key` "
                "is set",
                BAD_ARGUMENTS,
            )
        return key, as_bytes(arguments[1])
    if is_prefix:
        return keys.key_range(prefix=key)
    return keys.key_range(from_key=key) if is_from_key else (key, b"")


def as_bytes(argument: str) -> bytes:
    """Return an argument as the bytes that the shell gave."""
    return argument.encode("utf-8", "surrogateescape")


def _check_range(*, is_prefix: bool, is_from_key: bool) -> None:
    if is_prefix and is_from_key:
        raise CommandError(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
            BAD_ARGUMENTS,
        )


def _sorting(invocation: Invocation) -> tuple[str, str]:
    order = _ORDERS.get(invocation.text("order").upper())
    if order is None:
        raise CommandError(f"bad sort order {invocation.text('order')}", BAD_FEATURE)
    by = invocation.text("sort-by").upper()
    target = "KEY" if not by else _TARGETS.get(by)
    if target is None:
        raise CommandError(f"bad sort target {invocation.text('sort-by')}", BAD_FEATURE)
    if order == "NONE" and by:
        order = "ASCEND"
    # Keys come in that order anyway, without the work of sorting.
    return ("NONE", target) if (order, target) == ("ASCEND", "KEY") else (order, target)


def _streamed(client: Client, request: pb.RangeRequest, timeout: float) -> pb.RangeResponse:
    """Return the pieces of an answer as the one that they make."""
    whole = pb.RangeResponse()

    def piece(answer: bytes) -> pb.RangeResponse:
        return pb.RangeStreamResponse.FromString(answer).range_response

    rpc = rpcs.SERIALIZABLE_STREAM if request.serializable else rpcs.RANGE_STREAM
    operation = Operation(rpc, request.SerializeToString(), piece)
    with client.messages(operation, timeout) as pieces:
        for each in pieces:
            whole.MergeFrom(each)
    return whole


# How answers look.


def simple_range(output: Output, found: pb.RangeResponse, *, is_value_only: bool = False) -> None:
    """Print keys and values, a line each."""
    for kv in found.kvs:
        simple_kv(output, kv, is_value_only=is_value_only)


def pretty_range(output: Output, found: pb.RangeResponse, *, is_value_only: bool = False) -> None:
    """Print keys and values as `simple_range`, with values that are JSON laid out."""
    from kvorum.cli.terminal import show_json
    from kvorum.ctl.lines import laid_out

    for kv in found.kvs:
        if not is_value_only:
            output.bytes_line(kv.key)
        text = laid_out(kv.value)
        if text is None:
            output.bytes_line(kv.value)
        else:
            show_json(output, text)


def simple_kv(output: Output, kv: mvccpb.KeyValue, *, is_value_only: bool = False) -> None:
    """Print a key and its value, a line each."""
    if not is_value_only:
        output.bytes_line(kv.key)
    output.bytes_line(kv.value)


def simple_put(output: Output, done: pb.PutResponse) -> None:
    """Print that a key was set, and what it was before."""
    output.line("OK")
    if done.HasField("prev_kv"):
        simple_kv(output, done.prev_kv)


def simple_delete(output: Output, done: pb.DeleteRangeResponse) -> None:
    """Print how many keys were deleted, and what they were."""
    output.line(str(done.deleted))
    for kv in done.prev_kvs:
        simple_kv(output, kv)


def range_fields(output: Output, found: pb.RangeResponse) -> None:
    """Print the answer of a range."""
    output.header_fields(found.header)
    for kv in found.kvs:
        kv_fields(output, "", kv)
    output.field("More", found.more)
    output.field("Count", found.count)


def put_fields(output: Output, done: pb.PutResponse) -> None:
    """Print the answer of a put."""
    output.header_fields(done.header)
    if done.HasField("prev_kv"):
        kv_fields(output, "Prev", done.prev_kv)


def delete_fields(output: Output, done: pb.DeleteRangeResponse) -> None:
    """Print the answer of a deletion."""
    output.header_fields(done.header)
    output.field("Deleted", done.deleted)
    for kv in done.prev_kvs:
        kv_fields(output, "Prev", kv)


def kv_fields(output: Output, prefix: str, kv: mvccpb.KeyValue) -> None:
    """Print a key and all that belongs to it."""
    output.field(f"{prefix}Key", kv.key)
    output.field(f"{prefix}CreateRevision", kv.create_revision)
    output.field(f"{prefix}ModRevision", kv.mod_revision)
    output.field(f"{prefix}Version", kv.version)
    output.field(f"{prefix}Value", kv.value)
    if output.is_hex:
        output.line(f'"{prefix}Lease" : {kv.lease:016x}')
    else:
        output.field(f"{prefix}Lease", kv.lease)
