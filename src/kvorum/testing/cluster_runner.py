"""Run clusters for tests: this program forks members, and carries the network between them.

It has imported everything that a member needs, so that a member starts quickly; each is a process
with the setup of `kvorum`. Members die with this program, and this program dies with the one that
started it. It reads the logs of members, to learn when they are ready, and which leader they
follow.
"""

import asyncio
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import kvorum.process.startup
from kvorum.network.dialer import dialer
from kvorum.network.dialer.links import DialAddress, address_of
from kvorum.process.main import run
from kvorum.storage.platform.processes import die_with_parent
from kvorum.testing.network import Network
from kvorum.testing.ports import HOST, Ports
from kvorum.testing.worker_process import Answer, reserve_output

assert kvorum.process.startup  # imported for the forked members

LOG_LINES_MAX = 1000


class ClusterRequestError(Exception):
    """A request cannot be fulfilled; the text says why."""


class MemberProcess:
    """One member: its ports, its process while it runs, and its log."""

    def __init__(
        self, number: int, name: str, client_port: int, peer_port: int, advertised_port: int
    ) -> None:
        self.number = number
        self.name = name
        self.client_port = client_port
        self.peer_port = peer_port
        self.advertised_port = advertised_port
        """The port in its peer URL, at which nothing listens: others dial by way of the network."""
        self.routes: dict[int, int] = {}
        """The port to dial for each port that another member advertises."""
        self.lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self.process = 0
        """The process id; 0 if the member does not run."""
        self.exit_code = 0
        self.is_ready = False
        self.is_paused = False
        self.id = ""
        self.follows = ""
        """The id of its known leader. Later terms with the same leader are not logged."""

    @property
    def is_running(self) -> bool:
        """Whether the member runs and is not paused."""
        return bool(self.process) and not self.is_paused

    def take_log_line(self, line: str) -> None:
        """Process a line of its log."""
        self.lines.append(line)
        if not line.startswith("{"):
            return
        entry: dict[str, Any] = json.loads(line)
        message = entry.get("msg")
        if message == "ready to serve client requests":
            self.is_ready = True
        elif message in ("elected leader", "lost leader"):
            self.id = entry["local-member-id"]
            self.follows = entry["leader"] if message == "elected leader" else ""

    def note_exit(self, code: int) -> None:
        """Record that its process has ended."""
        self.process, self.exit_code = 0, code
        self.is_ready = self.is_paused = False
        self.follows = ""


