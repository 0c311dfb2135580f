"""The compatibility page names every RPC, and its claims about the server are true."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvorum.api.descriptors import Method, methods
from kvorum.api.pb.etcdserverpb import PutRequest, PutResponse, RangeRequest, RangeResponse

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
WAIT_SECONDS = 20
ROW = re.compile(r"^\| (\w+\.\w+) \| (works|in part|not yet) \|", re.M)


def name_of(method: Method) -> str:
    return method.path.split(".", 1)[1].replace("/", ".")


@pytest.fixture(scope="module", params=["", "python"], ids=["usual", "python"])
def server(request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    """A running `kvorum` with the usual edge or the pure one, and a channel to it."""
    environment = os.environ | ({"KVORUM_EDGE": request.param} if request.param else {})
    command = [str(Path(sys.executable).parent / "kvorum"), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = re.search(r"address=(\S+) edge=(\S+)", process.stderr.readline())
        assert address is not None
        with grpc.insecure_channel(address[1]) as channel:
            yield channel
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0
        assert "stopped" in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


@pytest.mark.parametrize("edge", ["", "python"], ids=["usual", "python"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_server_stops_when_it_is_told_to(edge: str, number: signal.Signals) -> None:
    command = [str(Path(sys.executable).parent / "kvorum"), "--listen", "127.0.0.1:0"]
    environment = os.environ | ({"KVORUM_EDGE": edge} if edge else {})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "serving client requests" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 0


def test_an_address_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        command = [str(Path(sys.executable).parent / "kvorum"), "--listen", address]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
        )
    assert done.returncode == 1
    assert done.stderr == f"kvorum: cannot listen at {address}: Address already in use\n"


def test_every_rpc_has_a_row() -> None:
    assert sorted(name for name, _ in ROW.findall(PAGE.read_text())) == sorted(
        name_of(method) for method in methods()
    )


def test_what_is_not_there_says_so(server: grpc.Channel) -> None:
    states = dict(ROW.findall(PAGE.read_text()))
    for method in methods():
        answer = server.stream_stream(method.path)(iter([b""]), timeout=WAIT_SECONDS)
        implemented = answer.code() != grpc.StatusCode.UNIMPLEMENTED
        assert implemented == (states[name_of(method)] != "not yet"), method.path


def test_put_and_range_of_one_key(server: grpc.Channel) -> None:
    def put(request: PutRequest) -> PutResponse:
        call = server.unary_unary(
            "/etcdserverpb.KV/Put", PutRequest.SerializeToString, PutResponse.FromString
        )
        return call(request, timeout=WAIT_SECONDS)  # type: ignore[no-any-return]

    def get(request: RangeRequest) -> RangeResponse:
        call = server.unary_unary(
            "/etcdserverpb.KV/Range", RangeRequest.SerializeToString, RangeResponse.FromString
        )
        return call(request, timeout=WAIT_SECONDS)  # type: ignore[no-any-return]

    revision = put(PutRequest(key=b"k", value=b"1")).header.revision
    assert put(PutRequest(key=b"k", value=b"2")).header.revision == revision + 1
    (kv,) = get(RangeRequest(key=b"k")).kvs
    assert (kv.value, kv.create_revision, kv.mod_revision, kv.version) == (
        b"2",
        revision,
        revision + 1,
        2,
    )
    assert get(RangeRequest(key=b"other")).count == 0
    with pytest.raises(grpc.RpcError) as refused:
        put(PutRequest(value=b"no key"))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "etcdserver: key is not provided"


def test_bytes_that_are_no_message(server: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.unary_unary("/etcdserverpb.KV/Put")(b"\xff\xff", timeout=WAIT_SECONDS)
    assert refused.value.code() == grpc.StatusCode.INTERNAL
    assert refused.value.details().startswith("grpc: error unmarshalling request: ")
