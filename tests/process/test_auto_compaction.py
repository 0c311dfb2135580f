"""Auto compaction: when it proposes what, over simulated hours; and once for real."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api.errors import COMPACTED, TIMEOUT
from kvorum.api.pb.etcdserverpb import CompactionRequest, RangeRequest, RangeResponse
from kvorum.member.autocompaction import by_age, by_revision
from kvorum.member.waits import Propose, Until
from tests.kvorum import running_kvorum
from tests.process.client import connected
from tests.waiting import WAIT_SECONDS_MAX, until


class Member:
    """What a compaction sees of a member: a clock, a revision, whether it leads."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_leader = True
        self.state = self.store = self
        self.logger = self

    @property
    def revision(self) -> int:
        # Ten revisions a second.
        return int((self.now - 100.0) * 10) + 1

    def info(self, _text: str) -> None:
        pass

    warning = info


def proposals(member: Any, steps: Any, seconds: float, *answers: object) -> list[tuple[float, int]]:
    """Run a procedure for a while; return when it proposed which revision."""
    end = member.now + seconds
    queue = list(answers)
    found: list[tuple[float, int]] = []
    wait = next(steps)
    while True:
        if isinstance(wait, Until):
            if wait.moment > end:
                return found
            member.now = wait.moment
            wait = steps.send(None)
        else:
            assert isinstance(wait, Propose)
            revision = CompactionRequest.FromString(wait.body).revision
            found.append((round(member.now - 100.0, 3), revision))
            wait = steps.send(queue.pop(0) if queue else b"")


@example(25201.0)
@given(st.floats(1, 100_000))
def test_by_age_keeps_at_least_the_retention_and_not_much_more(retention: float) -> None:
    member = Member()
    interval = min(retention, 3600.0)
    found = proposals(member, by_age(member, retention), 3 * retention + 3 * interval)  # type: ignore[arg-type]
    assert len(found) >= 3
    for moment, revision in found:
        age = moment - (revision - 1) / 10
        assert retention - 0.01 <= age <= retention + interval / 10 + 0.2
    pauses = [after[0] - before[0] for before, after in pairwise(found)]
    assert found[0][0] == pytest.approx(retention, abs=1.05 * interval / 10)
    assert pauses == pytest.approx([interval] * len(pauses), abs=1.05 * interval / 10)


def test_a_failure_is_tried_again_and_compacted_is_fine() -> None:
    member = Member()
    found = proposals(member, by_age(member, 10.0), 21.5, TIMEOUT, COMPACTED)  # type: ignore[arg-type]
    assert [moment for moment, _ in found] == [10.0, 11.0, 21.0]


def test_only_the_leader_proposes_and_nothing_twice() -> None:
    member = Member()
    member.is_leader = False
    assert proposals(member, by_age(member, 10.0), 100.0) == []  # type: ignore[arg-type]
    assert proposals(member, by_revision(member, 10, 300.0), 1000.0) == []  # type: ignore[arg-type]


def test_by_revision_at_every_check() -> None:
    member = Member()
    found = proposals(member, by_revision(member, 100, 300.0), 1000.0)  # type: ignore[arg-type]
    assert found == [(300.0, 2901), (600.0, 5901), (900.0, 8901)]
    assert proposals(member, by_revision(member, 10**9, 300.0), 1000.0) == []  # type: ignore[arg-type]


def test_old_revisions_go_by_themselves(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "data", "--auto-compaction-retention=500ms") as server,
        connected(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        first = client.put(b"key", b"0")
        read = channel.unary_unary(
            "/etcdserverpb.KV/Range", RangeRequest.SerializeToString, RangeResponse.FromString
        )

        def refusal() -> str | None:
            client.put(b"key", b"again")
            try:
                read(RangeRequest(key=b"key", revision=first), timeout=WAIT_SECONDS_MAX)
            except grpc.RpcError as error:
                return str(error.details())
            return None

        assert until("the first revision is compacted", refusal) == COMPACTED.text
