"""The v3 discovery protocol: members register themselves in the keys of another cluster.

Before that, an operator puts the size of the new cluster under `/_etcd/registry/<token>`. Each
member puts its name and URLs beside it. The first `size` members by the creation revisions of their
keys form the cluster, so that all members compute the same list.

This module makes no calls and has no clock: `Registry.join` yields steps, and its runner sends back
their results. It does not trust values of other members: it skips invalid ones with a warning.
"""

import posixpath
import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

from kvorum.api.durations import SECOND, duration_text
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    InitialCluster,
    cluster_text,
    parse_initial_cluster,
)
from kvorum.state.membership.identity import member_id

REGISTRY = "/_etcd/registry"
DOUBLINGS_MAX = 8
"""Limit of the exponential back-off: the wait after failures is 2, 4, ... up to 2**8 seconds."""

_SIZE = re.compile(rb"[+-]?[0-9]{1,100}")
_SIZE_MAX = 2**63 - 1


class DiscoveryError(ClusterSettingsError):
    """The discovery service is reachable, but this member cannot join the cluster."""

    title = "failed to bootstrap by discovery"

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"failed to join discovery cluster ({reason}): {advice}")


class FullClusterError(DiscoveryError):
    """Other members have filled the cluster."""

    title = "failed to bootstrap; discovery token was already used"


class Get(NamedTuple):
    """Read a key, or all keys with this prefix; the result is `RegistryResult`."""

    key: str
    is_prefix: bool = False


class RegistryPut(NamedTuple):
    """Write a key; the result is `RegistryResult` without pairs."""

    key: str
    value: str


class RegistryWatch(NamedTuple):
    """Wait for the next changes of keys with a prefix; `RegistryResult` holds these keys."""

    prefix: str
    revision: int
    """The revision to start watching at."""


class Wait(NamedTuple):
    """Wait for some seconds; the result is None."""

    seconds: float


class Pair(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes
    created: int
    """The revision at which the key was created."""


class RegistryResult(NamedTuple):
    """The result of a successful call."""

    pairs: Sequence[Pair]
    revision: int
    """The revision up to which the pairs are complete."""


class Failed(NamedTuple):
    """The result of a failed call."""

    reason: str


Step = Get | RegistryPut | RegistryWatch | Wait
Steps = Generator[Step, RegistryResult | Failed | None, InitialCluster]


class Registered(NamedTuple):
    """A registered member; members sort by the creation revisions of their keys."""

    created: int
    key: str
    text: str


class Registry:
    """One member's view of the keys of one token; `join` yields the steps to a cluster."""

    def __init__(self, token: str, name: str, peer_urls: Sequence[str], logger: Logger) -> None:
        prefix = posixpath.normpath(f"{REGISTRY}/{token}")
        self._size_key = posixpath.join(prefix, "_config/size")
        self._prefix = posixpath.join(prefix, "members")
        self._own_key = posixpath.join(self._prefix, f"{member_id(peer_urls, token):x}")
        self._own_text = cluster_text({name: tuple(peer_urls)})
        self._logger = logger
        self._failures = 0

    def join(self) -> Steps:
        """Register this member and wait for the others; raise BootstrapError if it cannot join."""
        yield from self._read_registry()
        yield from self._register()
        size, members, revision = yield from self._read_registry()
        while len(members) < size:
            self._logger.info(
                "waiting for peers from discovery service",
                clusterSize=size,
                found_peers=len(members),
            )
            found = yield RegistryWatch(self._prefix, revision + 1)
            if isinstance(found, RegistryResult):
                self._add(members, found.pairs)
                revision = found.revision
                self._failures = 0
            else:
                # Read again: compaction may have removed the revisions that a new watch needs.
                yield from self._back_off("wait for peers", found)
                size, members, revision = yield from self._read_registry()
        self._logger.info(
            "found all needed peers from discovery service",
            clusterSize=size,
            found_peers=len(members),
        )
        return self._cluster(sorted(members.values())[:size])

    def _read_registry(
        self,
    ) -> Generator[Step, RegistryResult | Failed | None, tuple[int, dict[str, Registered], int]]:
        """Read the size and the members; raise DiscoveryError if others have filled the cluster."""
        while True:
            found = yield Get(self._size_key)
            if isinstance(found, RegistryResult):
                size = self._size(found.pairs)
                found = yield Get(self._prefix, is_prefix=True)
                if isinstance(found, RegistryResult):
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

    def _register(self) -> Generator[Step, RegistryResult | Failed | None, None]:
        while not isinstance(
            found := (yield RegistryPut(self._own_key, self._own_text)), RegistryResult
        ):
            yield from self._back_off("register member itself", found)
        self._failures = 0
        self._logger.info(
            "register member itself successfully",
            memberKey=self._own_key,
            memberInfo=self._own_text,
        )

    def _back_off(
        self, step: str, failed: Failed | None
    ) -> Generator[Step, RegistryResult | Failed | None, None]:
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
        """Add members from keys that were read or changed; known members stay unchanged."""
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
            # Parse each member separately, so that the error names the invalid one.
            clusters = [parse_initial_cluster(each.text) for each in members]
        except ClusterSettingsError as error:
            raise DiscoveryError("discovery: invalid peer URL", f"{error}") from None
        cluster = {name: urls for each in clusters for name, urls in each.items()}
        text = ",".join(sorted(",".join(map(cluster_text, clusters)).split(",")))
        urls = [url for each in clusters for some in each.values() for url in some]
        if len(set(urls)) != len(urls):
            raise ClusterSettingsError(f"discovery cluster {text} has duplicate url")
        if len(cluster) != sum(map(len, clusters)):
            raise ClusterSettingsError(
                f"discovery cluster {text} has two members of the same name; give each member its "
                "own --name, and use a new token"
            )
        return cluster
