"""Where members serve clients, by records: the order, and whose certificates are good."""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.process.discovery.members import FoundMember, Trust, find_members
from kvorum.process.discovery.srv import LookupFailedError, SrvRecord
from kvorum.server.telemetry.logs import Logger
from tests.certificates import Authority, Pair
from tests.ports import held_port
from tests.waiting import WAIT_SECONDS_MAX

DOMAIN = "cluster.test"
SECURE, PLAIN = f"_etcd-client-ssl._tcp.{DOMAIN}", f"_etcd-client._tcp.{DOMAIN}"
SILENT = Logger([])


class Names:
    """A resolver that knows these records."""

    def __init__(self, records: Mapping[str, Sequence[SrvRecord]]) -> None:
        self._records = records

    def services(self, name: str) -> Sequence[SrvRecord]:
        if name not in self._records:
            raise LookupFailedError(f"lookup {name}: no such host")
        return self._records[name]

    def address(self, host: str) -> str:
        raise AssertionError(host)


@contextmanager
def showing(pair: Pair) -> Iterator[int]:
    """Serve TLS with a certificate; return the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(WAIT_SECONDS_MAX)
                    try:
                        with context.wrap_socket(connection, server_side=True) as secure:
                            secure.recv(1)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), min_size=1, max_size=8)
)
def test_preferred_members_come_first(rows: list[tuple[int, int, bool]]) -> None:
    records: dict[str, list[SrvRecord]] = {}
    for port, (priority, weight, is_secure) in enumerate(rows, 1):
        record = SrvRecord(priority, -weight, "host.cluster.test.", port)
        records.setdefault(SECURE if is_secure else PLAIN, []).append(record)
    found = find_members(DOMAIN, "", Names(records), None, SILENT)
    assert [each.priority for each in found] == sorted(row[0] for row in rows)
    told = {each.port: (each.priority, each.weight, each.scheme == "https") for each in found}
    assert told == dict(enumerate(rows, 1))
    assert {each.endpoint for each in found} == {
        f"{'https' if row[2] else 'http'}://host.cluster.test:{port}"
        for port, row in enumerate(rows, 1)
    }


def test_a_name_is_part_of_the_service() -> None:
    records = {f"_etcd-client-one._tcp.{DOMAIN}": [SrvRecord(0, 0, "host.", 1)]}
    found = find_members(DOMAIN, "one", Names(records), None, SILENT)
    assert found == [FoundMember("http", "host", 1, 0, 0)]
    with pytest.raises(LookupFailedError) as error:
        find_members(DOMAIN, "two", Names(records), None, SILENT)
    assert str(error.value) == (
        f"dns lookup errors: lookup _etcd-client-ssl-two._tcp.{DOMAIN}: no such host and "
        f"lookup _etcd-client-two._tcp.{DOMAIN}: no such host"
    )


def test_only_members_with_good_certificates_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvorum.process.discovery.members.HANDSHAKE_SECONDS_MAX", WAIT_SECONDS_MAX)
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    with (
        showing(ours.issue("host", ["localhost"])) as for_host,
        showing(ours.issue("domain", [DOMAIN])) as for_domain,
        showing(ours.issue("elsewhere", ["elsewhere.test"])) as for_another,
        showing(others.issue("stranger", ["localhost"])) as by_another,
        held_port() as nobody,
    ):
        ports = [for_host, for_domain, for_another, by_another, nobody]
        records = {
            SECURE: [SrvRecord(0, 0, "localhost.", port) for port in ports],
            PLAIN: [SrvRecord(0, 0, "localhost.", 1)],
        }
        trust = Trust(str(ours.cert))
        found = find_members(DOMAIN, "", Names(records), trust, SILENT)
        assert [each.port for each in found] == [for_host, for_domain]
        unchecked = find_members(DOMAIN, "", Names(records), None, SILENT)
        assert [each.port for each in unchecked] == [*ports, 1]