class ProcessCluster:
    """The members of one cluster."""

    def __init__(
        self, runner: "ClusterRunner", token: str, flags: Sequence[str], *, peer_scheme: str
    ) -> None:
        self._runner = runner
        self._token = token
        self._flags = flags
        self._peer_scheme = peer_scheme
        self._directory = Path(tempfile.mkdtemp(prefix="kvorum-cluster-"))
        self.network = Network()
        self.members: list[MemberProcess] = []

    async def add(self, size: int) -> None:
        """Create the members and reserve their ports, without starting them."""
        for number in range(size):
            hold = self._runner.ports.reserve
            self.members.append(MemberProcess(number, f"member-{number}", hold(), hold(), hold()))
        for source, target in permutations(self.members, 2):
            source.routes[target.advertised_port] = await self.network.listen(
                source.number, target.number, target.peer_port
            )

    # Commands.

    def start(self, number: int) -> None:
        """Start a member; it may not be ready on return."""
        member = self.members[number]
        assert not member.process
        initial = ",".join(f"{each.name}={self._peer_url(each)}" for each in self.members)
        client_url = f"{self._client_scheme}://{HOST}:{member.client_port}"
        arguments = [
            f"--name={member.name}",
            f"--data-dir={self._directory / member.name}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={self._peer_scheme}://{HOST}:{member.peer_port}",
            f"--initial-advertise-peer-urls={self._peer_url(member)}",
            f"--initial-cluster={initial}",
            f"--initial-cluster-token={self._token}",
            "--unsafe-no-fsync",
            *self._flags,
        ]
        member.process = self._runner.fork(member, arguments)

    @property
    def _client_scheme(self) -> str:
        return "https" if any(flag.startswith("--cert-file=") for flag in self._flags) else "http"

    def _peer_url(self, member: MemberProcess) -> str:
        return f"{self._peer_scheme}://{HOST}:{member.advertised_port}"

    def urls(self) -> list[str]:
        """Return the client URLs of the members."""
        return [f"{self._client_scheme}://{HOST}:{each.client_port}" for each in self.members]

    def running(self, number: int) -> MemberProcess:
        """Return a member that has a process; raise ClusterRequestError if it has none."""
        member = self.members[number]
        if not member.process:
            raise ClusterRequestError(f"member {number} does not run; restart it first")
        return member

    def signal(self, number: int, what: signal.Signals) -> MemberProcess:
        """Send a signal to a member."""
        member = self.running(number)
        os.kill(member.process, what)
        return member

    # Conditions to wait for.

    def is_ready(self) -> bool:
        """Return whether all members serve clients; raise ClusterRequestError if one has ended."""
        for member in self.members:
            self.check_alive(member)
        return all(member.is_ready for member in self.members)

    def check_alive(self, member: MemberProcess) -> None:
        """Raise ClusterRequestError if a member that was started has ended."""
        if not member.process:
            raise ClusterRequestError(
                f"member {member.number} ended with {member.exit_code}; it logged:\n"
                + "\n".join(member.lines)
            )

    def find_leader(self) -> int | None:
        """Return the leader that reaches a majority whose logs say that they follow it."""
        majority = len(self.members) // 2 + 1
        for leader in self.members:
            if not leader.is_running or leader.follows != leader.id or not leader.id:
                continue
            followers = [
                each
                for each in self.members
                if each.is_running
                and each.follows == leader.follows
                and self.network.reaches(leader.number, each.number)
            ]
            if len(followers) >= majority:
                return leader.number
        return None

    def is_settled(self) -> bool:
        """Return whether all members run, are ready, and follow one leader."""
        leader = self.find_leader()
        if leader is None or not all(each.is_ready and each.is_running for each in self.members):
            return False
        return {each.follows for each in self.members} == {self.members[leader].follows}

    def describe_members(self) -> str:
        """Describe the members, for errors."""
        return "; ".join(
            f"member {each.number} {f'({each.id}) ' if each.id else ''}"
            + (
                "is paused"
                if each.is_paused
                else f"follows {each.follows or 'no leader'}"
                if each.process
                else f"ended with {each.exit_code}"
            )
            for each in self.members
        )

    def describe_with_logs(self) -> str:
        """Describe the members, with what they logged."""
        logs = [f"member {each.number} logged:\n" + "\n".join(each.lines) for each in self.members]
        return "\n".join([self.describe_members(), *logs])

    async def end(self) -> None:
        """Kill the members, and remove their files."""
        for member in self.members:
            if member.process:
                os.kill(member.process, signal.SIGKILL)
        await self._runner.wait_until(lambda: not any(each.process for each in self.members))
        await self.network.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
        for member in self.members:
            self._runner.ports.release(member.client_port)
            self._runner.ports.release(member.peer_port)
            self._runner.ports.release(member.advertised_port)


