"""The effective configuration, as etcd logs it when a server starts.

Names and formats of the fields are etcd's, because operators and their scripts read them.
"""

from collections.abc import Mapping
from typing import Any

from kvorum.api.durations import SECOND, duration_text
from kvorum.process.settings.config import ROWS, Config
from kvorum.process.settings.flags import ALL
from kvorum.process.settings.rows import FlagRow

_RENAMED = {
    "corrupt-check-time": "corrupt-check-time-interval",
    "compact-hash-check-time": "compact-check-time-interval",
    "downgrade-check-time": "downgrade-check-interval",
}
_SHOWN = (
    *("name", "data-dir", "wal-dir", "force-new-cluster", "initial-election-tick-advance"),
    *("snapshot-count", "max-wals", "max-snapshots", "snapshot-catchup-entries"),
    *("initial-advertise-peer-urls", "listen-peer-urls", "advertise-client-urls"),
    *("listen-client-urls", "listen-metrics-urls", "cors", "host-whitelist"),
    *("initial-cluster-state", "initial-cluster-token", "quota-backend-bytes"),
    *("max-request-bytes", "max-concurrent-streams", "pre-vote", "feature-gates"),
    *("corrupt-check-time", "compact-hash-check-time", "auto-compaction-mode"),
    *("discovery-token", "discovery-endpoints", "discovery-dial-timeout"),
    *("discovery-request-timeout", "discovery-keepalive-time", "discovery-keepalive-timeout"),
    *("discovery-insecure-transport", "discovery-insecure-skip-tls-verify", "discovery-cert"),
    *("discovery-key", "discovery-cacert", "discovery-user", "downgrade-check-time"),
    *("max-learners", "v2-deprecation"),
)
"""Flags whose log fields depend only on their own values."""
_ROWS = {flag.name: flag for flag in ALL}
_FIELDS = {flag.name: field for field, flag in ROWS.items()}


def effective(
    config: Config, member_directory: str, initial_cluster: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return the fields by etcd's names; callers pass no initial cluster if there is a WAL."""
    found = {_RENAMED.get(name, name): _shown(config, _ROWS[name]) for name in _SHOWN}
    election_seconds = config.heartbeat_seconds * config.election_ticks
    retention = duration_text(config.compaction_retention)
    pairs = [f"{name}={url}" for name, urls in initial_cluster.items() for url in urls]
    return found | {
        "wal-dir-dedicated": config.wal_directory,
        "member-dir": member_directory,
        "heartbeat-interval": _time(config.heartbeat_seconds),
        "election-timeout": _time(election_seconds),
        "local-address": config.peer_local_address,
        "initial-cluster": ",".join(sorted(pairs)),
        "initial-cluster-token": config.initial_cluster_token if pairs else "",
        "initial-corrupt-check": config.gates["InitialCorruptCheck"],
        "auto-compaction-retention": retention,
        "auto-compaction-interval": retention,
    }


def _shown(config: Config, flag: FlagRow) -> object:
    field = _FIELDS.get(flag.name)
    value: Any = flag.kind.parse(flag.default) if field is None else getattr(config, field)
    if flag.name == "discovery-endpoints":
        return value if isinstance(value, str) else ",".join(value)
    if flag.kind.name == "duration":
        return _time(value)
    if flag.kind.name == "gates":
        return ",".join(sorted(f"{name}={str(on).lower()}" for name, on in value))
    return sorted(map(str, value)) if isinstance(value, tuple) else value


def _time(seconds: Any) -> str:
    return duration_text(round(seconds * SECOND))
