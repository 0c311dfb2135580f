"""A cluster of three members for one test. The test can kill, pause and partition members."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvorum.testing.access import (
    AUTH_SECONDS_MAX,
    CLIENT_SECONDS,
    Access,
    enable_auth,
    last_lines,
)
from kvorum.testing.options import server_flags
from kvorum.testing.worker_process import Answer, WorkerProcess

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client
    from kvorum.testing.certificates import Certificates
    from kvorum.testing.options import StoreOptions

SIZE = 3
HEARTBEAT_MILLISECONDS = 25
ELECTION_MILLISECONDS = 500
WAIT_SECONDS = 60.0
"""The limit of every wait, far above the usual duration; reaching it means an error."""


class Cluster(Access):
    """Three members, each a process of its own, numbered from 0.

    A method returns when its effect has happened. A wait ends with its event, or with
    WorkerError, whose text describes the state of the members.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        number: int,
        urls: tuple[str, ...],
        certificates: "Certificates | None",
        *,
        auth: bool,
    ) -> None:
        super().__init__(urls, certificates, auth=auth)
        self._worker = worker
        self._number = number

    def __len__(self) -> int:
        return len(self.urls)

    # Clients.

    def client(
        self,
        *members: int,
        user: str | None = None,
        password: str = "",
        timeout: float = CLIENT_SECONDS,
    ) -> "Client":
        """Return a client of these members (all, if none is named), closed with the test.

        With auth the client logs in as `root`, unless another user is given; with "" it does not
        log in.
        """
        return self._open(self._urls_of(members), user, password, timeout)

    def async_client(
        self,
        *members: int,
        user: str | None = None,
        password: str = "",
        timeout: float = CLIENT_SECONDS,
    ) -> "AsyncClient":
        """Return a client for the event loop that first uses it, closed with that loop."""
        return self._open_async(self._urls_of(members), user, password, timeout)

    def _urls_of(self, members: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.urls[self._check_number(each)] for each in members) or self.urls

    # Leadership.

    def leader(self, *, timeout: float = WAIT_SECONDS) -> int:
        """Return the leader, as soon as a majority that it reaches follows it."""
        member: int = self._request("leader", seconds=timeout)["member"]
        return member

    def followers(self, *, timeout: float = WAIT_SECONDS) -> list[int]:
        """Return the other members, as soon as there is a leader; not all of them need to run."""
        leader = self.leader(timeout=timeout)
        return [each for each in range(len(self)) if each != leader]

    def settle(self, *, timeout: float = WAIT_SECONDS) -> None:
        """Wait until all members serve, and follow one leader."""
        self._request("settle", seconds=timeout)

    # Faults.

    def kill(self, member: int) -> None:
        """Kill a member with SIGKILL; its files stay."""
        self._request("kill", member=self._check_number(member))

    def restart(self, member: int, *, wait: bool = True, timeout: float = WAIT_SECONDS) -> None:
        """Restart a member, after a clean end if it runs; return when it serves.

        Without a majority no member starts to serve: then pass `wait=False`.
        """
        self._request("restart", member=self._check_number(member), wait=wait, seconds=timeout)

    def pause(self, member: int) -> None:
        """Stop a member's process; its connections stay open, and it answers nothing."""
        self._request("pause", member=self._check_number(member))

    def resume(self, member: int) -> None:
        """Resume a paused member."""
        self._request("resume", member=self._check_number(member))

    def partition(self, *groups: Iterable[int]) -> None:
        """Allow members to reach only their own group; unnamed members form one group.

        Messages between groups wait until `heal`. Clients still reach all members.
        """
        named = [sorted({self._check_number(each) for each in group}) for group in groups]
        members = [each for group in named for each in group]
        if len(set(members)) != len(members):
            raise ValueError(f"a member is in one group alone, but these share some: {named}")
        rest = [each for each in range(len(self)) if each not in members]
        self._request("partition", groups=[*named, rest])

    def isolate(self, member: int) -> None:
        """Cut a member off from all others."""
        self.partition([member])

    def heal(self) -> None:
        """End all partitions."""
        self._request("partition", groups=[])

    # Logs and state.

    def log(self, member: int) -> str:
        """Return a member's log so far."""
        text: str = self._request("log", member=self._check_number(member))["text"]
        return text

    def logs(self) -> list[tuple[str, str]]:
        """Return the sections of a failed test's report: titles and texts."""
        state = ("kvorum cluster", self._request("state")["text"])
        logs = enumerate(map(self.log, range(len(self))))
        return [state, *((f"kvorum log of member {each}", last_lines(log)) for each, log in logs)]

    def end(self) -> None:
        """Kill the members, and close all their clients."""
        self.end_clients()
        self._request("end")

    def _request(self, what: str, **fields: object) -> Answer:
        return self._worker.request(what, cluster=self._number, **fields)

    def _check_number(self, member: int) -> int:
        if not 0 <= member < len(self):
            raise ValueError(f"there is no member {member}; members are 0 to {len(self) - 1}")
        return member


class Clusters:
    """Provides clusters."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker

    def take(self, options: "StoreOptions", certificates: "Certificates | None") -> Cluster:
        """Return a fresh cluster; raise WorkerError, with the reason, if none can start."""
        return start_cluster(self._worker, options, certificates)


def start_cluster(
    worker: WorkerProcess, options: "StoreOptions", certificates: "Certificates | None"
) -> Cluster:
    """Start a cluster and wait until all members serve; raise WorkerError on failure."""
    flags = {
        "heartbeat-interval": str(HEARTBEAT_MILLISECONDS),
        "election-timeout": str(ELECTION_MILLISECONDS),
    }
    flags |= server_flags(options, certificates)
    if certificates is not None:
        flags |= certificates.peer_flags()
    found = worker.request(
        "start",
        size=SIZE,
        flags=[f"--{name}={value}" for name, value in flags.items()],
        peer_scheme="http" if certificates is None else "https",
        seconds=WAIT_SECONDS,
    )
    cluster = Cluster(
        worker, found["cluster"], tuple(found["urls"]), certificates, auth=options.auth
    )
    try:
        if options.auth:
            with cluster.client(user="", timeout=AUTH_SECONDS_MAX) as client:
                enable_auth(client)
    except BaseException:
        cluster.end()
        raise
    return cluster
