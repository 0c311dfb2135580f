"""The member's options, derived from the server's `Config`."""

from kvorum.api.durations import SECOND
from kvorum.member.config import MemberConfig
from kvorum.process.settings.config import Config
from kvorum.state.membership.bootstrap import parse_initial_cluster


def member_config(config: Config, directory: str) -> MemberConfig:
    """Return the options of the member with its files in `directory`.

    Raise BootstrapError if the initial cluster cannot be parsed.
    """
    gates = config.gates
    is_by_age = config.compaction_mode == "periodic"
    return MemberConfig(
        name=config.name,
        directory=directory,
        wal_directory=config.wal_directory,
        initial_cluster=parse_initial_cluster(config.initial_cluster),
        initial_cluster_token=config.initial_cluster_token,
        force_new_cluster=config.force_new_cluster,
        client_urls=tuple(str(url) for url in config.advertise_client_urls),
        heartbeat_seconds=config.heartbeat_seconds,
        election_ticks=config.election_ticks,
        pre_vote=config.pre_vote,
        request_bytes_max=config.request_bytes_max,
        prioritizes_revokes=gates["PriorityRequest"],
        quota_bytes=config.quota_bytes,
        learners_max=config.learners_max,
        strict_reconfig=config.strict_reconfig_check,
        snapshot_entries=config.snapshot_entries,
        catch_up_entries=config.catch_up_entries,
        snapshots_kept=config.snapshots_max,
        segments_kept=config.wals_max,
        flush_seconds=config.batch_seconds,
        flush_writes_max=config.batch_writes_max,
        compaction_batch=config.compaction_batch_revisions,
        compaction_pause_seconds=config.compaction_sleep_seconds,
        retention_seconds=config.compaction_retention / SECOND if is_by_age else 0.0,
        retention_revisions=0 if is_by_age else config.compaction_retention,
        lease_checkpoints=gates["LeaseCheckpoint"],
        fast_keep_alive=gates["FastLeaseKeepAlive"],
        initial_corrupt_check=gates["InitialCorruptCheck"],
        corrupt_check_seconds=config.corrupt_check_seconds,
        compact_hash_check_seconds=(
            config.compact_hash_check_seconds if gates["CompactHashCheck"] else 0.0
        ),
        downgrade_check_seconds=config.downgrade_check_seconds,
        bcrypt_cost=config.bcrypt_cost,
        watch_progress_seconds=config.progress_notify_seconds,
    )
