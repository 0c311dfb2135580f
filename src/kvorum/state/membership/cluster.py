"""The members of the cluster, as the entries of the log define them.

The buckets `members`, `members_removed` and `cluster` are the one source of truth, with a copy in
memory. Only entries of the log change them, so that every member judges a change by the same state;
a refused change is a no-op for Raft. The id of a removed member never comes back.
"""

from dataclasses import replace

from kvorum.api.errors import (
    MEMBER_BAD_URLS,
    MEMBER_EXIST,
    MEMBER_NOT_ENOUGH_STARTED,
    MEMBER_NOT_FOUND,
    MEMBER_NOT_LEARNER,
    PEER_URL_EXIST,
    TOO_MANY_LEARNERS,
    Status,
)
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import ConfState
from kvorum.state.membership.agreement import describe_difference, promoted_learners
from kvorum.state.membership.documents import (
    ChangeContext,
    DocumentError,
    MemberDocument,
    decode_context,
    decode_downgrade,
    decode_member,
    encode_downgrade,
    encode_member,
)
from kvorum.state.membership.urls import UrlError, checked_urls
from kvorum.state.membership.versions import (
    STORAGE_VERSION_MIN,
    STORED_VERSION_MIN,
    Version,
    decide_storage_version,
    parse_version,
)
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.buckets import (
    CLUSTER,
    CLUSTER_VERSION,
    DOWNGRADE,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    STORAGE_VERSION,
)

LEARNERS_MAX = 1
_REMOVED = b"removed"
ADDITIONS = (ChangeType.ADD_NODE, ChangeType.ADD_LEARNER_NODE)


class MembershipError(Exception):
    """The log or the storage holds impossible data about members."""


