"""`export` and `import`: everything comes back, whatever interrupts them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvorum.tools.ctl import batches, exporting, importing, pages
from tests.tools.ctl.duel import run_here
from tests.tools.ctl.store import Store

KEYS = st.binary(min_size=1, max_size=5) | st.text(min_size=1, max_size=4).map(str.encode)
VALUES = st.binary(max_size=8) | st.text(max_size=8).map(str.encode)
FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def empty(store: Store) -> None:
    store.clear()


def fill(store: Store, state: dict[bytes, bytes]) -> None:
    for key, value in state.items():
        store.client.put(key, value)


@FEW
@example(state={b"a": b"1", b"a\0": b"2"}, page=1, batch=1)
@given(
    state=st.dictionaries(KEYS, VALUES, max_size=8), page=st.integers(1, 3), batch=st.integers(1, 3)
)
def test_an_export_makes_the_same_keys_of_an_empty_store(
    store: Store, state: dict[bytes, bytes], page: int, batch: int
) -> None:
    store.clear()
    fill(store, state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_KEYS", page)
        patch.setattr(batches, "KEYS_MAX", batch)
        exported = store.run("export").out
        store.clear()
        told = store.run("import", stdin=exported).out
        assert told == b"%d keys put, 0 were equal\n" % len(state)
        assert store.content() == state
        revision = store.revision
        told = store.run("import", stdin=exported).out
        assert told == b"0 keys put, %d were equal\n" % len(state)
        assert store.revision == revision


def test_the_lines_are_of_one_revision(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, {b"x/%d" % number: b"old" for number in range(5)})
    store.client.put("y", "another")
    monkeypatch.setattr(pages, "PAGE_KEYS", 1)
    monkeypatch.setattr(pages, "PAGE_KEYS_MAX", 1)
    revision = store.revision
    keys_at = pages.keys_at

    def disturbed(*arguments: Any) -> Iterator[Any]:
        for kv in keys_at(*arguments):
            yield kv
            store.client.put(b"x/4", b"new")
            store.client.put(kv.key + b"+", b"new")

    monkeypatch.setattr(exporting, "keys_at", disturbed)
    first, *lines, last = store.lines("export", "--prefix", "x/")
    assert first == {"export": 1, "revision": revision, "prefix": "x/"}
    assert [line["key"] for line in lines] == [f"x/{number}" for number in range(5)]
    assert {line["value"] for line in lines} == {"old"}
    assert lines[0] == {
        "key": "x/0",
        "value": "old",
        "create_revision": revision - 5,
        "mod_revision": revision - 5,
        "version": 1,
    }
    assert last == {"end": True, "keys": 5}


def test_an_older_revision(store: Store) -> None:
    store.client.put("a", "1")
    revision = store.revision
    store.client.put("a", "2")
    lines = store.lines("export", f"--rev={revision}")
    assert lines[0]["revision"] == revision
    assert lines[1]["value"] == "1"


def test_an_interrupted_export_goes_on(store: Store, tmp_path: Path) -> None:
    fill(store, {b"k\xff%d" % number: b"%d" % number for number in range(7)})
    whole, path = tmp_path / "whole", tmp_path / "file"
    store.run("export", str(whole))
    expected = whole.read_bytes()
    part = tmp_path / "file.part"
    for cut in range(0, len(expected) + 1, 7):
        part.write_bytes(expected[:cut])
        # What came since is of another revision, and not in it; unless nothing was written yet.
        words = ("--rev", str(json.loads(expected.partition(b"\n")[0])["revision"]))
        store.client.put("later", "x")
        store.run("export", str(path), *(words if cut < 60 else ()))
        assert path.read_bytes() == expected
        assert not part.exists()
        path.unlink()


def test_a_part_of_something_else_is_not_taken_up(store: Store, tmp_path: Path) -> None:
    path, part = tmp_path / "file", tmp_path / "file.part"
    for content, words, told in (
        (b"hello\n", (), b"no part of an export"),
        (b'{"export":1,"revision":1,"prefix":"other"}\n', (), b"another prefix"),
        (b'{"export":1,"revision":1,"prefix":""}\n', ("--rev=2",), b"of revision 1, not 2"),
    ):
        part.write_bytes(content)
        code = 3 if b"hello" in content else 128
        assert told in store.run("export", str(path), *words, code=code).err
        assert part.read_bytes() == content
    path.touch()
    assert b"exists" in store.run("export", str(path), code=128).err
    missing = tmp_path / "none" / "file"
    assert b"cannot write" in store.run("export", str(missing), code=3).err


def test_an_interrupted_import_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {b"k%d" % number: b"v" for number in range(9)}
    fill(store, state)
    exported = store.run("export").out
    store.clear()
    monkeypatch.setattr(batches, "KEYS_MAX", 2)
    count = 0
    put = importing._put

    def interrupted(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise SystemExit(9)
        put(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_put", interrupted)
        store.run("import", stdin=exported, code=9)
    assert len(store.content()) == 4
    assert store.run("import", stdin=exported).out == b"5 keys put, 4 were equal\n"
    assert store.content() == state


def test_a_part_of_an_export(store: Store, tmp_path: Path) -> None:
    fill(store, {b"a/1": b"", b"b/1": b"", b"b/2": b""})
    store.run("export", str(tmp_path / "file"))
    store.clear()
    store.client.put("mine", "stays")
    store.client.put("b/1", "other")
    told = store.run("import", "--prefix=b/", str(tmp_path / "file")).out
    assert told == b"2 keys put, 0 were equal\n"
    assert store.content() == {b"b/1": b"", b"b/2": b"", b"mine": b"stays"}


def test_leases_are_reported(store: Store) -> None:
    lease = store.client.lease(600)
    store.client.put("a", "1", lease=lease.id)
    store.client.put("b", "2", lease=lease.id)
    store.client.put("c", "3")
    exported = store.run("export").out
    told = [json.loads(line) for line in exported.splitlines() if b"ttl" in line]
    assert told == [{"lease": f"{lease.id:x}", "ttl": 600}]

    def imported(how: str) -> dict[bytes, int]:
        store.clear()
        store.run("import", "--leases", how, stdin=exported)
        return {kv.key: kv.lease for kv in store.client.range(prefix=b"")}

    assert imported("skip") == {b"c": 0}
    assert imported("drop") == {b"a": 0, b"b": 0, b"c": 0}
    assert imported("grant") == {b"a": lease.id, b"b": lease.id, b"c": 0}
    lease.revoke()
    assert imported("grant") == {b"a": lease.id, b"b": lease.id, b"c": 0}
    assert b"0 keys put, 3 were equal" in store.run("import", "--leases=grant", stdin=exported).out
    assert b"; 2 had a lease, and have none now" in store.run("import", stdin=exported).out


HEAD = b'{"export":1,"revision":1,"prefix":""}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", b"has no line"),
        (b"hello\n", b"line 1"),
        (b"[]\n", b"no object"),
        (b'{"export":2}\n', b"no export of form 1"),
        (HEAD + b'{"key":1,"value":""}\n', b'line 2: neither "key"'),
        (HEAD + b'{"key":"a"}\n', b'neither "value"'),
        (HEAD + b'{"key":"a","value_base64":"?"}\n', b"no base64"),
        (HEAD + b'{"key":"a","value":"\\ud800"}\n', b"no text"),
        (HEAD + b'{"key":"a","value":"","lease":"zz"}\n', b"invalid syntax"),
        (HEAD + b'{"end":true,"keys":3}\n', b"3 keys are announced, 0 were there"),
        (HEAD + b'{"end":true,"keys":0}\n{"key":"a","value":""}\n', b"behind the last line"),
        (HEAD + b'{"key":"a","value":""}\n', b"cut off"),
        (HEAD + b'{"key":"a","val', b"cut off"),
    ],
)
def test_a_file_that_is_no_export_is_refused(store: Store, text: bytes, told: bytes) -> None:
    assert told in store.run("import", stdin=text, code=3).err


def test_misuse_is_reported(store: Store) -> None:
    assert b"--leases what" in store.run("import", "--leases=what", code=128).err
    assert b"one argument" in store.run("import", "a", "b", code=128).err
    assert b"one argument" in store.run("export", "a", "b", code=128).err
    assert b"cannot read nosuch" in store.run("import", "nosuch", code=3).err


def test_a_cluster_that_is_gone_is_reported(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(HEAD + b'{"key":"a","value":""}\n{"end":true,"keys":1}\n')
    gone = ["--endpoints=127.0.0.1:1", "--command-timeout=100ms"]
    for words in (["import", str(path)], ["export", str(tmp_path / "new")], ["export"]):
        ended = run_here([*gone, *words])
        assert ended.code == 1 and ended.err.startswith(b"Hint: no endpoint could be reached")
        assert ended.err.endswith(b"\nError: context deadline exceeded\n")
    assert store.content() == {}


def test_a_full_disk_is_reported_and_the_partial_export_is_continued(
    store: Store, tmp_path: Path
) -> None:
    fill(store, {b"k%03d" % number: b"x" * 100 for number in range(40)})
    path = tmp_path / "file"
    words = [sys.executable, "-m", "kvorum.tools.ctl.main", f"--endpoints={store.address}"]
    # No file may be longer than so many blocks.
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *words, "export", str(path)]
    done = subprocess.run(limited, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr == f"Error: cannot write {path}: File too large\n".encode()
    assert not path.exists()
    assert (tmp_path / "file.part").stat().st_size > 0
    store.run("export", str(path))
    assert path.read_bytes().count(b"\n") == 42
