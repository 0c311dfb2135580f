"""Log lines about entries, in etcd's words and with etcd's fields.

Compiled modules call the named functions here instead of `log_fields`: a logger finds its caller by
frames, which compiled code lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.raft.logger import log_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.state.apply.alarms import MemberAlarm
    from kvorum.state.apply.state import State
    from kvorum.state.membership.versions import Version


def log_changed_alarms(state: State, message: str, alarms: Sequence[MemberAlarm]) -> None:
    """Log alarms that were raised or disarmed."""
    for alarm in alarms:
        log_fields(
            state.logger,
            "warn",
            message,
            alarm=alarm.type_name,
            **{"from": f"{alarm.member_id:x}"},
        )


def log_version_change(state: State, before: Version | None, version: Version) -> None:
    """Log a new cluster version."""
    if before is None:
        log_fields(
            state.logger,
            "info",
            "set initial cluster version",
            cluster_id=f"{state.cluster.cluster_id:x}",
            local_member_id=f"{state.cluster.local_id:x}",
            cluster_version=_minor(version),
        )
    else:
        log_fields(
            state.logger,
            "info",
            "updated cluster version",
            cluster_id=f"{state.cluster.cluster_id:x}",
            local_member_id=f"{state.cluster.local_id:x}",
            **{"from": _minor(before)},
            to=_minor(version),
        )


def _minor(version: Version) -> str:
    return f"{version.major}.{version.minor}"
