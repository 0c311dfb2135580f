"""Contenders for a lock and a leadership: the same calls to our program and to etcd."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    LeaderRequest,
    ProclaimRequest,
    ResignRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from tests.server.rpc.oracle import Oracle, by_name, running_oracle, status_of
from tests.servers import PROXIED
from tests.waiting import WAIT_SECONDS_MAX, until

LEASES = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=["kvorum", *PROXIED])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Oracle]]:
    directory = tmp_path_factory.mktemp("ours") / "data"
    with (
        running_oracle(directory, "--unsafe-no-fsync", kind=request.param) as ours,
        running_oracle(tmp_path_factory.mktemp("etcd")) as etcd,
    ):
        yield [ours, etcd]


class Story:
    """Calls to one server, and their answers."""

    def __init__(self, server: Oracle) -> None:
        self._server = server
        self.seen: list[Any] = []
        for lease in LEASES:
            server.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=600))

    def begin(self, name: str, request: Message) -> Any:
        method = by_name(name)
        call = self._server.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call.future(request, timeout=WAIT_SECONDS_MAX)

    def ask(self, name: str, request: Message) -> Any:
        answer = self._server.ask(name, request)
        self.note(answer)
        return answer

    def end(self, call: Any) -> Any:
        """Wait for the end of a call that was begun."""
        try:
            answer = call.result()
        except grpc.RpcError as error:
            answer = status_of(error)
        self.note(answer)
        return answer

    def note(self, answer: Any) -> None:
        if not isinstance(answer, Status):
            answer.header.raft_term = 0
        self.seen.append(answer)

    def await_queue(self, name: bytes, *keys: bytes) -> None:
        """Wait until exactly these keys are under a name, in the order of their creation."""
        request = pb.RangeRequest(
            key=name + b"/",
            range_end=name + b"0",
            sort_order=pb.RangeRequest.ASCEND,
            sort_target=pb.RangeRequest.CREATE,
        )
        wanted = [name + b"/" + key for key in keys]

        def queue() -> Any:
            found: Any = self._server.ask("KV/Range", request)
            return found if [kv.key for kv in found.kvs] == wanted else None

        self.note(until(f"the keys under {name!r} are {wanted}", queue))


def locks(story: Story) -> None:
    held = story.ask("Lock/Lock", LockRequest(name=b"l", lease=1))
    second = story.begin("Lock/Lock", LockRequest(name=b"l", lease=2))
    story.await_queue(b"l", b"1", b"2")
    third = story.begin("Lock/Lock", LockRequest(name=b"l", lease=3))
    story.await_queue(b"l", b"1", b"2", b"3")
    fourth = story.begin("Lock/Lock", LockRequest(name=b"l", lease=4))
    story.await_queue(b"l", b"1", b"2", b"3", b"4")
    second.cancel()
    story.await_queue(b"l", b"1", b"3", b"4")
    # The lease of a waiting call ends, which it notices when its turn comes.
    story.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=4))
    story.ask("Lock/Unlock", UnlockRequest(key=held.key))
    key = story.end(third).key
    story.ask("Lock/Unlock", UnlockRequest(key=key))
    story.end(fourth)
    story.await_queue(b"l")


def elections(story: Story) -> None:
    first = story.ask("Election/Campaign", CampaignRequest(name=b"e", lease=1, value=b"one"))
    second = story.begin("Election/Campaign", CampaignRequest(name=b"e", lease=2, value=b"two"))
    story.await_queue(b"e", b"1", b"2")
    third = story.begin("Election/Campaign", CampaignRequest(name=b"e", lease=3, value=b"three"))
    story.await_queue(b"e", b"1", b"2", b"3")
    story.ask("Election/Proclaim", ProclaimRequest(leader=first.leader, value=b"one again"))
    story.ask("Election/Leader", LeaderRequest(name=b"e"))
    second.cancel()
    story.await_queue(b"e", b"1", b"3")
    story.ask("Election/Resign", ResignRequest(leader=first.leader))
    story.end(third)
    story.ask("Election/Leader", LeaderRequest(name=b"e"))
    story.ask("Election/Proclaim", ProclaimRequest(leader=first.leader, value=b"late"))
    story.ask("Election/Resign", ResignRequest(leader=first.leader))
    # A leader whose lease ends is leader no more.
    story.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=3))
    story.ask("Election/Leader", LeaderRequest(name=b"e"))


@pytest.mark.parametrize("tell", [locks, elections])
def test_the_same_story(servers: list[Oracle], tell: Callable[[Story], None]) -> None:
    ours, theirs = (Story(server) for server in servers)
    tell(ours)
    tell(theirs)
    assert ours.seen == theirs.seen
    for server in servers:
        for lease in LEASES:
            server.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease))
