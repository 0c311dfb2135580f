"""`diff` and `revert`: what changed between revisions, and going back."""

import subprocess
from base64 import b64decode
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvorum.tools.ctl import batches, diffs, pages, reverting
from tests.tools.ctl.store import Store

KEYS = st.sampled_from([b"d/a", b"d/a\0", b"d/a/b", b"d/b", b"d/\xff", b"d/\x1b", b"d/c"])
VALUES = st.binary(max_size=6) | st.text("ab\n", max_size=6).map(str.encode)
STATES = st.dictionaries(KEYS, VALUES, max_size=6)
FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def become(store: Store, state: dict[bytes, bytes]) -> int:
    """Let the keys below d/ be these; return the revision."""
    for key in store.content(b"d/").keys() - state.keys():
        store.client.delete(key)
    for key, value in state.items():
        store.client.put(key, value)
    return store.revision


def bytes_in(fields: dict[str, Any], name: str) -> bytes:
    if f"{name}_base64" in fields:
        return b64decode(fields[f"{name}_base64"])
    return str(fields[name]).encode()


@FEW
@example(one={b"d/a": b"1", b"d/a\0": b"1"}, other={}, page=1)
@given(one=STATES, other=STATES, page=st.integers(1, 3))
def test_a_diff_makes_one_state_of_the_other(
    store: Store, one: dict[bytes, bytes], other: dict[bytes, bytes], page: int
) -> None:
    older, newer = become(store, one), become(store, other)
    state = dict(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_KEYS", page)
        lines = store.lines("diff", f"--rev={older}", f"--rev={newer}", "d/", "-w", "json")
    for line in lines:
        key = bytes_in(line, "key")
        assert line["change"] == (
            "changed"
            if "before" in line and "after" in line
            else "removed"
            if "before" in line
            else "added"
        )
        if "before" in line:
            assert state.pop(key) == bytes_in(line["before"], "value")
        if "after" in line:
            assert key not in state
            state[key] = bytes_in(line["after"], "value")
    assert state == other


@FEW
@given(one=STATES, other=STATES, batch=st.integers(1, 4))
def test_reverting_gives_the_state_of_the_revision(
    store: Store, one: dict[bytes, bytes], other: dict[bytes, bytes], batch: int
) -> None:
    older = become(store, one)
    become(store, other)
    words = ("revert", "--prefix", "d/", "--to-rev", str(older))
    store.client.put("e/beside", "stays")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "KEYS_MAX", batch)
        store.run(*words)
        assert store.content(b"d/") == other, "without --yes it is only shown"
        store.run(*words, "--yes")
    assert store.content(b"d/") == one
    revision = store.revision
    assert b"0 keys are as of" in store.run(*words, "--yes").out
    assert store.revision == revision, "there is nothing left to do"
    assert store.content(b"e/") == {b"e/beside": b"stays"}


def test_a_revert_shows_what_it_would_do(store: Store) -> None:
    older = become(store, {b"d/a": b"1", b"d/b": b"1"})
    now = become(store, {b"d/a": b"2", b"d/c": b"1"})
    shown = store.run("revert", "--prefix", "d/", "--to-rev", str(older)).out.decode()
    assert shown.splitlines() == [
        f'put "d/a" as of revision {older - 1}',
        f'put "d/b" as of revision {older}',
        'delete "d/c"',
        "2 to put, 1 to delete; nothing was changed",
        f"Add --from-rev {now} --yes to do exactly that",
    ]


def test_what_changed_meanwhile_is_left_alone(store: Store) -> None:
    older = become(store, {b"d/a": b"1", b"d/b": b"1", b"d/c": b"1", b"d/gone": b"1"})
    now = become(store, {b"d/a": b"2", b"d/b": b"2", b"d/c": b"2", b"d/new": b"2"})
    words = ("revert", "--prefix=d/", f"--to-rev={older}", f"--from-rev={now}", "--yes")
    store.client.put("d/b", "somebody's")
    store.client.put("d/c", "1")
    store.client.put("d/gone", "somebody's")
    ended = store.run(*words, code=1)
    assert ended.out.decode().splitlines() == [
        'changed meanwhile, left alone: "d/b"',
        'changed meanwhile, left alone: "d/gone"',
        f"3 keys are as of revision {older}",
    ]
    assert f"2 keys were changed after revision {now}" in ended.err.decode()
    wanted = {b"d/a": b"1", b"d/b": b"somebody's", b"d/c": b"1", b"d/gone": b"somebody's"}
    assert store.content(b"d/") == wanted
    # The same again finds its own work done.
    assert store.run(*words, code=1).out == ended.out
    assert store.content(b"d/") == wanted


