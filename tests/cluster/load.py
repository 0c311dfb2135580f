"""Clients that go on whatever happens, and what must hold for their history.

A clerk is one client: it writes keys of its own, and writes, reads and compares registers that all
clerks share. It asks one member until a call fails, then the next. What was acknowledged must be
there in the end; some order must explain what happened to each register; revision and term in the
answers to one clerk never go back.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.sim.linearizability import find_contradiction
from kvorum.sim.operations import NEVER, Operation
from tests.cluster.client import Client
from tests.cluster.members import Cluster, Member
from tests.waiting import until

CALL_SECONDS = 1.0
RETRY_SECONDS = 0.01
REGISTERS = 6
_loads = count()


class Clerk(threading.Thread):
    """One client of a cluster; `acknowledged` counts its successful requests."""

    def __init__(
        self,
        number: int,
        members: Sequence[Member],
        registers: Sequence[bytes],
        moments: "count[int]",
        *,
        ordered: bool,
    ) -> None:
        super().__init__(name=f"clerk {number}")
        self._number = number
        self._registers = registers
        self._clients = [Client(member.address) for member in members]
        self._place = number % len(members)
        self._random = Random(number)
        self._moments = moments
        self._ending = threading.Event()
        self._numbers = count()
        self._ordered = ordered
        self._header = (0, 0)
        self.acknowledged = 0
        self.written: dict[bytes, bytes] = {}
        self.operations: list[Operation] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._random.choice((self._write, self._put, self._read, self._compare))()
        except BaseException as error:
            self.error = error
        finally:
            for client in self._clients:
                client.close()

    def end(self) -> None:
        self._ending.set()

    def _ask(self, name: str, request: Any) -> Any:
        answer = self._clients[self._place].ask(name, request, timeout=CALL_SECONDS)
        if isinstance(answer, Status):
            self._place = (self._place + 1) % len(self._clients)
            # While all are down, they refuse at once: it leaves the processor to who starts them.
            self._ending.wait(RETRY_SECONDS)
            return None
        header = (answer.header.raft_term if self._ordered else 0, answer.header.revision)
        for before, now, what in zip(self._header, header, ("term", "revision"), strict=True):
            assert now >= before, f"{what} {now} follows {before}: {name} at {self._place}"
        self._header = header
        self.acknowledged += 1
        return answer

    def _fresh(self) -> bytes:
        return b"%d.%d" % (self._number, next(self._numbers))

    def _write(self) -> None:
        value = self._fresh()
        key = b"written/" + value
        if self._ask("KV/Put", pb.PutRequest(key=key, value=value)):
            self.written[key] = value

    def _register(self) -> bytes:
        return self._random.choice(self._registers)

    def _put(self) -> None:
        history, key = self.operations, self._register()
        value = self._fresh()
        invoked = next(self._moments)
        if self._ask("KV/Put", pb.PutRequest(key=key, value=value)):
            history.append(Operation(invoked, next(self._moments), (), ((key, value),)))
        else:
            history.append(Operation(invoked, NEVER, (), ((key, value),), certain=False))

    def _read(self) -> None:
        history, key = self.operations, self._register()
        invoked = next(self._moments)
        answer = self._ask("KV/Range", pb.RangeRequest(key=key))
        if answer:
            found = answer.kvs[0].value if answer.kvs else None
            history.append(Operation(invoked, next(self._moments), ((key, found),), ()))

    def _compare(self) -> None:
        """Change a register if it has the value it had a moment ago."""
        history, key = self.operations, self._register()
        before = self._ask("KV/Range", pb.RangeRequest(key=key, serializable=False))
        if not before or not before.kvs:
            return
        expected, value = before.kvs[0].value, self._fresh()
        read = pb.RequestOp(request_range=pb.RangeRequest(key=key))
        request = pb.TxnRequest(
            compare=[
                pb.Compare(
                    key=key, target=pb.Compare.VALUE, result=pb.Compare.EQUAL, value=expected
                )
            ],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))],
            failure=[read],
        )
        seen, written = ((key, expected),), ((key, value),)
        invoked = next(self._moments)
        answer = self._ask("KV/Txn", request)
        if not answer:
            history.append(Operation(invoked, NEVER, seen, written, certain=False))
        elif answer.succeeded:
            history.append(Operation(invoked, next(self._moments), seen, written))
        else:
            found = answer.responses[0].response_range.kvs[0].value
            history.append(Operation(invoked, next(self._moments), ((key, found),), ()))


class Load:
    """Clerks at work."""

    def __init__(self, cluster: Cluster, clerks: int, *, ordered: bool) -> None:
        self._cluster = cluster
        self._moments = count()
        members = list(cluster)
        # Keys of its own: requests that an earlier load gave up may still be executed.
        load = next(_loads)
        self._registers = [b"register/%d/%d" % (load, number) for number in range(REGISTERS)]
        self._clerks = [
            Clerk(number, members, self._registers, self._moments, ordered=ordered)
            for number in range(clerks)
        ]
        for clerk in self._clerks:
            clerk.start()

    def await_progress(self, acknowledged: int = 20) -> None:
        """Wait until every clerk was served so many times more."""
        goals = [(clerk, clerk.acknowledged + acknowledged) for clerk in self._clerks]
        until("every clerk is served", lambda: all(self._has_reached(*goal) for goal in goals))

    def _has_reached(self, clerk: Clerk, goal: int) -> bool:
        if clerk.error is not None:
            raise clerk.error
        return clerk.acknowledged >= goal

    def end(self) -> None:
        for clerk in self._clerks:
            clerk.end()
        for clerk in self._clerks:
            clerk.join()
        for clerk in self._clerks:
            if clerk.error is not None:
                raise clerk.error

    def check(self) -> None:
        """What was acknowledged is there, and an order explains the registers' histories."""
        (member, *_) = self._cluster
        prefix = pb.RangeRequest(key=b"written/", range_end=b"written0")
        found = {each.key: each.value for each in member.answer("KV/Range", prefix).kvs}
        for clerk in self._clerks:
            lost = clerk.written.items() - found.items()
            assert not lost, f"acknowledged and lost: {sorted(lost)}"
        history = [each for clerk in self._clerks for each in clerk.operations]
        for key in self._registers:
            invoked = next(self._moments)
            last = ((key, member.get(key)),)
            history.append(Operation(invoked, next(self._moments), last, ()))
        contradiction = find_contradiction(history)
        assert contradiction is None, f"{contradiction} in {sorted(history)}"


@contextmanager
def load(cluster: Cluster, clerks: int = 4, *, ordered: bool = True) -> Iterator[Load]:
    """Keep clerks at work while the block runs; then mend the cluster, and check everything.

    Of five members, one may answer that has voted in a newer term than the leader's, which two
    others do not know yet: then terms are not `ordered` from member to member.
    """
    everything = pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")
    cluster.leader().answer("KV/DeleteRange", everything)
    made = Load(cluster, clerks, ordered=ordered)
    try:
        yield made
    finally:
        made.end()
    cluster.settle()
    made.check()
    cluster.check_agreement()
