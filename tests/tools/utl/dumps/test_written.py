"""What clients write is what the log of a running member shows, of either kind."""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    InternalRaftRequest,
    PutRequest,
    RequestOp,
    StatusRequest,
    TxnRequest,
)
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.server.rpc.oracle import Oracle
from tests.tools.utl.dumps.conftest import Running
from tests.tools.utl.dumps.runs import objects
from tests.tools.utl.history import Call, ask, connected

SERVERS: list[Running] = [running_etcd, running_kvorum]
KEYS = st.binary(min_size=1, max_size=9)
PUTS = st.builds(PutRequest, key=KEYS, value=st.binary(max_size=99))
DELETIONS = st.builds(DeleteRangeRequest, key=KEYS, range_end=st.just(b"") | KEYS)
STEPS = st.builds(RequestOp, request_put=PUTS) | st.builds(
    RequestOp, request_delete_range=DELETIONS
)
CALLS: st.SearchStrategy[Call] = st.one_of(
    st.tuples(st.just("KV/Put"), PUTS),
    st.tuples(st.just("KV/DeleteRange"), DELETIONS),
    st.tuples(st.just("KV/Txn"), st.builds(TxnRequest, success=st.lists(STEPS, max_size=1))),
)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Path, Oracle]]]:
    with ExitStack() as stack:
        found = []
        for running in SERVERS:
            directory = tmp_path_factory.mktemp("written") / "data"
            server = stack.enter_context(running(directory))
            found.append((directory, stack.enter_context(connected(server.address))))
        yield found


@settings(max_examples=15)
@given(st.lists(CALLS, min_size=1, max_size=12))
def test_the_log_has_what_was_written(
    members: list[tuple[Path, Oracle]], calls: list[Call]
) -> None:
    for directory, client in members:
        before = ask(client, "Maintenance/Status", StatusRequest()).raftIndex
        for name, request in calls:
            ask(client, name, request)
        shown = objects("wal", directory, f"--start-index={before + 1}")
        requests = [written(each) for each in shown if each["kind"] == "entry"]
        # Transactions that change nothing are not written.
        assert [each for each in requests if each is not None] == [
            request
            for name, request in calls
            if name != "KV/Txn" or request.ByteSize()  # one without steps is a read
        ]


def written(entry: dict[str, Any]) -> Any:
    request = InternalRaftRequest.FromString(b64decode(entry["data"]))
    for name in ("put", "delete_range", "txn"):
        if request.HasField(name):
            return getattr(request, name)
    return None
