"""The content of a database at a point: a snapshot's, and the rows of the log after it.

All rows of the log are newer than the snapshot, so they follow its rows; one segment of them is in
memory at a time. Leases that were granted after the snapshot come with the keys attached to them.
"""

from itertools import chain

from kvorum.api.pb.leasepb import Lease
from kvorum.state.mvcc.keyvalue import lease_of
from kvorum.storage.backend.buckets import KEY, LEASE
from kvorum.storage.backend.images import Content, Entries
from kvorum.tools.backup.points import Point, read_segment_of
from kvorum.tools.backup.stores import ArchiveStore


def merge_log(content: Content, store: ArchiveStore, point: Point) -> Content:
    """Yield the content of a point's snapshot with the changes up to the point."""
    leases: dict[bytes, bytes] = {}
    # Bucket `lease` comes after bucket `key`, so the rows have named all leases by then.
    for bucket, entries in content:
        if bucket == KEY:
            yield bucket, chain(entries, _rows(store, point, leases))
        elif bucket == LEASE:
            yield bucket, _merge_rows(entries, leases)
        else:
            yield bucket, entries


def _rows(store: ArchiveStore, point: Point, leases: dict[bytes, bytes]) -> Entries:
    revision = point.snapshot.revision
    for name in point.segments:
        segment = read_segment_of(store, name)
        for each in segment.revisions:
            if revision < each.number <= point.revision:
                revision = each.number
                for key, value in each.rows:
                    lease = lease_of(value)
                    if lease:
                        document = Lease(ID=lease, TTL=segment.leases[lease])
                        name_of_lease = lease.to_bytes(8, "big", signed=True)
                        leases.setdefault(name_of_lease, document.SerializeToString())
                    yield key, value
    assert revision == point.revision, f"the log ends at {revision}, before {point.revision}"


def _merge_rows(entries: Entries, added: dict[bytes, bytes]) -> Entries:
    """Merge two sets of sorted entries; on the same name, the first set's entry wins."""
    waiting = sorted(added.items(), reverse=True)
    for name, value in entries:
        while waiting and waiting[-1][0] < name:
            yield waiting.pop()
        if waiting and waiting[-1][0] == name:
            waiting.pop()
        yield name, value
    while waiting:
        yield waiting.pop()
