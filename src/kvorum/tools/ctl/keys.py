"""`get`, `put`, `del` and `compaction`: keys and their values.

Scripts start these commands by the thousand, so the usual ones never load protobuf: `api.writing`
encodes requests, and `client.answers` decodes answers for the format simple.
"""

from __future__ import annotations

import sys

from kvorum.api import writing
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import answers, keys, rpcs
from kvorum.tools.cli.errors import BAD_ARGUMENTS, BAD_FEATURE, CommandError
from kvorum.tools.cli.text import quoted
from kvorum.tools.cli.values import decimal, hexadecimal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kvorum.api.pb import mvccpb
    from kvorum.client.sync.client import Client
    from kvorum.client.values import DeleteResult, KeyValue, PutResult, RangeResult
    from kvorum.tools.cli.output import ResultOutput
    from kvorum.tools.ctl.invocation import CtlInvocation

DELETE_DELAY_SECONDS = 2.0
"""The time in which the user can still cancel the deletion of a range."""

# The numbers of RangeRequest's SortOrder and SortTarget.
_UNSORTED, _ASCENDING, _DESCENDING = range(3)
_ORDERS = {"": _UNSORTED, "ASCEND": _ASCENDING, "DESCEND": _DESCENDING}
_BY_KEY, _BY_VALUE = 0, 4
_FACETS = ("key", "version", "create_revision", "mod_revision", "value")
"""The fields of a key that it can be sorted by, by the number of the target."""
_TARGETS = {"": _BY_KEY, "KEY": _BY_KEY, "VERSION": 1, "CREATE": 2, "MODIFY": 3, "VALUE": _BY_VALUE}


def get(invocation: CtlInvocation) -> None:
    """Show keys and their values."""
    request = range_request(invocation)
    is_serializable = invocation.text("consistency") == "s"
    with invocation.client() as client:
        answer: Any
        if invocation.switch("stream"):
            answer = _streamed(invocation, client, is_serializable=is_serializable)
        else:
            rpc = rpcs.SERIALIZABLE_RANGE if is_serializable else rpcs.RANGE
            is_simple = invocation.output.form == "simple"
            answer = invocation.call(
                client, rpc, request, _read_range if is_simple else _parse_range
            )
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


def put(invocation: CtlInvocation) -> None:
    """Set a key."""
    request = put_request(invocation)
    with invocation.client() as client:
        output = invocation.output
        decode = _read_put if output.form == "simple" else _parse_put
        answer: Any = invocation.call(client, rpcs.PUT, request, decode)
    output.show(
        answer,
        lambda done: simple_put(output, done),
        fields=lambda done: put_fields(output, done),
    )


def delete(invocation: CtlInvocation) -> None:
    """Delete keys."""
    request = delete_request(invocation)
    with invocation.client() as client:
        output = invocation.output
        decode = _read_delete if output.form == "simple" else _parse_delete
        answer: Any = invocation.call(client, rpcs.DELETE_RANGE, request, decode)
    output.show(
        answer,
        lambda done: simple_delete(output, done),
        fields=lambda done: delete_fields(output, done),
    )


def compact(invocation: CtlInvocation) -> None:
    """Compact the store at a revision."""
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


# Requests as bytes of protobuf; `txn` uses them, too.


def range_request(invocation: CtlInvocation) -> bytes:
    """Return the RangeRequest of `get`."""
    limit, keys_only = invocation.number("limit"), invocation.switch("keys-only")
    return _range_request(invocation, limit, *_sorting(invocation), keys_only=keys_only)


def _range_request(
    invocation: CtlInvocation, limit: int, order: int, target: int, *, keys_only: bool
) -> bytes:
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
    for kind in ("Create", "Mod"):
        low, high = (invocation.number(f"{side}-{kind.lower()}-rev") for side in ("min", "max"))
        if high and low > high:
            raise CommandError(f"getMin{kind}Rev(={low}) > getMax{kind}Rev(={high})", BAD_FEATURE)
    numbers = (
        limit,
        max(0, invocation.number("rev")),
        order,
        target,
        consistency == "s",
        keys_only,
        invocation.switch("count-only"),
        invocation.number("min-mod-rev"),
        invocation.number("max-mod-rev"),
        invocation.number("min-create-rev"),
        invocation.number("max-create-rev"),
    )
    return writing.range_request(key, end, numbers)


