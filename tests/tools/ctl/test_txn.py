"""`txn` beside etcdctl's: its grammar, its words, its errors."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.ctl.duel import Duel

FORMATS = ("simple", "fields", "json")
at_one_kind = pytest.mark.parametrize("duel", ["kvorum"], indirect=True)
"""For what the server has no part in."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_answers_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    options = ("-w", form, hexadecimal)
    whole = b"""ver("look/a") = "0"

put look/a "one \\u00fc \\xff" --prev-kv
get look/a
get --prefix look/ --keys-only
del look/none

put look/a two --prev-kv
del --prefix look/ --prev-kv
get look/ --prefix --count-only

"""
    duel.compare("txn", *options, stdin=whole)
    duel.compare("txn", *options, stdin=whole)
    duel.compare("txn", *options, stdin=b"\n\n\n")


@pytest.mark.parametrize("form", ["protobuf", "table", "nonsense"])
def test_formats_that_are_refused_are_refused_after_the_work(duel: Duel, form: str) -> None:
    # A message in protobuf has ids of its cluster, which differ.
    duel.compare(
        "txn",
        "-w",
        form,
        stdin=b"\nput odd " + form.encode() + b"\n\n\n",
        change=lambda data: b"" if form == "protobuf" else data,
    )
    duel.compare("get", "odd")


@at_one_kind
@pytest.mark.parametrize(
    "line",
    [
        'mod("k") > "0"',
        'm("k") < "5"',
        'create("k") = "0"',
        'c("k") != "0"',
        'ver("k") = "+1"',
        'version( "k") = "1"',
        'val("k") = "v" and more',
        'value("k")  !=\t"v"',
        'val(`k`) > `a"b`',
        'val("\\x6b\\u006b\\153\\n") = "\\U0001F600\\a\\b\\f\\r\\t\\v\\\\\\""',
        'mod("k")>"0"',
        'mod("k") >"0"',
        'mod("k")> "0"',
        'mod("k") > 0',
        'mod(k) > "0"',
        'mod "k" > "0"',
        "mod",
        "mod(",
        'mod("k"',
        'mod("k") >',
        'mod("k") > "',
        'mod("k") > "x"',
        'mod("k") > "1_0"',
        'mod("k") > "9223372036854775808"',
        'mod("\\q") > "0"',
        'mod("\\\'") > "0"',
        'mod("\\400") > "0"',
        'mod("\\ud800") > "0"',
        'mod("\\x6") > "0"',
        'size("k") > "0"',
        ' ("k") = "0"',
        '("k") = "0"',
        'val("") = ""',
        '\u00a0val(\u2003"k")\u3000=\u2028"v"\u0085',
    ],
)
def test_conditions(duel: Duel, line: str) -> None:
    duel.compare("txn", stdin=line.encode() + b"\n\nget k\n\n\n")


@at_one_kind
@pytest.mark.parametrize(
    "line",
    [
        b'put s "a b"',
        b"put s 'a \"b\\n'",
        b"put s a'b c'",
        b'put s"x" y',
        b"put s v extra",
        b"put s",
        b"put",
        b"put s --ignore-value",
        b"put s v --ignore-value",
        b"put s v --lease=xyz",
        b"put s v --lease=1234",
        b'put s "\\q"',
        b'put s "\\xff\\xfe"',
        b"put s \xff\xfe",
        b'put s "\xff\xfe"',
        b"put '' v",
        b"put s ''",
        b"put -- s -v",
        b"put s -v",
        b"put s v -w json",
        b"put s v --endpoints=x",
        b"p s v",
        b"pu s v",
        b"g s",
        b"d s",
        b"get s --order=DESCEND",
        b"get s --order=sideways",
        b"get s --sort-by=size",
        b"get s --rev=1000000",
        b"get s --limit=x",
        b"get s --nosuch",
        b"get s -z",
        b"get --prefix --from-key s",
        b"get s t --prefix",
        b"get s --keys-only --count-only",
        b"get s --print-value-only",
        b"get s --consistency=s",
        b"get s --consistency=x",
        b"get s --stream",
        b"del s",
        b"del s t --range",
        b"del s --prefix --from-key",
        b"del s --prev-kv",
        b"delete s",
        b"nosuch s",
        b"nosuch",
        b"get --nosuch",
        b'"get" "s"',
        b"'get' 's' ",
        b"\tget\x0bs",
        b"get\x0cs",
        b"get\xc2\xa0s",
    ],
)
def test_steps(duel: Duel, line: bytes) -> None:
    duel.compare("txn", stdin=b"\n" + line + b"\nget s\n\n\n", change=_without_usage)


@at_one_kind
@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"\n",
        b"\n\n",
        b"\n\n\n",
        b"\n\nget k",
        b"\n\nget k\n",
        b"\r\n\r\n \t\r\n",
        b"\nput twice 1\nput twice 2\n\n\n",
        b"\nput k\n\n\nvalue\n",
        b"\n" + b" " * 5000 + b"get k\n\n\n",
        b"\nput k\n\n\n" + b"long " * 1000,
        b"\nput long " + b"x" * 9000 + b"\nget long\n\n\n",
    ],
)
def test_what_is_read(duel: Duel, whole: bytes) -> None:
    duel.compare("txn", stdin=whole)


