"""Archives in S3, at a server that speaks like it, in a process of its own."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.tools.backup import s3
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.errors import ArchiveError, StoreError
from kvorum.tools.backup.points import find_point
from kvorum.tools.backup.s3 import S3Store
from kvorum.tools.backup.stores import open_store, read_whole
from kvorum.tools.backup.verifying import find_problems
from tests.tools.backup.archives import Scribe, Source, rows_at

pytest.importorskip("botocore")
pytest.importorskip("moto.server")

START = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of a server; a bucket `backups` is there."""
    process = subprocess.Popen(
        [sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        connection = http.client.HTTPConnection(address)
        connection.request("PUT", "/backups")
        assert connection.getresponse().status == 200
        connection.close()
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture
def place(server: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of an archive of one test."""
    name = request.node.name
    return f"s3://backups/{name}?endpoint=http://{server}&region=us-east-1"


def fail(text: str) -> None:
    raise AssertionError(text)


def test_an_archive_is_kept_rotated_and_restored(place: str) -> None:
    store, source = open_store(place), Source(1)
    scribe = Scribe(store, source)
    for _ in range(4):
        scribe.snapshot(2)
        scribe.record(3)
    archive = Archive(store)
    assert len(archive.snapshots) == 2
    assert find_problems(archive, lambda _: None) == []
    for revision in range(archive.snapshots[0].revision, source.revision + 1):
        point = find_point(archive, revision, None, fail)
        assert rows_at(store, point) == source.rows_to(revision)


def test_prefixes_keep_archives_apart(place: str) -> None:
    store, deeper = open_store(place), open_store(place.replace("?", "/deeper?"))
    store.write("a", b"1")
    deeper.write("b", b"2")
    assert deeper.sizes() == {"b": 1}
    assert "b" not in store.sizes()
    store.delete("a")
    store.delete("a")
    with pytest.raises(StoreError, match=r"backups/.*a: .*not exist"):
        read_whole(store, "a")


def test_a_long_file_is_sent_in_parts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = 5 << 20
    monkeypatch.setattr(s3, "PART_BYTES", part)
    store = open_store(place)
    content = bytes(range(256)) * (part // 256) * 2 + b"the rest"
    with store.spool() as spool:
        spool.add(content)
        store.keep(spool, "long")
        local = Path(spool.path)
    assert read_whole(store, "long") == content
    assert not local.exists()


def test_a_server_that_is_not_there_is_reported() -> None:
    store = S3Store.of_url("s3://backups/x?endpoint=http://127.0.0.1:1&region=us-east-1")
    with pytest.raises(StoreError, match="s3://backups/x/"):
        store.sizes()


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket?colour=red"])
def test_urls_that_name_no_place_are_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match="expected s3://bucket/prefix"):
        open_store(url)