def put_request(invocation: CtlInvocation) -> bytes:
    """Return the PutRequest of `put`; the value may come from the standard input."""
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
    return writing.put_request(
        as_bytes(arguments[0]),
        value,
        lease,
        previous=invocation.switch("prev-kv"),
        keep_value=is_value_kept,
        keep_lease=invocation.switch("ignore-lease"),
    )


def delete_request(invocation: CtlInvocation) -> bytes:
    """Return the DeleteRangeRequest of `del`, after the warning and the delay for a range."""
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
        import time

        first, last = (quoted(as_bytes(each)) for each in arguments[:2])
        sys.stderr.write(
            f"Warning: Keys between {first} and {last} will be deleted. Please interrupt the "
            "command within next 2 seconds to cancel. You can provide `--range` flag to avoid "
            "the delay.\n"
        )
        sys.stderr.flush()
        time.sleep(DELETE_DELAY_SECONDS)
    return writing.delete_request(key, end, previous=invocation.switch("prev-kv"))


def key_range(arguments: list[str], *, is_prefix: bool, is_from_key: bool) -> tuple[bytes, bytes]:
    """Return key and range end that arguments and flags name."""
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
    """Return an argument as the bytes that the shell passed."""
    return argument.encode("utf-8", "surrogateescape")


def _check_range(*, is_prefix: bool, is_from_key: bool) -> None:
    if is_prefix and is_from_key:
        raise CommandError(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
            BAD_ARGUMENTS,
        )


def _sorting(invocation: CtlInvocation) -> tuple[int, int]:
    """Return order and target of a sort; a target without an order sorts upwards."""
    order = _ORDERS.get(invocation.text("order").upper())
    if order is None:
        raise CommandError(f"bad sort order {invocation.text('order')}", BAD_FEATURE)
    by = invocation.text("sort-by").upper()
    target = _TARGETS.get(by)
    if target is None:
        raise CommandError(f"bad sort target {invocation.text('sort-by')}", BAD_FEATURE)
    if order == _UNSORTED and by:
        order = _ASCENDING
    # Servers return keys in this order anyway; an explicit order would make them sort.
    return (_UNSORTED, target) if (order, target) == (_ASCENDING, _BY_KEY) else (order, target)


# Answers. Protobuf decodes those that are long or have an unusual shape.


def _read_range(answer: bytes) -> RangeResult | pb.RangeResponse:
    return answers.read_range(answer) or _parse_range(answer)


def _parse_range(answer: bytes) -> pb.RangeResponse:
    return pb.RangeResponse.FromString(answer)


def _read_put(answer: bytes) -> PutResult | pb.PutResponse:
    return answers.read_put(answer) or _parse_put(answer)


def _parse_put(answer: bytes) -> pb.PutResponse:
    return pb.PutResponse.FromString(answer)


def _read_delete(answer: bytes) -> DeleteResult | pb.DeleteRangeResponse:
    return answers.read_delete(answer) or _parse_delete(answer)


def _parse_delete(answer: bytes) -> pb.DeleteRangeResponse:
    return pb.DeleteRangeResponse.FromString(answer)


def _streamed(
    invocation: CtlInvocation, client: Client, *, is_serializable: bool
) -> pb.RangeResponse:
    """Return the pieces of a streamed answer as one answer, sorted as `--sort-by` says.

    etcd's servers refuse an explicit order; without one they sort each piece separately, and return
    keys twice. So this function sorts if there is no `--order`, and then applies the limit.
    """
    from kvorum.client.operations import Operation

    order, target = _sorting(invocation)
    limit = invocation.number("limit")
    is_sorted_here = target != _BY_KEY and not invocation.text("order")
    keys_only = invocation.switch("keys-only")
    if is_sorted_here:
        # A sort by value needs the values, even if the command shows only keys.
        has_values = not keys_only or target == _BY_VALUE
        request = _range_request(invocation, 0, _UNSORTED, _BY_KEY, keys_only=not has_values)
    else:
        request = _range_request(invocation, limit, order, target, keys_only=keys_only)
    whole = pb.RangeResponse()

    def piece(answer: bytes) -> pb.RangeResponse:
        return pb.RangeStreamResponse.FromString(answer).range_response

    rpc = rpcs.SERIALIZABLE_STREAM if is_serializable else rpcs.RANGE_STREAM
    operation = Operation(rpc, request, piece)
    with client.messages(operation, invocation.timeout()) as pieces:
        for each in pieces:
            whole.MergeFrom(each)
    if is_sorted_here:
        facet = _FACETS[target]
        whole.kvs.sort(key=lambda kv: getattr(kv, facet))
        if 0 < limit < len(whole.kvs):
            del whole.kvs[limit:]
            whole.more = True
        if keys_only:
            for kv in whole.kvs:
                kv.value = b""
    return whole


