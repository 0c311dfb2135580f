"""`member` beside etcdctl's."""

import re

import pytest

from tests.tools.ctl.duel import Duel

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")
URL = "http://127.0.0.1:3"


def _no_ids(data: bytes) -> bytes:
    """Leave ids and padding out: they depend on when a member was added."""
    data = re.sub(rb"(?i)\b[0-9a-f]{10,20}\b", b"<id>", data)
    return re.sub(rb" +(?=<id>)|\xe2\x94\x80+", b" ", data)


def _unordered(data: bytes) -> bytes:
    """Return the words alone: members stand in the order of their ids, which are of the second."""
    return b" ".join(sorted(re.split(rb'[\s,{}\[\]"]+', _no_ids(data))))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_members_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    # The message itself has the ids of its cluster, which differ.
    duel.compare(
        *("member", "list", "-w", form, hexadecimal),
        change=lambda data: b"" if form == "protobuf" else _no_ids(data),
    )


@pytest.mark.parametrize("form", FORMATS[:-1])
def test_a_learner_comes_and_goes(duel: Duel, form: str) -> None:
    options = ("-w", form, "--hex")
    # Members have ids of their URLs and the second, and an id is never used again.
    url = f"http://127.0.0.1:{FORMATS.index(form) + 10}"

    def change(data: bytes) -> bytes:
        return b"" if form == "protobuf" else _unordered(data)

    duel.compare("member", "add", "new", f"--peer-urls={url}", "--learner", *options, change=change)
    duel.compare("member", "list", save="([0-9a-f]+), unstarted", change=_unordered)
    member = f"{{{len(duel.saved) - 1}}}"
    duel.compare("member", "list", *options, change=change)
    duel.compare(
        "member", "add", "two", f"--peer-urls={url}2", "--learner", *options, change=change
    )
    duel.compare("member", "promote", member, *options, change=change)
    duel.compare("member", "update", member, f"--peer-urls={url}1", *options, change=change)
    duel.compare("member", "list", "--consistency=s", change=_unordered)
    duel.compare("member", "remove", member, *options, change=change)
    duel.compare("member", "remove", member, *options, change=change)
    duel.compare("member", "list", change=_unordered)


@pytest.mark.parametrize(
    "words",
    [
        ("add",),
        ("add", "x"),
        ("add", "x", "y"),
        ("add", "x", "http://a:1", "HTTPS://b:1"),
        ("add", "x", "--peer-urls=nonsense"),
        ("add", "x", "--peer-urls="),
        ("add", "x", "--peer-urls=http://a"),
        ("add", "x", "--peer-urls=http://a:1/path"),
        ("add", "x", "--peer-urls=http://127.0.0.1:2"),
        ("add", "x", "--nosuch"),
        ("remove",),
        ("remove", "1", "2"),
        ("remove", "xyz"),
        ("remove", "0x1"),
        ("remove", "11111111111111111"),
        ("remove", "1"),
        ("remove", ""),
        ("update",),
        ("update", "xyz"),
        ("update", "1"),
        ("update", "1", "--peer-urls=nonsense"),
        ("update", "1", f"--peer-urls={URL}"),
        ("promote",),
        ("promote", "xyz"),
        ("promote", "1"),
        ("list", "ignored"),
    ],
)
def test_what_is_refused(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare("member", *words, change=lambda data: _no_ids(data.partition(b"Usage:")[0]))


def test_a_consistency_that_is_none_is_named(duel: Duel) -> None:
    # etcdctl names that of `get` in its place.
    duel.compare("member", "list", "--consistency=x", err=False)
