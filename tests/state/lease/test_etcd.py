"""A real etcd and a lessor are asked the same; the answers and the stored rows are the same."""

import base64
import http.client
import json
from pathlib import Path
from random import Random
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION
from kvorum.state.lease import Lessor
from kvorum.state.lease.lease import Lease, row_key, row_value
from tests.database import Database
from tests.etcd import Etcd, running_etcd
from tests.state.lease.model import outcome
from tests.waiting import WAIT_SECONDS_MAX

IDS = [1, 2, 77, -1, -(1 << 63), (1 << 63) - 1]
KEYS = [b"a", b"b", b"c"]
TTL_STEP_SECONDS = 600


def ask(etcd: Etcd, method: str, **request: Any) -> dict[str, Any] | tuple[int, str]:
    """Return the answer without its header, or the code and text of the refusal."""
    connection = http.client.HTTPConnection(etcd.address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("POST", f"/v3/{method}", json.dumps(request))
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        return answer["code"], answer["message"]
    answer = answer.get("result", answer)
    answer.pop("header")
    return answer


def refusal(answer: object) -> object:
    return (int(answer.code), answer.text) if isinstance(answer, Status) else answer


class Both:
    """Does everything twice. Keys are only attached: the store is not asked here."""

    def __init__(self, etcd: Etcd, lessor: Lessor) -> None:
        self.etcd = etcd
        self.lessor = lessor
        lessor.promote(0.0, 0.0)

    def grant(self, lease_id: int, ttl: int) -> None:
        theirs = ask(self.etcd, "lease/grant", ID=lease_id, TTL=ttl)
        ours = refusal(outcome(lambda: self.lessor.grant(lease_id, ttl, 0.0)))
        if isinstance(theirs, dict):
            assert theirs == {"ID": str(lease_id), "TTL": str(ours)}
        else:
            assert ours == theirs

    def revoke(self, lease_id: int) -> None:
        theirs = ask(self.etcd, "lease/revoke", ID=lease_id)
        ours = refusal(outcome(lambda: self.lessor.forget(lease_id)))
        assert ours == (None if isinstance(theirs, dict) else theirs)

    def attach(self, lease_id: int, key: bytes) -> None:
        theirs = ask(self.etcd, "kv/put", key=base64.b64encode(key).decode(), lease=lease_id)
        if isinstance(theirs, dict):
            self.lessor.attach(lease_id, key)
        else:
            assert not self.lessor.reattach(lease_id, key)

    def detach(self, key: bytes) -> None:
        ask(self.etcd, "kv/put", key=base64.b64encode(key).decode())
        self.lessor.detach(self.lessor.lease_of(key), key)

    def keep_alive(self, lease_id: int) -> None:
        theirs = ask(self.etcd, "lease/keepalive", ID=lease_id)
        assert isinstance(theirs, dict)
        ours = self.lessor.renew(lease_id, 0.0)
        assert int(theirs.get("TTL", 0)) == (ours if isinstance(ours, int) else 0)

    def time_to_live(self, lease_id: int) -> None:
        theirs = ask(self.etcd, "lease/timetolive", ID=lease_id, keys=True)
        assert isinstance(theirs, dict)
        ours = self.lessor.time_to_live(lease_id, 0.0)
        if ours is None:
            assert theirs == {"ID": str(lease_id), "TTL": "-1"}
            return
        assert int(theirs["grantedTTL"]) == ours.granted
        # Time passes there and not here.
        assert 0 <= ours.remaining - int(theirs["TTL"]) < TTL_STEP_SECONDS
        keys = sorted(base64.b64decode(key) for key in theirs.get("keys", []))
        assert keys == self.lessor.sorted_keys(lease_id)

    def leases(self) -> None:
        theirs = ask(self.etcd, "lease/leases")
        assert isinstance(theirs, dict)
        listed = [int(lease["ID"]) for lease in theirs.get("leases", [])]
        assert listed == self.lessor.leases()


def test_etcd_and_the_lessor_answer_alike(tmp_path: Path) -> None:
    database = Database()
    random = Random(1)
    # With the ticks that the helper gives etcd, the shortest lease takes one second.
    with running_etcd(tmp_path / "etcd") as etcd:
        both = Both(etcd, Lessor(database.backend, PRODUCTION, ttl_seconds_min=1))
        # Far apart, and far from their end, so that the test may take its time.
        ttls = [*range(1000, 9000, TTL_STEP_SECONDS), 9 * 10**9, 9 * 10**9 + 1, 1 << 62]
        for _ in range(400):
            lease_id, key = random.choice(IDS), random.choice(KEYS)
            chance = random.random()
            if chance < 0.25:
                ttl = ttls.pop(0) if random.random() < 0.9 else 9 * 10**9 + 1
                ttls.append(ttl)
                both.grant(lease_id, ttl)
            elif chance < 0.35:
                both.revoke(lease_id)
                for each in KEYS:
                    if both.lessor.lease_of(each) == lease_id:
                        both.lessor.detach(lease_id, each)
            elif chance < 0.6:
                both.attach(lease_id, key)
            elif chance < 0.65:
                both.detach(key)
            elif chance < 0.75:
                both.keep_alive(lease_id)
            else:
                both.time_to_live(lease_id)
            both.leases()
        both.grant(500, 0)
        both.grant(501, -7)


def test_etcd_stores_the_same_rows(tmp_path: Path) -> None:
    leases = [Lease(lease_id, 100 + number) for number, lease_id in enumerate(IDS)]
    with running_etcd(tmp_path / "etcd") as etcd:
        for lease in leases:
            ask(etcd, "lease/grant", ID=lease.id, TTL=lease.ttl)
    file = (tmp_path / "etcd" / "member" / "snap" / "db").read_bytes()
    for lease in leases:
        # A leaf of its file holds key and value side by side.
        assert row_key(lease.id) + row_value(lease) in file