# Output formats.


def simple_range(
    output: ResultOutput, found: pb.RangeResponse | RangeResult, *, is_value_only: bool = False
) -> None:
    """Print keys and values, a line each."""
    for kv in found.kvs:
        simple_kv(output, kv, is_value_only=is_value_only)


def pretty_range(
    output: ResultOutput, found: pb.RangeResponse | RangeResult, *, is_value_only: bool = False
) -> None:
    """Print keys and values as `simple_range` does, with JSON values indented."""
    from kvorum.tools.cli.terminal import show_json
    from kvorum.tools.ctl.lines import laid_out

    for kv in found.kvs:
        if not is_value_only:
            output.bytes_line(kv.key)
        text = laid_out(kv.value)
        if text is None:
            output.bytes_line(kv.value)
        else:
            show_json(output, text)


def simple_kv(
    output: ResultOutput, kv: mvccpb.KeyValue | KeyValue, *, is_value_only: bool = False
) -> None:
    """Print a key and its value, a line each."""
    if not is_value_only:
        output.bytes_line(kv.key)
    output.bytes_line(kv.value)


def simple_put(output: ResultOutput, done: pb.PutResponse | PutResult) -> None:
    """Print OK, and the previous key and value if the answer has them."""
    output.line("OK")
    previous: mvccpb.KeyValue | KeyValue | None
    if isinstance(done, tuple):
        previous = done.previous
    else:
        previous = done.prev_kv if done.HasField("prev_kv") else None
    if previous is not None:
        simple_kv(output, previous)


def simple_delete(output: ResultOutput, done: pb.DeleteRangeResponse | DeleteResult) -> None:
    """Print the number of deleted keys, and the previous keys and values in the answer."""
    output.line(str(done.deleted))
    for kv in done.previous if isinstance(done, tuple) else done.prev_kvs:
        simple_kv(output, kv)


def range_fields(output: ResultOutput, found: pb.RangeResponse) -> None:
    """Print the answer of a range in the format fields."""
    output.header_fields(found.header)
    for kv in found.kvs:
        kv_fields(output, "", kv)
    output.field("More", found.more)
    output.field("Count", found.count)


def put_fields(output: ResultOutput, done: pb.PutResponse) -> None:
    """Print the answer of a put in the format fields."""
    output.header_fields(done.header)
    if done.HasField("prev_kv"):
        kv_fields(output, "Prev", done.prev_kv)


def delete_fields(output: ResultOutput, done: pb.DeleteRangeResponse) -> None:
    """Print the answer of a deletion in the format fields."""
    output.header_fields(done.header)
    output.field("Deleted", done.deleted)
    for kv in done.prev_kvs:
        kv_fields(output, "Prev", kv)


def kv_fields(output: ResultOutput, prefix: str, kv: mvccpb.KeyValue) -> None:
    """Print all fields of a key in the format fields."""
    output.field(f"{prefix}Key", kv.key)
    output.field(f"{prefix}CreateRevision", kv.create_revision)
    output.field(f"{prefix}ModRevision", kv.mod_revision)
    output.field(f"{prefix}Version", kv.version)
    output.field(f"{prefix}Value", kv.value)
    if output.is_hex:
        output.line(f'"{prefix}Lease" : {kv.lease:016x}')
    else:
        output.field(f"{prefix}Lease", kv.lease)
