"""The Snapshot call: what travels, while others write, and what is left behind when it breaks."""

import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import (
    HashKVRequest,
    PutRequest,
    RequestOp,
    SnapshotRequest,
    SnapshotResponse,
    TxnRequest,
)
from kvorum.server.rpc.snapshot import IMAGES_MAX
from kvorum.storage.backend.bbolt import open_image
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.files.real import RealFiles
from tests.kvorum import Kvorum, running_kvorum
from tests.server.rpc.oracle import Oracle, status_of
from tests.tools.utl.history import ask, connected
from tests.waiting import WAIT_SECONDS_MAX, until

BLOB_BYTES = 256 * 1024
LARGE_PUTS = 16


def call(client: Oracle) -> Any:
    open_call = client.channel.unary_stream(
        "/etcdserverpb.Maintenance/Snapshot",
        SnapshotRequest.SerializeToString,
        SnapshotResponse.FromString,
    )
    return open_call(SnapshotRequest(), timeout=WAIT_SECONDS_MAX)


def fill(client: Oracle) -> None:
    """Put so much that a snapshot does not fit into what a connection buffers."""
    for number in range(LARGE_PUTS):
        value = bytes([number]) * 1_000_000
        ask(client, "KV/Put", PutRequest(key=b"large%02d" % number, value=value))


def helper_of(server: Kvorum) -> int:
    pid = server.process.pid
    (helper,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(helper)


@contextmanager
def halted_helper(server: Kvorum, client: Oracle) -> Iterator[int]:
    """Let the helper do nothing for as long as the block takes."""
    ask(client, "Maintenance/HashKV", HashKVRequest(revision=1))  # starts it, if it has not run
    helper = helper_of(server)
    os.kill(helper, signal.SIGSTOP)
    # A read that the signal interrupts still takes what arrives before the process stands still.
    status = Path(f"/proc/{helper}/status")
    until("the helper stands still", lambda: "\nState:\tT" in status.read_text())
    try:
        yield helper
    finally:
        with suppress(ProcessLookupError):
            os.kill(helper, signal.SIGCONT)


def await_job(helper: int) -> None:
    """Return when the server has sent a job that the halted helper has not read."""
    with Path(f"/proc/{helper}/fd/0").open("rb", buffering=0) as jobs:
        assert select.select([jobs], [], [], WAIT_SECONDS_MAX)[0], "the helper got no job"


def temporary_files(data: Path) -> list[str]:
    return [path.name for path in (data / "member" / "snap").glob("tmp*")]


def wait_for_helper(client: Oracle) -> None:
    """Return when the helper has done all that it was given before."""
    ask(client, "Maintenance/HashKV", HashKVRequest(revision=1))


@pytest.mark.long
def test_blobs_come_with_what_remains_and_end_with_their_digest(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server, connected(server.address) as client:
        for number in range(600):
            ask(client, "KV/Put", PutRequest(key=b"%d" % number, value=b"v" * 1000))
        *blobs, digest = call(client)
        content = b"".join(response.blob for response in blobs)
        assert len(content) % 4096 == 0 and len(content) > 600_000
        assert {len(response.blob) for response in blobs[:-1]} == {BLOB_BYTES}
        remaining = len(content)
        for response in blobs:
            remaining -= len(response.blob)
            assert response.remaining_bytes == remaining
        assert digest.blob == sha256(content).digest() and digest.remaining_bytes == 0
        assert not any(response.HasField("header") for response in (*blobs, digest))
        versions = {response.version for response in (*blobs, digest)}
        assert versions <= {"", "3.7.0"} and len(versions) == 1
        wait_for_helper(client)
        assert temporary_files(tmp_path / "data") == []
    assert any("successfully sent database snapshot to client" in each for each in server.lines)


def test_a_snapshot_is_of_one_moment_while_others_write(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server, connected(server.address) as client:
        fill(client)
        is_over, has_begun = threading.Event(), threading.Event()

        def write() -> None:
            with connected(server.address) as writer:
                while not is_over.is_set():
                    puts = [
                        RequestOp(request_put=PutRequest(key=key)) for key in (b"a", b"b", b"c")
                    ]
                    ask(writer, "KV/Txn", TxnRequest(success=puts))
                    has_begun.set()

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            assert has_begun.wait(WAIT_SECONDS_MAX), "nobody writes"
            content = b"".join(response.blob for response in call(client))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    path = tmp_path / "saved"
    path.write_bytes(content)
    image = open_image(RealFiles(), str(path), len(content) - 32)
    rows = Counter(parse_row_key(key) >> 32 for key, _ in image.items(b"key"))
    image.close()
    sizes = [rows[main] for main in sorted(rows)]
    assert sizes[:LARGE_PUTS] == [1] * LARGE_PUTS
    assert set(sizes[LARGE_PUTS:]) == {3}
    assert sorted(rows) == list(range(2, max(rows) + 1))


def test_images_do_not_fill_the_disk_however_many_ask(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as server, connected(server.address) as client:
        fill(client)
        streams = []
        for _ in range(IMAGES_MAX):
            streams.append(call(client))
            next(streams[-1])
        assert len(temporary_files(data)) == IMAGES_MAX
        # Those are not read on, so the last one waits until one of them goes away: if this test
        # stands still for seconds, the server ends both for it.
        streams.append(call(client))
        wait_for_helper(client)
        assert len(temporary_files(data)) <= IMAGES_MAX
        streams[0].cancel()
        next(streams[-1])
        wait_for_helper(client)
        assert len(temporary_files(data)) <= IMAGES_MAX
        for stream in streams[1:]:
            stream.cancel()


@pytest.mark.long
def test_a_crash_on_the_way_leaves_a_file_that_the_next_start_removes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as server, connected(server.address) as client:
        fill(client)
        # Nobody takes what is sent, so the file is there until the server is not.
        stream = call(client)
        next(stream)
        assert temporary_files(data) == ["tmp.snapshot.1"]
        server.process.send_signal(signal.SIGKILL)
        with pytest.raises(grpc.RpcError):
            list(stream)
    assert temporary_files(data) == ["tmp.snapshot.1"]
    with running_kvorum(data) as server, connected(server.address) as client:
        assert temporary_files(data) == []
        assert len(list(call(client))) > LARGE_PUTS * 1_000_000 // BLOB_BYTES


def test_the_file_of_a_client_that_went_away_is_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as server, connected(server.address) as client:
        fill(client)
        with halted_helper(server, client):
            early = call(client)
            # Behind it on the same connection, so the server knows of the call before.
            ask(client, "KV/Put", PutRequest(key=b"key"))
            early.cancel()
        stream = call(client)
        next(stream)
        stream.cancel()
        until("the files of both calls are removed", lambda: not temporary_files(data))


def test_a_helper_that_dies_fails_the_call_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as server, connected(server.address) as client:
        with halted_helper(server, client) as helper:
            stream = call(client)
            ask(client, "KV/Put", PutRequest(key=b"key", value=b"value"))
            # A job that was not sent yet would go to the next helper, and succeed.
            await_job(helper)
            os.kill(helper, signal.SIGKILL)
            with pytest.raises(grpc.RpcError) as raised:
                list(stream)
        status = status_of(raised.value)
        assert isinstance(status, Status) and status.code == Code.UNKNOWN
        assert "cannot make a snapshot" in status.text
        # The next call has a new helper.
        assert len(list(call(client))) >= 2
        wait_for_helper(client)
        assert temporary_files(data) == []
