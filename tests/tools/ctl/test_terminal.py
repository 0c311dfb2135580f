"""What a person at a terminal sees: colours and progress, and nothing that data could steer."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.tools.cli.text import printable
from kvorum.tools.ctl.lines import laid_out
from tests.tools.ctl.store import Store
from tests.tools.ctl.terminal import kvorumctl

EVIL = b"\x1b[2J\x1b]0;title\x07\r\x9b1m\xc2\x9b2J\xe2\x80\xae\xff"
"""Clears the screen, sets the title, goes back, in several ways; and bytes of no text."""
SHOWN = b"\\x1b[2J\\x1b]0;title\\a\\r\\x9b1m\\u009b2J\\u202e\\xff"
PLAIN = {"NO_COLOR": "1"}


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_printable_text_steers_nothing(data: bytes) -> None:
    shown = printable(data, kept="\n\t")
    assert all(each in "\n\t" or each.isprintable() for each in shown)
    if data.isascii() and data.decode().isprintable():
        assert shown == data.decode()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3)))
def test_json_that_is_laid_out_means_the_same(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    shown = laid_out(text)
    if isinstance(value, list):
        assert shown is not None or b"\xed" in text
    if shown is not None:
        assert json.loads(shown) == value
        assert all(each == "\n" or each.isprintable() for each in shown)


def test_protobuf_reaches_a_terminal_as_it_is(store: Store) -> None:
    store.client.put("p", EVIL)
    with kvorumctl(store.address, "get", "p", "-w", "protobuf") as terminal:
        # As a program does that wants bytes from a terminal: it translates none.
        terminal.translate_nothing()
        assert terminal.end() == 0
    answer = pb.RangeResponse.FromString(terminal.seen)
    assert answer == pb.RangeResponse.FromString(store.run("get", "p", "-w", "protobuf").out)
    assert answer.kvs[0].value == EVIL
    with kvorumctl(store.address, "lease", "grant", "10", "-w", "protobuf") as terminal:
        terminal.translate_nothing()
        assert terminal.end() == 0
    assert pb.ResponseHeader.FromString(terminal.seen).revision == store.revision


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("-w", "fields"), ("-w", "json"), ("--pretty",)])
def test_data_reaches_a_terminal_escaped_and_a_pipe_as_it_is(
    store: Store, words: tuple[str, ...]
) -> None:
    store.client.put(b"t/" + EVIL, EVIL)
    with kvorumctl(store.address, "get", "--prefix", "t/", *words, env=PLAIN) as terminal:
        assert terminal.end() == 0
    shown = terminal.seen.replace(b"\r\n", b"\n")
    assert not set(shown) & {0x1B, 0x07, 0x0D, 0xFF}
    assert shown.decode("utf-8").replace("\n", "").isprintable()
    if words in ((), ("--pretty",)):
        assert shown == b"t/" + SHOWN + b"\n" + SHOWN + b"\n"
        assert store.run("get", "--prefix", "t/", *words).out == b"t/" + EVIL + b"\n" + EVIL + b"\n"


def test_errors_reach_a_terminal_escaped(store: Store) -> None:
    with kvorumctl(store.address, "get", "k", "--order=\x1b[2J") as terminal:
        assert terminal.end() != 0
    assert b"\\x1b[2J" in terminal.seen
    assert b"\x1b" not in terminal.seen


@pytest.mark.parametrize("command", ["history", "tree", "diff", "export"])
def test_keys_and_values_of_our_own_commands_are_escaped(store: Store, command: str) -> None:
    key = "t2/\x1b[2Jkey"
    store.client.put(key, EVIL)
    revision = store.revision
    store.client.put(key, EVIL + b"2")
    words = {
        "history": ("history", key),
        "tree": ("tree", "t2/"),
        "export": ("export", "--prefix", "t2/"),
        "diff": ("diff", f"--rev={revision}", f"--rev={revision + 1}", "t2/"),
    }[command]
    with kvorumctl(store.address, *words) as terminal:
        assert terminal.end() == 0
    for evil in (b"\x1b[2J", b"\x1b]0", b"\x07", b"\xc2\x9b", b"\xe2\x80\xae", b"\xff"):
        assert evil not in terminal.seen
    with kvorumctl(store.address, *words, env=PLAIN) as terminal:
        assert terminal.end() == 0
    assert b"\x1b" not in terminal.seen.replace(b"\r\x1b[K", b"")


def test_a_terminal_has_colours_unless_they_are_refused(store: Store) -> None:
    store.client.put("c/key", "value")
    revision = store.revision
    store.client.put("c/key", "other")
    words = ("diff", f"--rev={revision}", "c/")
    with kvorumctl(store.address, *words) as terminal:
        assert terminal.end() == 0
    assert b"\x1b[31m-value\x1b[0m" in terminal.seen
    assert b"\x1b[32m+other\x1b[0m" in terminal.seen
    for env in (PLAIN, {"TERM": "dumb"}):
        with kvorumctl(store.address, *words, env=env) as terminal:
            assert terminal.end() == 0
        assert b"\x1b" not in terminal.seen
    with kvorumctl(store.address, "history", "c/key") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[" in terminal.seen
    assert b"revision" in terminal.seen


def test_json_is_laid_out_on_demand(store: Store) -> None:
    store.client.put("j/json", '{"a":[1,"\u009b"],"b":{}}')
    store.client.put("j/text", "{no json")
    laid = b'{\n  "a": [\n    1,\n    "\\u009b"\n  ],\n  "b": {}\n}\n'
    out = store.run("get", "--prefix", "j/", "--pretty").out
    assert out == b"j/json\n" + laid + b"j/text\n{no json\n"
    values = store.run("get", "--prefix", "j/", "--pretty", "--print-value-only").out
    assert values == laid + b"{no json\n"
    with kvorumctl(store.address, "get", "j/json", "--pretty") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[" in terminal.seen
    assert b"\\u009b" in terminal.seen


def test_progress_is_drawn_with_rate_and_share(store: Store, tmp_path: Path) -> None:
    for number in range(5):
        store.client.put(f"p/{number}", "x")
    path = tmp_path / "file"
    with kvorumctl(store.address, "export", str(path), "--prefix=p/") as terminal:
        assert terminal.end() == 0
    last = terminal.seen.split(b"\r\x1b[K")[-1].decode()
    assert last.startswith("exporting ━") and " 100%  5  " in last and "/s" in last
    assert path.read_bytes().count(b"\n") == 7
