"""`revert`: restore keys to their values at a revision.

The command reads the store at two revisions: the one to go back to, and the one to start from. It
changes the keys that differ in transactions that compare each key with its revision at the start,
so that it leaves alone, and names, keys that another client has changed since. A key that is as
wanted already counts as done, so that the same command continues after an interruption.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import OutcomeUnknownError
from kvorum.client.keys import KeyRange, key_range
from kvorum.client.sync.client import Client
from kvorum.client.values import KeyValue, key_value
from kvorum.tools.cli.errors import BAD_ARGUMENTS, GENERAL, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.cli.terminal import painted
from kvorum.tools.cli.text import quoted
from kvorum.tools.ctl.batches import batches
from kvorum.tools.ctl.diffs import differences, is_same
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.leasing import LeaseTtls
from kvorum.tools.ctl.pages import extent

ATTEMPTS_MAX = 3


class Change(NamedTuple):
    """A key's revision at the start, and its wanted state; None if it shall not exist."""

    key: bytes
    present_revision: int
    """The key's mod revision at the start; 0 if the key did not exist."""
    wanted: KeyValue | None


def revert(invocation: CtlInvocation) -> None:
    """Restore keys to their values at a revision."""
    if invocation.arguments:
        raise CommandError(
            "revert command takes no arguments; give the keys as --prefix", BAD_ARGUMENTS
        )
    if "prefix" not in invocation.given.changed or invocation.number("to-rev") < 1:
        raise CommandError(
            "revert command needs --prefix (an empty one for all keys) and --to-rev",
            BAD_ARGUMENTS,
        )
    keys = key_range(prefix=as_bytes(invocation.text("prefix")))
    invocation.output.check("simple")
    with invocation.client() as client:
        newest = extent(invocation, client, keys).revision
        begin = invocation.number("from-rev") or newest
        changes = _changes(invocation, client, keys, begin)
        if invocation.switch("yes"):
            _apply(invocation, client, changes, begin)
        else:
            _show(invocation, changes, begin)


def _changes(
    invocation: CtlInvocation, client: Client, keys: KeyRange, begin: int
) -> Iterator[Change]:
    leases = LeaseTtls(invocation, client)
    for each in differences(invocation, client, keys, begin, invocation.number("to-rev")):
        present, wanted = each.before, each.after
        if wanted is not None and wanted.lease and not leases.ttl(wanted.lease):
            wanted = wanted._replace(lease=0)
        if is_same(present, wanted):
            continue
        yield Change(each.key, present.mod_revision if present else 0, wanted)


def _show(invocation: CtlInvocation, changes: Iterable[Change], begin: int) -> None:
    output = invocation.output
    puts = deletes = 0
    for change in changes:
        if change.wanted is None:
            deletes += 1
            output.styled_line(painted(f"delete {quoted(change.key)}", "red"))
        else:
            puts += 1
            shown = f"put {quoted(change.key)} as of revision {change.wanted.mod_revision}"
            output.styled_line(painted(shown, "green"))
    output.line(f"{puts} to put, {deletes} to delete; nothing was changed")
    if puts or deletes:
        output.line(f"Add --from-rev {begin} --yes to do exactly that")


def _apply(
    invocation: CtlInvocation, client: Client, changes: Iterable[Change], begin: int
) -> None:
    done = 0
    refused: list[bytes] = []
    with ProgressLine("reverting", shown=human_count) as progress:
        for batch in batches(changes, _size):
            refused.extend(_commit_untouched(invocation, client, batch))
            progress.add(len(batch))
            done += len(batch)
    output = invocation.output
    for key in refused:
        output.line(f"changed meanwhile, left alone: {quoted(key)}")
    output.line(f"{done - len(refused)} keys are as of revision {invocation.number('to-rev')}")
    if refused:
        raise CommandError(
            f"{len(refused)} keys were changed after revision {begin} and left alone", GENERAL
        )


def _size(change: Change) -> int:
    return len(change.key) + (len(change.wanted.value) if change.wanted else 0)


def _commit_untouched(
    invocation: CtlInvocation, client: Client, batch: list[Change]
) -> list[bytes]:
    """Apply a batch; return the keys that another client has changed to another value."""
    refused: list[bytes] = []
    while batch and (answer := _commit(invocation, client, batch)) is not None:
        untouched = []
        for change, response in zip(batch, answer.responses, strict=True):
            kvs = response.response_range.kvs
            found = key_value(kvs[0]) if kvs else None
            if (found.mod_revision if found else 0) == change.present_revision:
                untouched.append(change)
            elif not is_same(found, change.wanted):
                refused.append(change.key)
        assert len(untouched) < len(batch), "a condition failed that holds"
        batch = untouched
    return refused


def _commit(
    invocation: CtlInvocation, client: Client, batch: list[Change]
) -> pb.TxnResponse | None:
    """Apply changes in one transaction; if a condition fails, return an answer with the keys."""
    request = pb.TxnRequest(
        compare=[_condition(each) for each in batch],
        success=[_step(each) for each in batch],
        failure=[pb.RequestOp(request_range=pb.RangeRequest(key=each.key)) for each in batch],
    )
    for attempts_left in reversed(range(ATTEMPTS_MAX)):
        try:
            answer = invocation.ask(client, rpcs.TXN, request, pb.TxnResponse)
            return None if answer.succeeded else answer
        except OutcomeUnknownError:
            # A retry finds the changes of the first attempt: the keys are as wanted.
            if not attempts_left:
                raise
    return None


def _condition(change: Change) -> pb.Compare:
    return pb.Compare(
        key=change.key,
        target=pb.Compare.MOD,
        result=pb.Compare.EQUAL,
        mod_revision=change.present_revision,
    )


def _step(change: Change) -> pb.RequestOp:
    wanted = change.wanted
    if wanted is None:
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=change.key))
    put = pb.PutRequest(key=change.key, value=wanted.value, lease=wanted.lease)
    return pb.RequestOp(request_put=put)
