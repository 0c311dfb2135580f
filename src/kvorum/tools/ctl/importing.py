"""`import`: put the keys of an export into a store.

The command reads, compares and puts keys in batches. It skips keys that are equal already, so that
the same command continues after an interruption. It leaves other keys of the store alone.
"""

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import operations, rpcs
from kvorum.client.errors import LeaseExistsError
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INVALID_INPUT, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.cli.values import hexadecimal
from kvorum.tools.ctl.batches import batches
from kvorum.tools.ctl.exporting import FORM
from kvorum.tools.ctl.insights import LEASES
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.lines import bytes_of, whole_lines


class ExportedKey(NamedTuple):
    """A key of an export."""

    key: bytes
    value: bytes
    lease: int


class ExportSource:
    """The lines of an export, checked as they are read."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self.ttls: dict[int, int] = {}
        """The TTLs in seconds of the leases that were read, but not granted yet."""
        self.keys = 0
        self.is_whole = False

    def entries(self) -> Iterator[ExportedKey]:
        """Yield the keys; raise CommandError at a line that does not belong there."""
        number = 0
        for number, line in enumerate(whole_lines(self._file), 1):
            try:
                entry = self._entry(json.loads(line), number)
            except (ValueError, TypeError, RecursionError) as error:
                raise CommandError(
                    f"{self._name}, line {number}: {error}; expected a line of an export",
                    INVALID_INPUT,
                ) from error
            if entry is not None:
                self.keys += 1
                yield entry
        if not number:
            raise CommandError(f"{self._name} has no line; expected an export", INVALID_INPUT)

    def _entry(self, fields: object, number: int) -> ExportedKey | None:
        if not isinstance(fields, dict):
            raise ValueError("no object of JSON")
        if number == 1:
            if fields.get("export") != FORM:
                raise ValueError(f'no export of form {FORM}: its first line lacks "export":{FORM}')
            return None
        if self.is_whole:
            raise ValueError("it stands behind the last line")
        if fields.get("end") is True:
            if fields.get("keys") != self.keys:
                raise ValueError(f"{fields.get('keys')} keys are announced, {self.keys} were there")
            self.is_whole = True
            return None
        lease = fields.get("lease", "0")
        if not isinstance(lease, str):
            raise ValueError('"lease" is no string')
        if "ttl" in fields:
            self.ttls[hexadecimal(lease, is_signed=True)] = int(fields["ttl"])
            return None
        key = bytes_of(fields, "key")
        return ExportedKey(key, bytes_of(fields, "value"), hexadecimal(lease, is_signed=True))


class Counts:
    """The results of an import, as numbers of keys."""

    def __init__(self) -> None:
        self.put = self.equal = self.skipped = self.dropped = 0

    @property
    def text(self) -> str:
        """All numbers in one line."""
        shown = f"{self.put} keys put, {self.equal} were equal"
        if self.skipped:
            shown += f", {self.skipped} with a lease skipped"
        if self.dropped:
            shown += f"; {self.dropped} had a lease, and have none now (--leases grant keeps them)"
        return shown


def import_keys(invocation: CtlInvocation) -> None:
    """Put the keys of an export into the store."""
    if len(invocation.arguments) > 1:
        raise CommandError("import command takes one argument as file", BAD_ARGUMENTS)
    leases = invocation.text("leases")
    if leases not in LEASES:
        raise CommandError(
            f"--leases {leases} was given; expected {', '.join(LEASES)}", BAD_ARGUMENTS
        )
    if not invocation.arguments:
        _import(invocation, ExportSource("the standard input", sys.stdin.buffer), leases)
        return
    name = invocation.arguments[0]
    try:
        file = open(name, "rb")  # noqa: PTH123, SIM115
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", INVALID_INPUT) from error
    with file:
        _import(invocation, ExportSource(name, file), leases)


def _import(invocation: CtlInvocation, source: ExportSource, leases: str) -> None:
    invocation.output.check("simple")
    prefix = as_bytes(invocation.text("prefix"))
    counts = Counts()
    with invocation.client() as client, ProgressLine("importing", shown=human_count) as progress:
        for batch in batches(_wanted(source, prefix, leases, counts), _size):
            _put(invocation, client, batch, source, counts)
            progress.add(len(batch))
    invocation.output.line(counts.text)
    if not source.is_whole:
        raise CommandError(
            "the export is cut off: its last line is missing; what it has was imported",
            INVALID_INPUT,
        )


def _wanted(
    source: ExportSource, prefix: bytes, leases: str, counts: Counts
) -> Iterator[ExportedKey]:
    for entry in source.entries():
        if not entry.key.startswith(prefix):
            continue
        if entry.lease and leases == "skip":
            counts.skipped += 1
        elif entry.lease and leases == "drop":
            counts.dropped += 1
            yield entry._replace(lease=0)
        else:
            yield entry


def _size(entry: ExportedKey) -> int:
    return len(entry.key) + len(entry.value)


def _put(
    invocation: CtlInvocation,
    client: Client,
    batch: list[ExportedKey],
    source: ExportSource,
    counts: Counts,
) -> None:
    reads = [pb.RequestOp(request_range=pb.RangeRequest(key=each.key)) for each in batch]
    found = invocation.ask(
        client, rpcs.READ_TXN, pb.TxnRequest(success=reads), pb.TxnResponse
    ).responses
    steps = []
    for entry, response in zip(batch, found, strict=True):
        if [(kv.value, kv.lease) for kv in response.response_range.kvs] == [entry[1:]]:
            counts.equal += 1
            continue
        if entry.lease:
            _grant(invocation, client, entry.lease, source)
        put = pb.PutRequest(key=entry.key, value=entry.value, lease=entry.lease)
        steps.append(pb.RequestOp(request_put=put))
    if steps:
        invocation.ask(client, rpcs.TXN, pb.TxnRequest(success=steps), pb.TxnResponse)
        counts.put += len(steps)


def _grant(invocation: CtlInvocation, client: Client, lease: int, source: ExportSource) -> None:
    ttl = source.ttls.pop(lease, None)
    if ttl is None:
        # The lease is granted already; if the export lacks it, the server refuses the put.
        return
    try:
        # A lease that had expired at the export (TTL 0) expires here after 1 s, with its keys.
        operation = operations.grant_operation(lease, max(1, ttl))
        client.run(operation, invocation.seconds("command-timeout"))
    except LeaseExistsError:
        return
