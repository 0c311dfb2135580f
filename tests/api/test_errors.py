"""The table of errors says what the reference of the compatible surface says."""

import re
from pathlib import Path

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "api-errors.md"
NAMED_ROW = re.compile(r"^\| ErrGRPC(\w+) \| ([A-Z_]+)([^|]*)\| `([^`]+)` \|", re.M)
SECTIONS = re.compile(r"^## (\d)\. ", re.M)


@pytest.fixture(scope="module")
def reference() -> str:
    if not REFERENCE.exists():
        pytest.skip(f"no reference of errors at {REFERENCE}")
    return REFERENCE.read_text()


def sections(text: str) -> dict[str, str]:
    parts = SECTIONS.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table() -> dict[str, Status]:
    return {name: row for name, row in vars(errors).items() if isinstance(row, Status)}


def constant_name(symbol: str) -> str:
    """Turn PeerURLExist into PEER_URL_EXIST."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-rt-z])", "_", symbol).upper()


def test_named_errors(reference: str) -> None:
    rows = NAMED_ROW.findall(reference)
    assert len(rows) == reference.count("\n| ErrGRPC"), "every row of the tables is understood"
    for symbol, code, remark, text in rows:
        wire_code = "UNKNOWN" if "goes out as UNKNOWN" in remark else code
        assert table()[constant_name(symbol)] == Status(Code[wire_code], text), symbol


def test_errors_without_a_symbol(reference: str) -> None:
    known = {row.text for row in table().values()}
    unknown_codes = {row.text for row in table().values() if row.code is Code.UNKNOWN}
    section = sections(reference)["3"]
    texts = set(re.findall(r"^\| `([^`]+)`", section, re.M))
    assert texts <= unknown_codes
    assert {
        text
        for _, text in re.findall(r"^\| (UNIMPLEMENTED) \| `(RangeStream[^`]+)`", reference, re.M)
    } <= known


def test_texts_of_the_grpc_runtime(reference: str) -> None:
    section = sections(reference)["4"]
    templates = [
        (errors.unknown_service("<pkg.Service>"), "UNIMPLEMENTED"),
        (errors.unknown_method("<pkg.Service>", "<M>"), "UNIMPLEMENTED"),
        (errors.unparsable_request("<parser text>"), "INTERNAL"),
        (errors.unknown_compression("<enc>"), "UNIMPLEMENTED"),
        (errors.CONTEXT_CANCELED, "CANCELLED"),
        (errors.CONTEXT_DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (errors.UNKNOWN_HEALTH_SERVICE, "NOT_FOUND"),
    ]
    for status, code in templates:
        assert status.code is Code[code]
        assert f"| {code} | `{status.text}` |" in section
    too_large = errors.message_too_large(3, 2)
    assert too_large.code is Code.RESOURCE_EXHAUSTED
    assert too_large.text.replace("3", "<n>").replace("2", "<limit>") in section


def test_codes_are_grpc_codes() -> None:
    grpc = pytest.importorskip("grpc")
    assert {code.name: code.value for code in Code} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


def test_wrapped_text_is_gos(reference: str) -> None:
    reasons = re.findall(r"^\| `(rpc error: [^`]+)`", sections(reference)["6"], re.M)
    wrapped = {row.wrapped() for row in table().values()}
    assert reasons
    assert set(reasons) <= wrapped
    assert errors.WATCH_CANCELED.wrapped().startswith("rpc error: code = Canceled desc = ")


def test_status_error_carries_its_row() -> None:
    error = StatusError(errors.NO_LEADER)
    assert error.status is errors.NO_LEADER
    assert str(error) == "rpc error: code = Unavailable desc = etcdserver: no leader"