class Membership:
    """Members, removed ids, and the cluster's agreed version and downgrade job."""

    def __init__(
        self, backend: Backend, cluster_id: int, local_id: int, *, learners_max: int = LEARNERS_MAX
    ) -> None:
        self.cluster_id = cluster_id
        self.local_id = local_id
        self._learners_max = learners_max
        self._backend = backend
        # In ascending order of ids.
        self._members: dict[int, MemberDocument] = {}
        self._removed: set[int] = set()
        self._version: Version | None = None
        self._storage_version: Version | None = None
        self._downgrade_target: Version | None = None
        self.generation = 0
        """A counter that every change of members, names or URLs increments."""

    def restore(self) -> None:
        """Read the membership from the storage."""
        # Read all rows instead of single names: a row with a damaged name would seem absent.
        cluster = dict(self._backend.items(CLUSTER))
        try:
            members = [decode_member(value) for _, value in self._backend.items(MEMBERS)]
            removed = [int(key, 16) for key, _ in self._backend.items(MEMBERS_REMOVED)]
            self._version = _optional_version(cluster.get(CLUSTER_VERSION))
            self._storage_version = _optional_version(self._backend.get(META, STORAGE_VERSION))
            downgrade = cluster.get(DOWNGRADE)
            target = None if downgrade is None else decode_downgrade(downgrade)
            self._downgrade_target = None if target is None else parse_version(target)
        except ValueError as error:
            raise MembershipError(f"the stored membership cannot be read: {error}") from error
        self._members = {each.id: each for each in sorted(members, key=lambda each: each.id)}
        self._removed = set(removed)

    @property
    def members(self) -> list[MemberDocument]:
        """All members, in ascending order of their ids."""
        return list(self._members.values())

    @property
    def voters(self) -> list[MemberDocument]:
        """The members that vote, in ascending order of their ids."""
        return [member for member in self._members.values() if not member.is_learner]

    @property
    def learners(self) -> list[MemberDocument]:
        """The learners, in ascending order of their ids."""
        return [member for member in self._members.values() if member.is_learner]

    @property
    def removed(self) -> list[int]:
        """The ids of removed members, in ascending order."""
        return sorted(self._removed)

    def member(self, member_id: int) -> MemberDocument | None:
        """Return the member with this id; None if there is none."""
        return self._members.get(member_id)

    def is_removed(self, member_id: int) -> bool:
        """Return whether this id belongs to a removed member."""
        return member_id in self._removed

    @property
    def is_learner(self) -> bool:
        """Whether this member is a learner."""
        local = self._members.get(self.local_id)
        return local is not None and local.is_learner

    # Configuration changes.

    def validate(self, change: ConfChange) -> Status | None:
        """Return the error that refuses a change in the present state; None if it is possible.

        Raises MembershipError for a change that no proposer makes.
        """
        return self._judge(change, self._context(change))

    def apply(self, change: ConfChange) -> Status | None:
        """Make a change, or return its refusal; Raft then gets the change with node 0."""
        context = self._context(change)
        refusal = self._judge(change, context)
        if refusal is not None:
            return refusal
        node, member = change.node_id, context.member
        if change.type == ChangeType.REMOVE_NODE:
            del self._members[node]
            self._removed.add(node)
            self.generation += 1
            self._backend.delete(MEMBERS, _row(node))
            self._backend.put(MEMBERS_REMOVED, _row(node), _REMOVED)
        elif change.type == ChangeType.UPDATE_NODE:
            self._store(replace(self._members[node], peer_urls=member.peer_urls))
        elif context.is_promotion:
            self._store(replace(self._members[node], is_learner=False))
        else:
            self._store(member)
        return None

    def correct(self, conf_state: ConfState) -> tuple[list[MemberDocument], str]:
        """Make voters of stored learners that vote; return them, and text on other differences."""
        corrected = promoted_learners(self.members, conf_state)
        for member in corrected:
            self._store(member)
        return corrected, describe_difference(self.members, conf_state)

    # Attributes, versions and downgrades, which members and leaders publish to the cluster.

    def set_attributes(self, member_id: int, name: str, client_urls: tuple[str, ...]) -> None:
        """Store a member's published name and client URLs; ignore a removed member."""
        member = self._members.get(member_id)
        if member is not None:
            self._store(replace(member, name=name, client_urls=client_urls))
        elif member_id not in self._removed:
            raise MembershipError(
                f"member {member_id:x} publishes itself as {name!r} but was never added; "
                f"members are {[f'{each:x}' for each in self._members]}"
            )

    @property
    def version(self) -> Version | None:
        """The cluster's agreed version; None before the first agreement."""
        return self._version

    def set_version(self, version: Version) -> None:
        """Store the cluster's agreed version."""
        self._version = version
        self._backend.put(CLUSTER, CLUSTER_VERSION, str(version).encode())

    @property
    def downgrade_target(self) -> Version | None:
        """The target version of a downgrade job; None without such a job."""
        return self._downgrade_target

    def set_downgrade_target(self, target: Version | None) -> None:
        """Start a downgrade job, or end it with None."""
        self._downgrade_target = target
        document = encode_downgrade(str(target or ""), is_enabled=target is not None)
        self._backend.put(CLUSTER, DOWNGRADE, document)

    @property
    def storage_version(self) -> Version | None:
        """The version of this member's storage; None if it is unknown."""
        if self._storage_version is None and self._version is not None:
            return STORAGE_VERSION_MIN
        return self._storage_version

    def set_storage_version(self, version: Version) -> None:
        """Set the version of this member's storage; versions below 3.6 are not stored."""
        if version < STORED_VERSION_MIN:
            self._storage_version = None
            self._backend.delete(META, STORAGE_VERSION)
            return
        self._storage_version = version
        self._backend.put(META, STORAGE_VERSION, str(version).encode())

    def adjust_storage_version(self) -> None:
        """Set the version of this member's storage according to the cluster's version."""
        storage = decide_storage_version(self.storage_version, self._version)
        if storage is not None:
            self.set_storage_version(storage)

    def _store(self, member: MemberDocument) -> None:
        is_new = member.id not in self._members
        self._members[member.id] = member
        self.generation += 1
        if is_new:
            self._members = dict(sorted(self._members.items()))
        self._backend.put(MEMBERS, _row(member.id), encode_member(member))

    def _context(self, change: ConfChange) -> ChangeContext:
        if change.type == ChangeType.REMOVE_NODE:
            return ChangeContext(MemberDocument(change.node_id))
        try:
            context = decode_context(change.context)
        except DocumentError as error:
            raise MembershipError(f"change of node {change.node_id:x}: {error}") from error
        if context.member.id != change.node_id:
            raise MembershipError(
                f"change of node {change.node_id:x}names member {context.member.id:x}"
            )
        return context

    def _judge(self, change: ConfChange, context: ChangeContext) -> Status | None:
        node, peer_urls = change.node_id, context.member.peer_urls
        if node in self._removed:
            return MEMBER_NOT_FOUND
        known = self._members.get(node)
        if change.type in ADDITIONS and not context.is_promotion:
            if known is not None:
                return MEMBER_EXIST
            if self._is_url_taken(node, peer_urls):
                return PEER_URL_EXIST
            if change.type == ChangeType.ADD_LEARNER_NODE and context.member.is_learner:
                return TOO_MANY_LEARNERS if len(self.learners) >= self._learners_max else None
            return None
        if known is None:
            return MEMBER_NOT_FOUND
        if change.type in ADDITIONS:
            return None if known.is_learner else MEMBER_NOT_LEARNER
        if change.type == ChangeType.UPDATE_NODE:
            try:
                checked_urls(peer_urls)
            except UrlError:
                return MEMBER_BAD_URLS
            return PEER_URL_EXIST if self._is_url_taken(node, peer_urls) else None
        assert change.type == ChangeType.REMOVE_NODE, f"change of unknown type {change.type}"
        # The last voter's removal gets this far without the strict checks, or when they knew less.
        # No member could apply it, now or after any restart.
        return MEMBER_NOT_ENOUGH_STARTED if self.voters == [known] else None

    def _is_url_taken(self, node: int, urls: tuple[str, ...]) -> bool:
        wanted = set(urls)
        return any(
            not wanted.isdisjoint(member.peer_urls)
            for member in self._members.values()
            if member.id != node
        )


def _row(member_id: int) -> bytes:
    return b"%x" % member_id


def _optional_version(text: bytes | None) -> Version | None:
    return None if text is None else parse_version(text.decode())
