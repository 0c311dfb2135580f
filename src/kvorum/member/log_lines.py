"""Log lines that operators and tools look for: in etcd's words, with etcd's fields.

Compiled modules call the named functions here instead of `log_fields`: a logger finds its caller by
frames, which compiled code lacks. `kvorum.state.apply.log_lines` has the lines about entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.durations import seconds_text
from kvorum.api.errors import NO_SPACE
from kvorum.raft.changes import ChangeType
from kvorum.raft.logger import log_fields

if TYPE_CHECKING:
    from kvorum.member.replica import Replica
    from kvorum.raft.changes import ConfChange
    from kvorum.state.membership.documents import MemberDocument as Peer

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def size_text(count: int) -> str:
    """Return a number of bytes as etcd's logs write it: 82 B, 1.2 MB, 20 kB."""
    if count < 10:
        return f"{count} B"
    unit = 0
    while unit + 1 < len(_UNITS) and count >= 1000 ** (unit + 1):
        unit += 1
    value = int(count / 1000**unit * 10 + 0.5) / 10
    return f"{value:.1f} {_UNITS[unit]}" if value < 10 else f"{value:.0f} {_UNITS[unit]}"


def _sizes(replica: Replica) -> dict[str, object]:
    size, in_use = replica.state.backend.size_bytes, replica.state.backend.size_in_use_bytes
    return {
        "current_db_size_bytes": size,
        "current_db_size": size_text(size),
        "current_db_size_in_use_bytes": in_use,
        "current_db_size_in_use": size_text(in_use),
    }


# Compaction and defragmentation.


def log_compaction_end(replica: Replica, began_at: float, removed: int) -> None:
    """Log the end of a compaction."""
    compaction = replica.state.store.compaction
    found = compaction.hash_of(compaction.finished_revision)
    log_fields(
        replica.logger,
        "info",
        "finished scheduled compaction",
        compact_revision=compaction.finished_revision,
        took=seconds_text(replica.now - began_at),
        number_of_keys_compacted=removed,
        **({} if found is None else {"hash": found.hash}),
        **_sizes(replica),
    )


def log_defragmentation_start(replica: Replica) -> tuple[float, int, int]:
    """Log the start of a defragmentation; return the data `log_defragmentation_end` needs."""
    log_fields(
        replica.logger,
        "info",
        "defragmenting",
        path=replica.state.backend.directory,
        **_sizes(replica),
    )
    return replica.now, replica.state.backend.size_bytes, replica.state.backend.size_in_use_bytes


def log_defragmentation_end(replica: Replica, before: tuple[float, int, int]) -> None:
    """Log the end of a defragmentation and the space that it freed."""
    began_at, size, in_use = before
    log_fields(
        replica.logger,
        "info",
        "finished defragmenting directory",
        path=replica.state.backend.directory,
        current_db_size_bytes_diff=replica.state.backend.size_bytes - size,
        current_db_size_in_use_bytes_diff=replica.state.backend.size_in_use_bytes - in_use,
        **_sizes(replica),
        took=seconds_text(replica.now - began_at),
    )


# Raft's snapshots.


def log_snapshot_start(replica: Replica, index: int, newest: int) -> None:
    """Log that the member takes a raft snapshot, and the index of the newest before it."""
    log_fields(
        replica.logger,
        "info",
        "triggering snapshot",
        local_member_id=f"{replica.id:x}",
        local_member_applied_index=index,
        local_member_snapshot_index=newest,
        local_member_snapshot_count=replica.config.snapshot_entries,
        snapshot_forced=replica.snapshots.is_wanted,
    )


def log_saved_snapshot(replica: Replica, index: int) -> None:
    """Log that a raft snapshot is durable."""
    log_fields(replica.logger, "info", "saved snapshot to disk", snapshot_index=index)


def log_dropped_entries(replica: Replica, index: int) -> None:
    """Log up to which index the member dropped entries from memory."""
    log_fields(replica.logger, "debug", "compacted Raft logs", compact_index=index)


# Membership and hashes from the database.


def log_recovered_members(replica: Replica) -> None:
    """Log the cluster's members according to an opened or received database."""
    for found in replica.state.cluster.members:
        log_fields(
            replica.logger,
            "info",
            "recovered/added member from store",
            cluster_id=f"{replica.state.cluster.cluster_id:x}",
            local_member_id=f"{replica.id:x}",
            recovered_remote_peer_id=f"{found.id:x}",
            recovered_remote_peer_urls=list(found.peer_urls),
            recovered_remote_peer_is_learner=found.is_learner,
        )


def log_hash_check_end(replica: Replica, count: int) -> None:
    """Log how many compaction hashes the leader compared with its peers."""
    log_fields(
        replica.logger, "info", "finished compaction hash check", number_of_hashes_checked=count
    )


# Quota and membership changes.


def log_exceeded_quota(replica: Replica, quota_bytes: int) -> None:
    """Log that a request exceeds the database's quota."""
    log_fields(
        replica.logger,
        "warn",
        "message exceeded backend quota; raising alarm",
        quota_size_bytes=quota_bytes,
        quota_size=size_text(quota_bytes),
        error=NO_SPACE.text,
    )


def log_applied_change(replica: Replica, change: ConfChange, before: Peer | None) -> None:
    """Log a membership change; `before` is the member before it."""
    found = replica.state.cluster.member(change.node_id) or before
    if found is None:
        return
    urls, number = list(found.peer_urls), f"{change.node_id:x}"
    common = {
        "cluster_id": f"{replica.state.cluster.cluster_id:x}",
        "local_member_id": f"{replica.id:x}",
    }
    if change.type == ChangeType.REMOVE_NODE:
        log_fields(
            replica.logger,
            "info",
            "removed member",
            **common,
            removed_remote_peer_id=number,
            removed_remote_peer_urls=urls,
            removed_remote_peer_is_learner=found.is_learner,
        )
    elif change.type == ChangeType.UPDATE_NODE:
        log_fields(
            replica.logger,
            "info",
            "updated member",
            **common,
            updated_remote_peer_id=number,
            updated_remote_peer_urls=urls,
            updated_remote_peer_is_learner=found.is_learner,
        )
    elif before is not None:
        log_fields(replica.logger, "info", "promote member", **common, promoted_member_id=number)
    else:
        log_fields(
            replica.logger,
            "info",
            "added member",
            **common,
            added_peer_id=number,
            added_peer_peer_urls=urls,
            added_peer_is_learner=found.is_learner,
        )