def test_an_interrupted_revert_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {b"d/%d" % number: b"1" for number in range(6)}
    older = become(store, old)
    now = become(store, dict.fromkeys(old, b"2"))
    words = ("revert", "--prefix=d/", f"--to-rev={older}", f"--from-rev={now}", "--yes")
    monkeypatch.setattr(batches, "KEYS_MAX", 2)
    commits = 0
    commit = reverting._commit

    def interrupted(*arguments: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise SystemExit(9)
        return commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reverting, "_commit", interrupted)
        store.run(*words, code=9)
    assert sorted(store.content(b"d/").values()) == [b"1"] * 4 + [b"2"] * 2
    store.run(*words)
    assert store.content(b"d/") == old


def test_leases_that_live_come_back_and_others_do_not(store: Store) -> None:
    become(store, {})
    living, dying = store.client.lease(600), store.client.lease(600)
    store.client.put("d/living", "1", lease=living.id)
    store.client.put("d/dying", "1", lease=dying.id)
    older = store.revision
    dying.revoke()
    store.client.put("d/living", "2")
    store.run("revert", "--prefix=d/", f"--to-rev={older}", "--yes")
    found = {kv.key: (kv.value, kv.lease) for kv in store.client.range(prefix="d/")}
    assert found == {b"d/living": (b"1", living.id), b"d/dying": (b"1", 0)}
    living.revoke()


def test_text_is_compared_line_by_line_and_bytes_are_quoted(store: Store) -> None:
    older = become(
        store, {b"d/text": b"one\ntwo\nthree\n", b"d/bytes": b"\xff\x1b[2J", b"d/gone": b"x"}
    )
    newer = become(store, {b"d/text": b"one\n2\nthree", b"d/bytes": b"plain", b"d/n\x1bew": b"y\n"})
    words = ("diff", "--rev", str(older), "--rev", str(newer), "d/")
    assert store.run(*words).out.decode().splitlines() == [
        f'--- "d/bytes", revision {older}',
        f'+++ "d/bytes", revision {newer}',
        '-"\\xff\\x1b[2J"',
        '+"plain"',
        f'--- "d/gone", revision {older}',
        "+++ nothing",
        "@@ -1 +0,0 @@",
        "-x",
        diffs.NO_NEWLINE,
        "--- nothing",
        f'+++ "d/n\\x1bew", revision {newer}',
        "@@ -0,0 +1 @@",
        "+y",
        f'--- "d/text", revision {older}',
        f'+++ "d/text", revision {newer}',
        "@@ -1,3 +1,3 @@",
        " one",
        "-two",
        "-three",
        "+2",
        "+three",
        diffs.NO_NEWLINE,
        f"1 added, 1 removed, 2 changed between revisions {older} and {newer}",
    ]
    assert store.run(*words, "--keys-only").out.decode().splitlines() == [
        '~ "d/bytes"',
        '- "d/gone"',
        '+ "d/n\\x1bew"',
        '~ "d/text"',
        f"1 added, 1 removed, 2 changed between revisions {older} and {newer}",
    ]


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12).map("\n".join)


@pytest.mark.skipif(which("patch") is None, reason="there is no patch")
@settings(max_examples=25, deadline=None)
@given(one=LINES, other=LINES)
def test_patch_makes_one_text_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, one: str, other: str
) -> None:
    path: Path = tmp_path_factory.mktemp("patch") / "value"
    path.write_text(one)
    lines = diffs.changed_lines(one.encode(), other.encode())
    assert bool(lines) == (one != other)
    if not lines:
        return
    text = "\n".join(["--- value", "+++ value", *lines, ""])
    subprocess.run(["patch", "-s", str(path)], input=text, text=True, check=True)
    assert (path.read_text() if path.exists() else "") == other


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("diff",), 128, b"--rev was given as nothing"),
        (("diff", "--rev=x"), 128, b"bad revision"),
        (("diff", "--rev=1", "--rev=2", "--rev=3"), 128, b"1, 2, 3"),
        (("diff", "--rev=0"), 128, b"expected one or two revisions"),
        (("diff", "--rev=1", "a", "b"), 128, b"one argument"),
        (("diff", "--rev=1", "-w", "table"), 4, b"not supported"),
        (("diff", "--rev=1", "--rev=999999"), 1, b"future revision"),
        (("revert",), 128, b"needs --prefix"),
        (("revert", "--prefix=d/"), 128, b"needs --prefix"),
        (("revert", "--to-rev=1"), 128, b"needs --prefix"),
        (("revert", "--prefix=d/", "--to-rev=1", "x"), 128, b"no arguments"),
        (("revert", "--prefix=d/", "--to-rev=999999"), 1, b"future revision"),
    ],
)
def test_misuse_is_reported(store: Store, words: tuple[str, ...], code: int, told: bytes) -> None:
    assert told in store.run(*words, code=code).err


def test_a_compacted_revision_is_refused(store: Store) -> None:
    older = become(store, {b"d/a": b"1"})
    become(store, {b"d/a": b"2"})
    store.client.compact(store.revision)
    assert b"compacted" in store.run("diff", f"--rev={older}", code=1).err
    words = ("revert", "--prefix=d/", f"--to-rev={older}", "--yes")
    assert b"compacted" in store.run(*words, code=1).err
    assert store.content(b"d/") == {b"d/a": b"2"}