class ClusterRunner:
    """All clusters. The program has one thread, because one with several could not fork safely."""

    def __init__(self) -> None:
        self.ports = Ports()
        self._clusters: dict[int, ProcessCluster] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._processes: dict[int, MemberProcess] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    # Processes.

    def fork(self, member: MemberProcess, arguments: Sequence[str]) -> int:
        """Fork a member's process; return its id."""
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            _become_member(writing, arguments, member.routes)
        os.close(writing)
        member.lines.append(f"--- started: kvorum {' '.join(arguments)}")
        self._processes[process] = member
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._read_log, reading, member, bytearray())
        return process

    def _read_log(self, descriptor: int, member: MemberProcess, rest: bytearray) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
            return
        rest += data
        *lines, left = rest.split(b"\n")
        rest[:] = left
        for line in lines:
            member.take_log_line(line.decode(errors="replace"))
        self._changed.set()

    def _reap(self) -> None:
        for process, member in list(self._processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._processes[process]
                member.note_exit(os.waitstatus_to_exitcode(status))
        self._changed.set()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, checking it after each log line and event of a member."""
        while not holds():
            if self._changed.is_set():
                self._changed = asyncio.Event()
            await self._changed.wait()

    # Requests.

    async def fulfil(self, question: Answer) -> Answer:
        """Fulfil one request."""
        what, seconds = question["what"], question.get("seconds")
        if what == "start":
            return await self._start(question)
        cluster = self._clusters[question["cluster"]]
        try:
            async with asyncio.timeout(seconds):
                return await self._run_command(cluster, what, question)
        except TimeoutError:
            raise ClusterRequestError(
                f"{what.replace('_', ' ')}: not within {seconds} s; {cluster.describe_members()}"
            ) from None

    async def _start(self, question: Answer) -> Answer:
        self._count += 1
        number = self._count
        cluster = ProcessCluster(
            self, f"{os.getpid()}-{number}", question["flags"], peer_scheme=question["peer_scheme"]
        )
        try:
            await cluster.add(question["size"])
            for member in cluster.members:
                cluster.start(member.number)
            async with asyncio.timeout(question["seconds"]):
                await self.wait_until(cluster.is_ready)
                await self.wait_until(cluster.is_settled)
        except BaseException as error:
            state = cluster.describe_with_logs()
            problem = f"the cluster is not ready after {question['seconds']} s: {state}"
            await cluster.end()
            if isinstance(error, TimeoutError):
                raise ClusterRequestError(problem) from None
            raise
        self._clusters[number] = cluster
        return {"cluster": number, "urls": cluster.urls()}

    async def _run_command(self, cluster: ProcessCluster, what: str, question: Answer) -> Answer:
        number: int = question.get("member", 0)
        if what == "leader":
            await self.wait_until(lambda: cluster.find_leader() is not None)
            return {"member": cluster.find_leader()}
        if what == "settle":
            await self.wait_until(cluster.is_settled)
        elif what == "kill":
            killed = cluster.signal(number, signal.SIGKILL)
            await self.wait_until(lambda: not killed.process)
        elif what == "pause":
            cluster.signal(number, signal.SIGSTOP).is_paused = True
        elif what == "resume":
            cluster.signal(number, signal.SIGCONT).is_paused = False
            self._changed.set()
        elif what == "restart":
            await self._restart(cluster, number, is_waited_for=question["wait"])
        elif what == "partition":
            await cluster.network.partition(question["groups"])
            self._changed.set()
        elif what == "log":
            return {"text": "\n".join(cluster.members[number].lines)}
        elif what == "state":
            return {"text": cluster.describe_members()}
        else:
            assert what == "end", what
            del self._clusters[question["cluster"]]
            await cluster.end()
        return {}

    async def _restart(self, cluster: ProcessCluster, number: int, *, is_waited_for: bool) -> None:
        member = cluster.members[number]
        if member.process:
            # A paused member ends only after it is resumed.
            os.kill(member.process, signal.SIGTERM)
            os.kill(member.process, signal.SIGCONT)
            member.is_paused = False
            await self.wait_until(lambda: not member.process)
        cluster.start(number)
        if is_waited_for:

            def is_ready() -> bool:
                cluster.check_alive(member)
                return member.is_ready

            await self.wait_until(is_ready)

    async def close(self) -> None:
        """End all clusters."""
        for cluster in list(self._clusters.values()):
            await cluster.end()
        self.ports.close()


def _become_member(output: int, arguments: Sequence[str], routes: Mapping[int, int]) -> NoReturn:
    """Run the `kvorum` command in a child that was just forked; never return."""
    code = 1
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        asyncio.set_event_loop(None)
        _redirect_dials(routes)
        code = run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _redirect_dials(routes: Mapping[int, int]) -> None:
    """Let this process dial other ports than those that members advertise."""

    def routed(text: str) -> DialAddress:
        address = address_of(text)
        return address._replace(port=routes.get(address.port, address.port))

    patch.object(dialer, "address_of", routed).start()


async def _serve() -> None:
    write = reserve_output()
    runner = ClusterRunner()
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    main_task = asyncio.current_task()
    assert main_task is not None
    loop.add_signal_handler(signal.SIGTERM, main_task.cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def answer(question: Answer) -> None:
        number = question["question"]
        try:
            found = await runner.fulfil(question)
        except ClusterRequestError as error:
            found = {"error": str(error)}
        except Exception:
            found = {"error": traceback.format_exc()}
        write({"question": number, **found})

    tasks: set[asyncio.Task[None]] = set()
    try:
        while line := await questions.readline():
            task = asyncio.create_task(answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.close()


def main() -> None:
    """Answer requests until standard input ends."""
    gc.collect()
    gc.freeze()
    gc.enable()
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
