"""Servers that can be a discovery service, and how a client speaks to them."""

from typing import Any

from kvorum.process.discovery.client import ServiceSettings
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.waiting import WAIT_SECONDS_MAX

RUNNING: dict[str, Any] = {"kvorum": running_kvorum, "etcd": running_etcd}
SETTINGS = ServiceSettings(
    endpoints=(),
    dial_seconds=WAIT_SECONDS_MAX,
    request_seconds=WAIT_SECONDS_MAX,
    ping_seconds=2.0,
    ping_timeout_seconds=WAIT_SECONDS_MAX,
    security=None,
    user="",
    password="",
    token="",
    request_bytes_max=2 * 1024 * 1024,
    answer_bytes_max=4 * 1024 * 1024,
)
