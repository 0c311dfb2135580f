"""`tree`: keys by their parts, counted and measured."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.tools.ctl.tree import TreeNode, add, as_json
from tests.tools.ctl.store import Store


@pytest.fixture(autouse=True)
def keys(store: Store) -> None:
    store.clear()
    for key in ("/app/a", "/app/b/1", "/app/b/2", "/app/b", "/app/b-x", "/\x1b[2J/c", "plain"):
        store.client.put(key, "12345")


def test_keys_are_shown_by_their_parts(store: Store) -> None:
    assert store.run("tree").out.decode().splitlines() == [
        ".                     83 B  7 keys",
        "├── /                 73 B  6 keys",
        "│   ├── \\x1b[2J/      12 B  1 key",
        "│   │   └── c         12 B",
        "│   └── app/          61 B  5 keys",
        "│       ├── a         11 B",
        "│       ├── b         11 B",
        "│       ├── b-x       13 B",
        "│       └── b/        26 B  2 keys",
        "│           ├── 1     13 B",
        "│           └── 2     13 B",
        "└── plain             10 B",
    ]


def test_a_part_of_it(store: Store) -> None:
    assert store.run("tree", "/app/", "--depth=1", "--limit=2").out.decode().splitlines() == [
        "/app/     61 B  5 keys",
        "├── a     11 B",
        "├── b     11 B",
        "└── …     39 B  3 keys",
    ]
    old = store.revision
    store.client.delete("/app/a")
    (told,) = store.lines("tree", "/app/", "-w", "json", f"--rev={old}", "--depth=1")
    assert [each["name"] for each in told["children"]] == ["a", "b", "b-x", "b/"]
    assert told["keys"] == 5


def test_nothing_is_a_tree_too(store: Store) -> None:
    assert store.run("tree", "none/").out == b"none/      0 B  0 keys\n"


def test_misuse_is_reported(store: Store) -> None:
    assert b"one argument" in store.run("tree", "a", "b", code=128).err
    assert b"negative" in store.run("tree", "--depth=-1", code=128).err
    assert b"revision -1" in store.run("tree", "--rev=-1", code=128).err
    assert b"not supported" in store.run("tree", "-w", "fields", code=4).err


PARTS = st.lists(st.sampled_from(["", "a", "b", "é"]), min_size=1, max_size=4)
KEYS = st.lists(PARTS.map("/".join).map(str.encode), unique=True, max_size=12).map(sorted)


@given(keys=KEYS, depth=st.integers(0, 3), limit=st.integers(0, 2))
def test_every_key_is_counted_once_at_every_level(
    keys: list[bytes], depth: int, limit: int
) -> None:
    root = TreeNode(b"")
    for key in keys:
        add(root, key, len(key) + 1, depth, limit)
    told = as_json(root)
    assert (told["keys"], told["bytes"]) == (len(keys), sum(map(len, keys)) + len(keys))
    _check(told, keys, depth, limit)


def _check(node: dict[str, Any], keys: list[bytes], depth: int, limit: int, level: int = 1) -> None:
    below = node.get("children", [])
    assert not limit or len(below) <= limit
    assert not depth or level <= depth or not below
    names: dict[bytes, list[bytes]] = {}
    for key in filter(None, keys):
        head, separator, rest = key.partition(b"/")
        names.setdefault(head + separator, []).append(rest)
    if depth and level > depth:
        return
    shown = list(names)[: limit or None]
    assert [each["name"].encode() for each in below] == shown
    for each in below:
        assert each["keys"] == len(names[each["name"].encode()])
        if each["name"].endswith("/"):
            _check(each, names[each["name"].encode()], depth, limit, level + 1)
    hidden = len(keys) - keys.count(b"") - sum(len(names[name]) for name in shown)
    assert node.get("more", {"keys": 0})["keys"] == hidden
