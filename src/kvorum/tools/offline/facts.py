"""The small buckets in which a database describes its cluster, held in memory.

Restoring or migrating a database rewrites only these buckets; all others stream through unchanged,
however large they are.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.raft.messages import NO_MEMBERS, ConfState
from kvorum.state.membership.agreement import describe_difference, promoted_learners
from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.documents import decode_conf_state, encode_conf_state, encode_member
from kvorum.state.membership.v2_store import snapshot_data
from kvorum.storage.backend import Backend, View
from kvorum.storage.backend.bbolt import Image
from kvorum.storage.backend.buckets import (
    CLUSTER,
    CONF_STATE,
    CONSISTENT_INDEX,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    TERM,
)
from kvorum.storage.backend.images import Content, SealedContent
from kvorum.tools.offline.progress import ImageContent

AnyEntries = TypeVar("AnyEntries")

_BUCKETS = (CLUSTER, MEMBERS, MEMBERS_REMOVED, META)


class ClusterBuckets:
    """An editable copy of the buckets that describe the cluster."""

    def __init__(self, source: Image | View) -> None:
        self.buckets = {bucket: dict(source.items(bucket)) for bucket in _BUCKETS}

    def get(self, bucket: bytes, name: bytes) -> bytes | None:
        """Return the value of an entry, or None."""
        return self.buckets[bucket].get(name)

    def items(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        """Return the entries of a bucket, sorted by name."""
        return sorted(self.buckets[bucket].items())

    @property
    def index(self) -> int:
        """The index of the last log entry whose effects the database holds."""
        return int.from_bytes(self.get(META, CONSISTENT_INDEX) or b"", "big")

    @property
    def conf_state(self) -> ConfState:
        """Raft's configuration at `index`; `NO_MEMBERS` if the database does not record it."""
        document = self.get(META, CONF_STATE)
        return NO_MEMBERS if document is None else decode_conf_state(document)

    def set_applied(self, index: int, term: int, conf_state: ConfState) -> None:
        """Record the last applied entry's index and term, and Raft's configuration there."""
        self.buckets[META] |= {
            CONSISTENT_INDEX: index.to_bytes(8, "big"),
            TERM: term.to_bytes(8, "big"),
            CONF_STATE: encode_conf_state(conf_state),
        }

    def cluster(self, metadata: bytes) -> Membership:
        """Return the membership, read-only, for the member that the log's metadata names."""
        ids = Metadata.FromString(metadata)
        # Cluster.restore calls only `get` and `items` of its backend.
        cluster = Membership(cast("Backend", self), ids.ClusterID, ids.NodeID)
        cluster.restore()
        return cluster

    def correct_members(self, metadata: bytes, conf_state: ConfState) -> str:
        """Promote stored learners that vote in Raft; return how else members differ from Raft's.

        The result is "" if nothing else differs.
        """
        members = self.cluster(metadata).members
        for each in promoted_learners(members, conf_state):
            self.buckets[MEMBERS][b"%x" % each.id] = encode_member(each)
        return describe_difference(members, conf_state)

    def document(self, metadata: bytes) -> bytes:
        """Return the membership as Raft snapshots carry it."""
        return snapshot_data(self.cluster(metadata))

    def content(self, content: Content) -> Content:
        """Yield the content of a database with these buckets in place of its own."""
        return self._merged(content, lambda bucket: iter(self.items(bucket)))

    def sealed_content(self, content: SealedContent) -> SealedContent:
        """Do what `content` does, for content that comes in pieces."""
        return self._merged(content, lambda bucket: iter([self.items(bucket)]))

    def image_content(self, content: ImageContent) -> ImageContent:
        """Do what `content` does, for an image to be written."""
        return self._merged(content, lambda bucket: iter(self.items(bucket)))

    def _merged(
        self, content: Iterator[tuple[bytes, AnyEntries]], own: Callable[[bytes], AnyEntries]
    ) -> Iterator[tuple[bytes, AnyEntries]]:
        pending = list(_BUCKETS)
        for bucket, entries in content:
            # Read these late: a consumer of earlier buckets may still change them.
            while pending and pending[0] < bucket:
                yield pending[0], own(pending.pop(0))
            if bucket not in _BUCKETS:
                yield bucket, entries
        for bucket in pending:
            yield bucket, own(bucket)