@pytest.mark.long
def test_what_is_refused(duel: Duel) -> None:
    duel.compare("txn", "extra", stdin=b"\n\n\n")
    duel.compare("txn", "--nosuch", change=_without_usage)
    duel.compare("txn", stdin=b"\ndel ra rb\n\n\n")


@pytest.mark.parametrize("flag", ["-i", "--interactive"])
def test_each_part_is_asked_for(duel: Duel, flag: str) -> None:
    duel.compare("txn", flag, stdin=b"\nput asked 1\n\n\n")
    duel.compare("txn", flag, stdin=b'mod("asked") > "0"\nbad\n')
    duel.compare("txn", flag)


def test_the_lease_of_a_key_can_be_compared(duel: Duel) -> None:
    # etcdctl accepts the line and falls over it.
    duel.compare("put", "leased", "1")
    assert duel.ours_alone("txn", stdin=b'lease("leased") = "0"\n\n\n\n').out == b"SUCCESS\n"
    assert duel.ours_alone("txn", stdin=b'lease("leased") > "0f"\n\n\n\n').out == b"FAILURE\n"
    refused = duel.ours_alone("txn", stdin=b'lease("leased") = "g"\n')
    assert (refused.code, refused.err) == (
        3,
        b'Error: invalid txn compare request: lease("leased") = "g"\n',
    )


def test_an_operator_that_does_not_exist_is_refused(duel: Duel) -> None:
    refused = duel.ours_alone("txn", stdin=b'val("k") == "v"\n')
    duel.compare("txn", stdin=b'val("k") == "v"\n', panic_code=3)
    assert refused.err.startswith(b'Error: malformed comparison: val("k") == "v" (unknown operator')


SPACE = st.sampled_from([" ", " ", " ", "\t", "  ", "", "\u00a0"])
STRING = st.sampled_from(
    ['"k"', '"0"', '"1"', "`k`", '"a\\tb"', '"\\x6b"', "'k'", "k", '""', '"\\q"', '"', '"k\\"']
)
TARGET = st.sampled_from(["ver", "version", "c", "create", "m", "mod", "val", "value", "x", ""])
OPERATOR = st.sampled_from(["=", "!=", "<", ">"])
OPENING = st.sampled_from(["(", "(", "(", "((", "", "( "])
CLOSING = st.sampled_from([")", ")", ")", "", "))", " )"])
CONDITION = st.tuples(
    TARGET, OPENING, STRING, CLOSING, SPACE, OPERATOR, SPACE, STRING, st.sampled_from(["", " x"])
).map("".join)
VERB = st.sampled_from(["put", "get", "del", "p", "ge", "x"])
WORD = st.sampled_from(
    [
        "k",
        "'k v'",
        '"k\\u0020v"',
        '"\\q"',
        "a'b",
        "''",
        "--prefix",
        "--prev-kv",
        "--limit=1",
        "--limit",
        "--rev=0",
        "--ignore-value",
        "--keys-only",
        "--from-key",
        "--range",
        "--nosuch",
        "-",
        "--",
    ]
)
STEP = st.builds(lambda verb, words: " ".join([verb, *words]), VERB, st.lists(WORD, max_size=4))


def _is_answered(line: str) -> bool:
    """Whether etcdctl takes or refuses the line; it falls over some, and waits for ever at others.

    A deletion of a range is left out because of its delay.
    """
    words = line.split()
    return words[1:2] != ["--"] and not (words[0].startswith("d") and "--range" not in words)


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """A condition with a piece of it lost, doubled or replaced."""
    line = draw(CONDITION)
    start = draw(st.integers(0, len(line)))
    end = draw(st.integers(start, min(len(line), start + 2)))
    return (
        line[:start]
        + draw(st.sampled_from(["", line[start:end] * 2, '"', "\\", ")", " "]))
        + line[end:]
    )


@at_one_kind
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=CONDITION | _mutated())
def test_any_condition_is_taken_or_refused_alike(duel: Duel, line: str) -> None:
    duel.compare("txn", stdin=line.encode() + b"\n\n\n\n", panic_code=3)


@at_one_kind
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=STEP.filter(_is_answered))
def test_any_step_is_taken_or_refused_alike(duel: Duel, line: str) -> None:
    duel.compare("txn", stdin=b"\n" + line.encode() + b"\n\n\n", change=_without_usage)


def _without_usage(data: bytes) -> bytes:
    """Leave the help out that comes with an error: it is in our own words."""
    before, is_there, after = data.partition(b"Usage:")
    return before + (
        b"Error:" + after.rpartition(b"Error:")[2] if is_there and b"Error:" not in before else b""
    )
