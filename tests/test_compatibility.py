"""The compatibility page names every RPC, and its claims about the server are true."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvorum.api.descriptors import Method, methods
from kvorum.server.rpc.table import RPCS, RpcKind
from tests.kvorum import running_kvorum
from tests.waiting import WAIT_SECONDS_MAX

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
ROW = re.compile(r"^\| (\w+\.\w+) \| (works|in part|not yet) \|(.*)\|$", re.M)
KINDS = {
    RpcKind.UNARY: "unary",
    RpcKind.SERVER_STREAM: "server stream",
    RpcKind.BOTH_WAYS: "both ways",
}
TABLE = {rpc.path: rpc for rpc in RPCS}


def name_of(method: Method) -> str:
    return method.path.split(".", 1)[1].replace("/", ".")


@pytest.fixture(scope="module", params=["", "python"], ids=["usual", "python"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[grpc.Channel]:
    """A running `kvorum` with the usual edge or the pure one, and a channel to it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setenv("KVORUM_EDGE", request.param)
        with (
            running_kvorum(tmp_path_factory.mktemp("data")) as kvorum,
            grpc.insecure_channel(kvorum.address) as channel,
        ):
            yield channel


def test_every_rpc_has_a_row() -> None:
    assert sorted(name for name, _, _ in ROW.findall(PAGE.read_text())) == sorted(
        name_of(method) for method in methods()
    )


def test_every_row_is_as_the_table_of_calls_has_it() -> None:
    paths = {name_of(method): method.path for method in methods()}
    for name, state, rest in ROW.findall(PAGE.read_text()):
        rpc = TABLE.get(paths[name])
        assert (rpc is None) == (state == "not yet"), name
        cells = [cell.strip() for cell in rest.split("|")][:3]
        if rpc is None:
            assert cells == ["", "", ""], name
        else:
            assert cells == [KINDS[rpc.kind], rpc.learner.value, rpc.permission.value], name


def test_what_is_not_there_says_so(server: grpc.Channel) -> None:
    states = {name: state for name, state, _ in ROW.findall(PAGE.read_text())}
    for method in methods():
        answer = server.stream_stream(method.path)(iter([b"\xff"]), timeout=WAIT_SECONDS_MAX)
        implemented = answer.code() != grpc.StatusCode.UNIMPLEMENTED
        assert implemented == (states[name_of(method)] != "not yet"), method.path
