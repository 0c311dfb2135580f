"""Alarms compared with a plain set, through restarts, and with a real etcd."""

import base64
import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.errors import CORRUPT, NO_SPACE
from kvorum.api.pb.etcdserverpb import AlarmMember
from kvorum.state.apply import requests
from kvorum.state.apply.alarms import AlarmRowError, Alarms, AlarmType, MemberAlarm
from kvorum.storage.backend.buckets import ALARM
from tests.database import Database
from tests.etcd import Etcd, running_etcd
from tests.waiting import WAIT_SECONDS_MAX

KINDS = range(requests.RANGE, requests.LEASE_CHECKPOINT + 1)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["activate", "deactivate", "restart"]),
        st.sampled_from([0, 5, (1 << 64) - 1]),
        st.sampled_from([0, 1, 2, 7]),
    ),
    max_size=15,
)


@settings(deadline=None)
@given(STEPS)
def test_alarms_are_a_set_that_survives(steps: list[tuple[str, int, int]]) -> None:
    database = Database()
    alarms, raised = Alarms(database.backend), set[tuple[int, int]]()
    for step, member, kind in steps:
        if step == "activate":
            assert alarms.activate(member, kind) == ([MemberAlarm(kind, member)] if kind else [])
            raised |= {(kind, member)} if kind else set()
        elif step == "deactivate":
            found = [MemberAlarm(kind, member)] if (kind, member) in raised else []
            assert alarms.deactivate(member, kind) == found
            raised.discard((kind, member))
        else:
            database.flush()
            alarms = Alarms(database.reopen())
            alarms.restore()
        assert alarms.raised() == sorted(raised)
        for each in (1, 2, 7):
            assert alarms.raised(each) == sorted(alarm for alarm in raised if alarm[0] == each)
        rows = [AlarmMember.FromString(key) for key, _ in database.backend.items(ALARM)]
        assert {(row.alarm, row.memberID) for row in rows} == raised
    database.close()


NEED_SPACE = {requests.PUT, requests.LEASE_GRANT}
FREE = {requests.ALARM, requests.LEASE_CHECKPOINT}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(kind: int) -> None:
    alarms = Alarms(Database().backend)
    assert alarms.refusal(kind, has_puts=True) is None
    alarms.activate(5, 7)
    assert alarms.refusal(kind, has_puts=True) is None
    alarms.activate(5, AlarmType.NO_SPACE)
    assert alarms.refusal(kind) == (NO_SPACE if kind in NEED_SPACE else None)
    is_txn = kind == requests.TXN
    assert alarms.refusal(kind, has_puts=is_txn) == (
        NO_SPACE if is_txn or kind in NEED_SPACE else None
    )
    # CORRUPT answers, whichever alarm was raised last, and for whichever member.
    alarms.activate(0, AlarmType.CORRUPT)
    alarms.activate(6, AlarmType.NO_SPACE)
    assert alarms.refusal(kind, has_puts=is_txn) == (None if kind in FREE else CORRUPT)
    alarms.deactivate(0, AlarmType.CORRUPT)
    alarms.deactivate(5, AlarmType.NO_SPACE)
    assert alarms.refusal(kind) == (NO_SPACE if kind in NEED_SPACE else None)


def test_texts() -> None:
    assert str(MemberAlarm(AlarmType.NO_SPACE, 5)) == "memberID:5 alarm:NOSPACE"
    assert str(MemberAlarm(AlarmType.CORRUPT, 0)) == "alarm:CORRUPT"
    assert str(MemberAlarm(7, 1)) == "memberID:1 alarm:7"


def test_a_damaged_row_is_noticed() -> None:
    database = Database()
    database.backend.put(ALARM, b"\xff", b"")
    with pytest.raises(AlarmRowError, match=r"row ff: .* damaged"):
        Alarms(database.backend).restore()


def ask(etcd: Etcd, method: str, **request: Any) -> dict[str, Any] | tuple[int, str]:
    connection = http.client.HTTPConnection(etcd.address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("POST", f"/v3/{method}", json.dumps(request))
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    return answer if response.status == 200 else (answer["code"], answer["message"])


A = base64.b64encode(b"a").decode()
PUT_A = {"requestPut": {"key": A}}
CALLS: list[tuple[int, bool, str, dict[str, Any]]] = [
    (requests.PUT, False, "kv/put", {"key": A}),
    (requests.DELETE_RANGE, False, "kv/deleterange", {"key": A}),
    (requests.TXN, True, "kv/txn", {"success": [PUT_A]}),
    (requests.TXN, True, "kv/txn", {"failure": [PUT_A]}),
    (requests.TXN, False, "kv/txn", {"success": [{"requestDeleteRange": {"key": A}}]}),
    (requests.LEASE_GRANT, False, "lease/grant", {"ID": 5, "TTL": 100}),
    (requests.LEASE_REVOKE, False, "lease/revoke", {"ID": 5}),
    (requests.COMPACTION, False, "kv/compaction", {"revision": 1}),
]


@pytest.mark.parametrize("kind", [AlarmType.NO_SPACE, AlarmType.CORRUPT])
def test_etcd_refuses_the_same(tmp_path: Path, kind: int) -> None:
    alarms = Alarms(Database().backend)
    with running_etcd(tmp_path / "etcd") as etcd:
        ask(etcd, "lease/grant", ID=5, TTL=100)
        steps = [("GET", 0, 0), ("ACTIVATE", 8, kind), ("ACTIVATE", 9, kind), ("ACTIVATE", 9, 0)]
        steps += [("DEACTIVATE", 0, kind), ("DEACTIVATE", 9, kind), ("GET", 0, kind)]
        for action, member, each in steps:
            theirs = ask(etcd, "maintenance/alarm", action=action, memberID=member, alarm=each)
            assert isinstance(theirs, dict)
            if action == "GET":
                ours = alarms.raised(each)
            else:
                ours = getattr(alarms, action.lower())(member, each)
            listed = [(each["alarm"], int(each["memberID"])) for each in theirs.get("alarms", [])]
            names = {AlarmType.NO_SPACE: "NOSPACE", AlarmType.CORRUPT: "CORRUPT"}
            assert listed == [(names[alarm.type], alarm.member_id) for alarm in ours]
        for field, has_puts, method, request in CALLS:
            refusal = alarms.refusal(field, has_puts=has_puts)
            answer = ask(etcd, method, **request)
            if refusal is not None:
                assert answer == (refusal.code, refusal.text), method
            elif not isinstance(answer, dict):
                # Refused because of its content, not because of an alarm.
                assert answer[1] not in (CORRUPT.text, NO_SPACE.text), method
        status = ask(etcd, "maintenance/status")
        assert isinstance(status, dict)
        # This version of etcd adds a blank at the end.
        texts = [text.removesuffix(" ") for text in status["errors"]]
        assert texts == [str(alarm) for alarm in alarms.raised()]
