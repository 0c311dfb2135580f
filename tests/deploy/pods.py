"""Pods without Kubernetes: the chart's start script runs real servers at loopback addresses.

Each pod keeps its address and its volume, as those of a StatefulSet do.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.certificates import Authority
from tests.cluster.client import Client
from tests.cluster.members import CLIENT_PORT, PEER_PORT, TIMING, reserved_prefix
from tests.process.clients import SecureClient
from tests.waiting import WAIT_SECONDS_MAX, until

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "kvorum"
SCRIPT = CHART / "files" / "member.py"
METRICS_PORT = 2382


class Pod:
    """One pod of the set: its address, its volume, and its process while it runs."""

    def __init__(self, pods: "Pods", ordinal: int) -> None:
        self._pods = pods
        self.name = f"store-{ordinal}"
        self.host = f"{pods.prefix}.{ordinal + 1}"
        self.peer_url = f"{pods.scheme}://{self.host}:{PEER_PORT}"
        self.volume = pods.directory / self.name
        self.log = pods.directory / f"{self.name}.log"
        self.client = pods.client(f"{self.host}:{CLIENT_PORT}")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client_url = f"{self._pods.scheme}://{self.host}:{CLIENT_PORT}"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), "start", str(self._pods.members_file)],
                stdout=output,
                stderr=output,
                env=self._pods.variables()
                | {
                    "ETCD_NAME": self.name,
                    "ETCD_DATA_DIR": str(self.volume),
                    "ETCD_LISTEN_PEER_URLS": self.peer_url,
                    "ETCD_INITIAL_ADVERTISE_PEER_URLS": self.peer_url,
                    "ETCD_LISTEN_CLIENT_URLS": client_url,
                    "ETCD_ADVERTISE_CLIENT_URLS": client_url,
                    "ETCD_LISTEN_METRICS_URLS": f"http://{self.host}:{METRICS_PORT}",
                    **{
                        f"ETCD_{flag[2:].partition('=')[0].upper().replace('-', '_')}": value
                        for flag in TIMING
                        for value in [flag.partition("=")[2]]
                    },
                },
            )

    def stop(self) -> int:
        """Ask it to end, as the kubelet does; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        assert self.process is not None
        code = self.process.wait(WAIT_SECONDS_MAX)
        self.process = None
        return code

    def lose_volume(self) -> None:
        shutil.rmtree(self.volume)

    def says(self, text: str) -> None:
        """Wait until its log has a text."""
        until(f"{self.name} says: {text}", lambda: text in self.log.read_text())

    def member_list(self) -> list[pb.Member] | None:
        """Return the members that a quorum agrees on, or None while this one does not answer."""
        request = pb.MemberListRequest(linearizable=True)
        answer = self.client.ask("Cluster/MemberList", request, timeout=1.0)
        return None if isinstance(answer, Status) else list(answer.members)

    def votes(self) -> bool:
        """Return whether it serves as a voting member."""
        found = self.member_list() or []
        return any(each.name == self.name and not each.isLearner for each in found)


class Pods:
    """The pods of a set, which share what the chart gives them all."""

    def __init__(self, directory: Path, prefix: str, authority: Authority | None = None) -> None:
        self.directory = directory
        self.prefix = prefix
        self.scheme = "https" if authority else "http"
        self._authority = authority
        # One certificate for all sides and pods, as the chart's secrets have one for all pods.
        # Members dial from 127.0.0.1.
        hosts = ["127.0.0.1", *(f"{prefix}.{number}" for number in range(1, 10))]
        self._pair = authority.issue("pods", hosts) if authority else None
        self.members_file = directory / "members"
        self._pods: list[Pod] = []

    def __getitem__(self, ordinal: int) -> Pod:
        return self._pods[ordinal]

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods)

    def scale(self, replicas: int) -> None:
        """Set the number of pods, as an upgrade of the chart does; new ones are not started."""
        while len(self._pods) < replicas:
            self._pods.append(Pod(self, len(self._pods)))
        del self._pods[replicas:]
        self.members_file.write_text(",".join(f"{pod.name}={pod.peer_url}" for pod in self) + "\n")

    def client(self, address: str) -> Client:
        if self._authority is None:
            return Client(address)
        return SecureClient(address, self._authority, self._pair)

    def variables(self) -> dict[str, str]:
        """Return what the chart gives all pods."""
        return {
            **os.environ,
            **self._tls_variables(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KVORUMCTL_ENDPOINTS": ",".join(
                f"{self.scheme}://{pod.host}:{CLIENT_PORT}" for pod in self
            ),
            "PAUSE_SECONDS": "0.1",
        }

    def _tls_variables(self) -> dict[str, str]:
        if self._authority is None or self._pair is None:
            return {}
        ca, cert, key = map(str, (self._authority.cert, self._pair.cert, self._pair.key))
        variables = {"KVORUMCTL_CACERT": ca, "KVORUMCTL_CERT": cert, "KVORUMCTL_KEY": key}
        for side in ("ETCD_", "ETCD_PEER_"):
            variables |= {f"{side}CERT_FILE": cert, f"{side}KEY_FILE": key}
            variables |= {f"{side}TRUSTED_CA_FILE": ca, f"{side}CLIENT_CERT_AUTH": "true"}
        return variables

    def shrink(self, replicas: int) -> int:
        """Run the hook that comes before an upgrade with fewer replicas; return its exit code."""
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "shrink", "store", str(replicas)],
            env=self.variables(),
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        return done.returncode

    def names(self) -> list[str]:
        """Return the names of the voting members, as soon as every pod's member votes."""
        for pod in self:
            until(f"{pod.name} votes", pod.votes)
        found = until("a quorum answers", self[0].member_list)
        assert not any(each.isLearner for each in found)
        return sorted(each.name for each in found)

    def ids(self) -> dict[str, int]:
        return {each.name: each.ID for each in until("a quorum answers", self[0].member_list)}


@contextmanager
def running_pods(
    directory: Path, replicas: int, authority: Authority | None = None
) -> Iterator[Pods]:
    """Start so many pods on empty volumes; end them with the block."""
    prefix, reserved = reserved_prefix()
    pods = Pods(directory, prefix, authority)
    pods.scale(replicas)
    started = list(pods)
    try:
        for pod in pods:
            pod.start()
        yield pods
        started = list({*started, *pods})
    finally:
        for pod in {*started, *pods}:
            if pod.process is not None:
                pod.process.send_signal(signal.SIGTERM)
        for pod in {*started, *pods}:
            if pod.process is not None:
                pod.wait()
        reserved.close()
