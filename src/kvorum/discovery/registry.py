"""The protocol of v3 discovery: members write themselves into another cluster's keys.

Under `/_etcd/registry/<token>` somebody has put the size of the new cluster. Each member puts its
names and URLs beside it; the first ones, as many as the size says, are the cluster. They are told
apart by the revisions at which their keys were created, so all come to the same list.

No calls and no clock in here: steps are yielded, and whoever runs them returns what came of them.
What others have written is not trusted: a value that is no member is left out with a warning.
"""

import posixpath
import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

from kvorum.api.durations import SECOND, duration_text
from kvorum.membership.bootstrap import (
    BootstrapError,
    InitialCluster,
    cluster_text,
    parse_initial_cluster,
)
from kvorum.membership.identity import member_id
from kvorum.telemetry.logs import Logger

REGISTRY = "/_etcd/registry"
DOUBLINGS_MAX = 8
"""The wait after a failure is doubled so often, from two seconds on."""

_SIZE = re.compile(rb"[+-]?[0-9]{1,100}")
_SIZE_MAX = 2**63 - 1


class DiscoveryError(BootstrapError):
    """The discovery service answered, but there is no cluster for this member."""

    title = "failed to bootstrap by discovery"

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"failed to join discovery cluster ({reason}): {advice}")


class FullClusterError(DiscoveryError):
    """All places of the cluster are taken by others."""

    title = "failed to bootstrap; discovery token was already used"


class Get(NamedTuple):
    """Read a key, or all keys that begin with it; leads to `Found`."""

    key: str
    is_prefix: bool = False


class Put(NamedTuple):
    """Write a key; leads to `Found` without pairs."""

    key: str
    value: str


class Watch(NamedTuple):
    """Wait for the next changes of keys with a prefix; leads to `Found` with the changed ones."""

    prefix: str
    revision: int
    """The first revision whose changes count."""


class Wait(NamedTuple):
    """Let time pass; leads to nothing."""

    seconds: float


