"""Keep-alives through a proxy: what members are asked, and who is answered."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.proxy.leases import ANSWER_SECONDS_MAX
from kvorum.server.rpc.interface import OK
from tests.proxy.standing import ADDRESS, ClientStream, Standing
from tests.server.rpc.guarded import Guarded

PATH = rpcs.LEASE_KEEP_ALIVE.path
LEASES = (7, 8)
TTL = 60

steps = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3), st.sampled_from(LEASES)),
    st.tuples(st.just("ask"), st.integers(0, 3), st.just(LEASES[0])),
    st.tuples(st.just("leave"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("arrive"), st.just(0), st.integers(1, 3)),
    st.tuples(st.just("turn"), st.just(0), st.just(0)),
    st.tuples(st.just("settle"), st.just(0), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
)


class _Renewals:
    """Counts the questions that leave the proxy, by lease."""

    def __init__(self, standing: Standing) -> None:
        self.sent: Counter[int] = Counter()
        send = standing.upstream.send

        def noted(batch: Any) -> None:
            for _, message in batch:
                self.sent[pb.LeaseKeepAliveRequest.FromString(message).ID] += 1
            send(batch)

        standing.upstream.send = noted  # type: ignore[method-assign]


def _granted(**settings_: Any) -> Standing:
    standing = Standing(**settings_)
    for lease in LEASES:
        standing.call_member(rpcs.LEASE_GRANT.path, pb.LeaseGrantRequest(ID=lease, TTL=TTL))
    return standing


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=40))
def test_every_question_is_answered_by_a_renewal_that_was_asked_for_after_it(
    taken: list[tuple[str, int, int]],
) -> None:
    standing = _granted(cache_bytes_max=0)
    renewals = _Renewals(standing)
    clients: list[ClientStream] = [standing.stream(PATH) for _ in range(4)]
    questions: dict[tuple[int, int], list[int]] = {}
    asked: Counter[int] = Counter()
    for what, place, detail in taken:
        client = clients[place]
        match what:
            case "ask":
                # A renewal for this question is none of those that have left already.
                questions.setdefault((client.call, detail), []).append(renewals.sent[detail])
                asked[detail] += 1
                client.send(pb.LeaseKeepAliveRequest(ID=detail))
            case "leave":
                client.leave()
                for lease in LEASES:
                    questions.pop((client.call, lease), None)
                clients[place] = standing.stream(PATH)
            case "arrive":
                standing.upstream.arrive(detail)
            case "turn":
                standing.turn()
            case "settle":
                standing.settle()
            case "lose":
                standing.upstream.lose_all()
        _check(clients, questions, renewals)
    standing.pass_time(2, step=0.25)
    _check(clients, questions, renewals)
    assert not any(questions.values())
    if not any(what == "lose" for what, _, _ in taken):
        assert all(renewals.sent[lease] <= asked[lease] for lease in LEASES)
    # Nobody asks any more, so nothing is renewed any more.
    before = Counter(renewals.sent)
    standing.pass_time(TTL / 2, step=5.0)
    assert renewals.sent == before


def _check(
    clients: list[ClientStream], questions: dict[tuple[int, int], list[int]], renewals: _Renewals
) -> None:
    for client in clients:
        for answer in client.received():
            assert answer.TTL == TTL
            before = questions[client.call, answer.ID].pop(0)
            assert renewals.sent[answer.ID] > before


def test_many_who_ask_at_once_cost_two_renewals() -> None:
    standing = _granted(cache_bytes_max=0)
    renewals = _Renewals(standing)
    clients = [standing.stream(PATH) for _ in range(100)]
    for client in clients:
        client.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    standing.settle()
    assert [len(client.received()) for client in clients] == [1] * 100
    assert renewals.sent[LEASES[0]] == 2
    assert standing.upstream.opened == 1


def test_a_lease_that_is_gone_has_no_time_left() -> None:
    standing = _granted()
    client = standing.stream(PATH)
    client.send(pb.LeaseKeepAliveRequest(ID=99))
    standing.settle()
    (answer,) = client.received()
    assert (answer.ID, answer.TTL) == (99, 0)


def test_half_closed_streams_end_after_their_last_answer() -> None:
    standing = _granted()
    client = standing.stream(PATH)
    client.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    client.half_close()
    assert client.status is None
    standing.settle()
    assert len(client.received()) == 1
    assert client.status == OK


def test_what_cannot_be_read_ends_its_stream_alone() -> None:
    standing = _granted()
    well, ill = standing.stream(PATH), standing.stream(PATH)
    ill.send_bytes(b"\xff\xff\xff")
    well.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    standing.settle()
    assert ill.status is not None
    assert ill.status.code is Code.INTERNAL
    assert len(well.received()) == 1


def test_a_member_that_does_not_answer_ends_the_stream() -> None:
    standing = _granted()
    client = standing.stream(PATH)
    client.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    standing.settle()
    client.received()
    standing.members.clear()
    standing.upstream.lose_all()
    client.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    standing.pass_time(ANSWER_SECONDS_MAX + 1, step=0.5)
    assert client.status is not None
    assert client.status.code is Code.UNAVAILABLE


def test_each_identity_renews_for_itself() -> None:
    member = Guarded()
    root, user = ({"token": member.log_in(name).encode()} for name in ("root", "u"))
    for lease in LEASES:
        member.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=TTL), root)
    member.ask("KV/Put", pb.PutRequest(key=b"zzz", lease=LEASES[1]), root)
    standing = Standing({ADDRESS: member})
    streams: dict[str, ClientStream] = {
        "root": standing.stream(PATH, root),
        "u": standing.stream(PATH, user),
        "another of u": standing.stream(PATH, user),
        "nobody": standing.stream(PATH),
    }
    for stream in streams.values():
        stream.send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    standing.settle()
    answered = {name: [each.TTL for each in stream.received()] for name, stream in streams.items()}
    assert answered == {"root": [TTL], "u": [TTL], "another of u": [TTL], "nobody": []}
    assert streams["nobody"].status == errors.USER_EMPTY
    # What one may not renew ends no other's stream.
    streams["u"].send(pb.LeaseKeepAliveRequest(ID=LEASES[1]))
    streams["another of u"].send(pb.LeaseKeepAliveRequest(ID=LEASES[0]))
    streams["root"].send(pb.LeaseKeepAliveRequest(ID=LEASES[1]))
    standing.settle()
    ends: dict[str, Status | None] = {name: each.status for name, each in streams.items()}
    assert ends["u"] == errors.PERMISSION_DENIED
    assert ends["another of u"] is None
    assert ends["root"] is None
    assert [each.TTL for each in streams["another of u"].received()] == [TTL]
    assert [each.TTL for each in streams["root"].received()] == [TTL]
