"""The same JSON to our gateway and to that of a real etcd gets the same answers."""

import base64
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.http.asking import Connection, chunk
from tests.server.http.bodies import BY_PATH, UNARY, Asked, requests
from tests.server.http.comparing import Seen, seen
from tests.server.http.streaming import spoken
from tests.server.http.talking import Talk, talking
from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.runs import Lender

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)

many = settings(
    deadline=None,
    max_examples=SEQUENCES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
KEY_PATHS = ("/v3/kv/range", "/v3/kv/put", "/v3/kv/deleterange", "/v3/kv/txn", "/v3/kv/compaction")


@pytest.fixture(scope="module")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender[Talk]]:
    found = Lender(talking, tmp_path_factory)
    yield found
    found.close()


def run(lender: Lender[Talk], sequence: list[Asked]) -> None:
    with lender.lent() as talk:
        talk.say("/v3/lease/grant", ID=7, TTL=3000)
        for key in ("YQ==", "Yg==", "Y2M="):
            talk.say("/v3/kv/put", key=key, value="MQ==")
        for route, body in sequence:
            talk.check(route.path, body)
        talk.reset()


@given(sequence=st.lists(requests([BY_PATH[path] for path in KEY_PATHS]), min_size=5, max_size=20))
@many
def test_keys(lender: Lender[Talk], sequence: list[Asked]) -> None:
    run(lender, sequence)


@given(sequence=st.lists(requests(UNARY), min_size=5, max_size=20))
@settings(many, max_examples=2 * SEQUENCES)
def test_every_unary_call(lender: Lender[Talk], sequence: list[Asked]) -> None:
    run(lender, sequence)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    with talking(tmp_path_factory.mktemp("limits")) as found:
        yield found


@pytest.mark.parametrize("depth", [100, 9_999, 10_000, 10_001, 50_000])
@pytest.mark.parametrize(
    ("begin", "middle", "end"),
    [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[{"a":', b"1", b"}]")],
)
def test_depth(talk: Talk, depth: int, begin: bytes, middle: bytes, end: bytes) -> None:
    levels = depth // 2 if begin.startswith(b"[{") else depth
    nested = begin * levels + middle + end * levels
    for body in (b'{"key":"YQ==","x":%b}' % nested, b'{"key":%b}' % nested, nested, nested[:-1]):
        talk.check("/v3/kv/range", body)


@pytest.mark.parametrize("levels", [1, 60, 125, 129, 190, 3_333, 3_334, 4_000])
def test_depth_of_transactions(talk: Talk, levels: int) -> None:
    nested = b'{"success":[{"request_txn":' * levels + b"{}" + b"}]}" * levels
    if 200 < levels < 3_334:
        # What is that deep is refused by both, with other words.
        assert {each.status // 100 for each in talk.ask("/v3/kv/txn", nested)} <= {4, 5}
    else:
        talk.check("/v3/kv/txn", nested)


@pytest.mark.parametrize("size", [1_572_000, 1_572_864, 2_097_142, 2_097_143, 3_000_000])
def test_size(talk: Talk, size: int) -> None:
    value = base64.b64encode(bytes(size))
    talk.check("/v3/kv/put", b'{"key":"YQ==","value":"%b"}' % value)
    talk.check("/v3/kv/range", b'{"key":"YQ==","unknown":"%b"}' % value)
    talk.check("/v3/kv/range", b'{"key":"YQ=="}' + bytes(size))
    talk.check("/v3/kv/range", b" " * size + b'{"key":"YQ=="}')
    talk.say("/v3/kv/deleterange", key="YQ==")


@pytest.mark.parametrize("cuts", [[1], [3, 5, 8], range(1, 60)])
def test_bodies_in_pieces(talk: Talk, cuts: Sequence[int]) -> None:
    for body in (
        b'{"key":"YQ=="}',
        b'{"key":"YQ=="',
        b'{"key":"YQ=="}{',
        b'{"key":"\xc3\xa9"}',
        b"",
    ):
        pieces = spoken([body], cuts)
        ours, theirs = (_asked_in_pieces(address, pieces) for address in talk.both)
        assert ours == theirs, body


def _asked_in_pieces(address: str, pieces: list[bytes]) -> Seen:
    with Connection(address) as connection:
        connection.open("/v3/kv/range")
        for piece in pieces:
            connection.send(chunk(piece))
        connection.send(b"0\r\n\r\n")
        return seen("/v3/kv/range", connection.answer())