class Pair(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes
    created: int
    """The revision at which the key was created."""


class Found(NamedTuple):
    """What came of a call."""

    pairs: Sequence[Pair]
    revision: int
    """The revision up to which nothing is missing."""


class Failed(NamedTuple):
    """A call that could not be made, or was refused."""

    reason: str


Step = Get | Put | Watch | Wait
Steps = Generator[Step, Found | Failed | None, InitialCluster]


class Registered(NamedTuple):
    """A member as the registry has it; ordered by when it came."""

    created: int
    key: str
    text: str


class Registry:
    """The keys of one token, seen by one member; `join` yields the steps to a cluster."""

    def __init__(self, token: str, name: str, peer_urls: Sequence[str], logger: Logger) -> None:
        prefix = posixpath.normpath(f"{REGISTRY}/{token}")
        self._size_key = posixpath.join(prefix, "_config/size")
        self._prefix = posixpath.join(prefix, "members")
        self._own_key = posixpath.join(self._prefix, f"{member_id(peer_urls, token):x}")
        self._own_text = cluster_text({name: tuple(peer_urls)})
        self._logger = logger
        self._failures = 0

    def join(self) -> Steps:
        """Take a place and wait for the others; raises BootstrapError if there is none."""
        yield from self._look()
        yield from self._register()
        size, members, revision = yield from self._look()
        while len(members) < size:
            self._logger.info(
                "waiting for peers from discovery service",
                clusterSize=size,
                found_peers=len(members),
            )
            found = yield Watch(self._prefix, revision + 1)
            if isinstance(found, Found):
                self._add(members, found.pairs)
                revision = found.revision
                self._failures = 0
            else:
                # Read again: the history that the watch would need may be gone by then.
                yield from self._back_off("wait for peers", found)
                size, members, revision = yield from self._look()
        self._logger.info(
            "found all needed peers from discovery service",
            clusterSize=size,
            found_peers=len(members),
        )
        return self._cluster(sorted(members.values())[:size])

    def _look(
        self,
    ) -> Generator[Step, Found | Failed | None, tuple[int, dict[str, Registered], int]]:
        """Read the size and the members; raise DiscoveryError if this one has no place."""
        while True:
            found = yield Get(self._size_key)
            if isinstance(found, Found):
                size = self._size(found.pairs)
                found = yield Get(self._prefix, is_prefix=True)
                if isinstance(found, Found):
                    break
            yield from self._back_off("cluster status check", found)
        self._failures = 0
        members: dict[str, Registered] = {}
        self._add(members, found.pairs)
        first = sorted(members.values())[:size]
        if len(first) == size and all(each.key != self._own_key for each in first):
            raise FullClusterError(
                "discovery: cluster is full",
                f"its {size} members are {', '.join(each.text for each in first)}. Use a new token "
                "for a new cluster; to add a member to a running cluster, run 'etcdctl member add' "
                "and start it with --initial-cluster and --initial-cluster-state=existing",
            )
        return size, members, found.revision

    def _register(self) -> Generator[Step, Found | Failed | None, None]:
        while not isinstance(found := (yield Put(self._own_key, self._own_text)), Found):
            yield from self._back_off("register member itself", found)
        self._failures = 0
        self._logger.info(
            "register member itself successfully",
            memberKey=self._own_key,
            memberInfo=self._own_text,
        )

    def _back_off(
        self, step: str, failed: Failed | None
    ) -> Generator[Step, Found | Failed | None, None]:
        self._failures += 1
        seconds = 2 ** min(self._failures, DOUBLINGS_MAX)
        self._logger.warning(
            "retry connecting to discovery service",
            reason=step,
            backoff=duration_text(seconds * SECOND),
            error=failed.reason if failed is not None else "",
        )
        yield Wait(seconds)

    def _size(self, pairs: Sequence[Pair]) -> int:
        if not pairs:
            raise DiscoveryError(
                "discovery: size key not found",
                "put the number of members there before the first one starts: "
                f"'etcdctl put {self._size_key} 3'",
            )
        text = pairs[0].value
        size = int(text) if _SIZE.fullmatch(text) else 0
        if not 0 < size <= _SIZE_MAX:
            raise DiscoveryError(
                "discovery: size key is bad",
                f"{self._size_key} has {text.decode(errors='replace')[:100]!r}, but has to be the "
                "number of members",
            )
        return size

    def _add(self, members: dict[str, Registered], pairs: Sequence[Pair]) -> None:
        """Take keys that were read, or have changed; a member that is known stays as it is."""
        for pair in pairs:
            key = pair.key.decode(errors="replace").strip()
            text = pair.value.decode(errors="replace").strip()
            fields = {"memberKey": key, "memberInfo": text[:1000]}
            if "=" not in text:
                problem = "invalid peer info returned from discovery service"
                self._logger.warning(problem, **fields)
            elif key in members:
                problem = "found duplicate peer from discovery service"
                self._logger.warning(problem, **fields)
            else:
                members[key] = Registered(pair.created, key, text)
                self._logger.info("found peer from discovery service", **fields)

    def _cluster(self, members: Sequence[Registered]) -> InitialCluster:
        try:
            # Each by itself: one that cannot be parsed is named.
            clusters = [parse_initial_cluster(each.text) for each in members]
        except BootstrapError as error:
            raise DiscoveryError("discovery: invalid peer URL", f"{error}") from None
        cluster = {name: urls for each in clusters for name, urls in each.items()}
        text = ",".join(sorted(",".join(map(cluster_text, clusters)).split(",")))
        urls = [url for each in clusters for some in each.values() for url in some]
        if len(set(urls)) != len(urls):
            raise BootstrapError(f"discovery cluster {text} has duplicate url")
        if len(cluster) != sum(map(len, clusters)):
            raise BootstrapError(
                f"discovery cluster {text} has two members of the same name; give each member its "
                "own --name, and use a new token"
            )
        return cluster
