"""Machines on which the page is followed: members as services, and a shell.

Members are real processes with the configuration file of the page. They are started and stopped by
the page's `systemctl` lines, which are done here: the rest of a line is for a real shell.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvorum.client.sync.client import Client
from tests.cluster.members import reserved_prefix
from tests.cluster.processes import Process, start
from tests.kvorum import READY
from tests.recovery.page import Step, listing
from tests.waiting import WAIT_SECONDS_MAX, until

NAMES = ("m1", "m2", "m3")
# Neither disks nor how long members have been connected is what these tests are about.
QUICK = """
unsafe-no-fsync: true
strict-reconfig-check: false
heartbeat-interval: 50
election-timeout: 500
log-format: json
"""
_END = "=== the command ended with "


class Site:
    """Places for the members of a cluster; all are on this machine, with addresses of their own."""

    def __init__(self, directory: Path, members: Sequence[str], prefix: str) -> None:
        self.directory = directory
        self.members = list(members)
        self.hosts = {name: f"{prefix}.{name[1:]}" for name in NAMES}
        self.data, self.config = directory / "data", directory / "config"
        self.backups = directory / "backups"
        self._processes: dict[str, Process] = {}
        directory.mkdir(exist_ok=True)
        for each in (self.data, self.config, self.backups, directory / "bin"):
            each.mkdir()
        for name in members:
            self.write_config(name)
        for program, module in (("kvorumctl", "tools.ctl"), ("kvorumutl", "tools.utl")):
            path = directory / "bin" / program
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvorum.{module}.main "$@"\n')
            path.chmod(0o755)
        self._shell = self._started_shell()

    def _started_shell(self) -> "subprocess.Popen[str]":
        shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
                "KVORUMCTL_DIAL_TIMEOUT": f"{WAIT_SECONDS_MAX:.0f}s",
                "KVORUMCTL_COMMAND_TIMEOUT": f"{WAIT_SECONDS_MAX:.0f}s",
            },
        )
        own = {
            **{f"H{name[1:]}": host for name, host in self.hosts.items()},
            "CONFIG": self.config,
            "DATA": self.data,
            "BACKUPS": self.backups,
        }
        assert shell.stdin is not None
        for line in listing("sh").splitlines():
            if not line.startswith(("export H1=", "export CONFIG=")):
                shell.stdin.write(f"{line}\n")
            else:
                names = [word.partition("=")[0] for word in line.split()[1:]]
                shell.stdin.write(f"export {' '.join(f'{each}={own[each]}' for each in names)}\n")
        shell.stdin.write(f"export ENDPOINTS={self.endpoints} CLUSTER={self.cluster}\n")
        return shell

    def address(self, name: str) -> str:
        return f"{self.hosts[name]}:2379"

    @property
    def endpoints(self) -> str:
        return ",".join(map(self.address, self.members))

    @property
    def cluster(self) -> str:
        return ",".join(f"{name}=http://{self.hosts[name]}:2380" for name in self.members)

    def write_config(self, name: str, more: str = "") -> None:
        """Write the configuration file of the page for a member, and some lines more."""
        text = listing("yaml")
        for old, new in (
            ("m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380", "CLUSTER"),
            ("/var/lib/kvorum/m1", str(self.data / name)),
            ("10.0.0.1", self.hosts[name]),
            ("name: m1", f"name: {name}"),
            ("CLUSTER", self.cluster),
        ):
            assert old in text, f"the page's configuration file lacks {old!r}"
            text = text.replace(old, new)
        (self.config / f"{name}.yml").write_text(text + QUICK + more)

    # Services.

    def start(self, *names: str) -> bool:
        """Start members, all at once; return whether all serve."""
        for name in names:
            assert not self.runs(name), f"{name} runs"
            self.log(name).write_bytes(b"")
            flag = f"--config-file={self.config / name}.yml"
            self._processes[name] = start("kvorum", [flag], self.log(name))
        served = [self._serves(name) for name in names]
        return all(served)

    def _serves(self, name: str) -> bool:
        def is_ready() -> bool:
            return READY in self.log(name).read_text()

        until(f"{name} serves or ends", lambda: is_ready() or not self.runs(name))
        return self.runs(name)

    def runs(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def stop(self, *names: str, number: int = signal.SIGTERM) -> None:
        """End members, those that run."""
        for name in names:
            if self.runs(name):
                os.kill(self._processes[name].pid, number)
                self._processes[name].wait(WAIT_SECONDS_MAX)

    def kill(self, *names: str) -> None:
        """End members as a power cut of their machines would."""
        self.stop(*names, number=signal.SIGKILL)

    def log(self, name: str) -> Path:
        """Return what a member logged since its last start."""
        return self.directory / f"{name}.log"

    def _systemctl(self, action: str, *units: str) -> tuple[str, int]:
        names = [unit.removeprefix("kvorum@") for unit in units]
        if action in ("stop", "restart"):
            self.stop(*names)
        if action in ("start", "restart") and not self.start(*names):
            failed = [f"Job for kvorum@{name} failed" for name in names if not self.runs(name)]
            return "\n".join(failed), 1
        return "", 0

    def _journalctl(self, *words: str) -> tuple[str, int]:
        return self.log(words[-1].removeprefix("kvorum@")).read_text(), 0

    # The page.

    def follow(self, steps: Sequence[Step]) -> None:
        """Run the command lines of a section; each has to end, and show, what the page says."""
        for step in steps:
            self._do(step)

    def _do(self, step: Step) -> None:
        told: list[str] = []

        def is_as_shown() -> bool:
            output, code = self.run(step.line)
            told.append(f"$ {step.line}\n{output}ended with {code}, expected: {step.shown}")
            return step.is_as_shown(output, code)

        if not step.line.startswith("kvorumctl "):
            assert is_as_shown(), told[-1]
            return
        # Members need a moment to find each other; who reads the page looks again, too.
        try:
            until(step.line, is_as_shown)
        except AssertionError as error:
            raise AssertionError(told[-1]) from error

    def run(self, line: str) -> tuple[str, int]:
        """Run a command line; return its output and its exit code."""
        words = line.split("#")[0].split()
        if words[0] == "systemctl":
            return self._systemctl(*words[1:])
        if words[0] == "journalctl":
            return self._journalctl(*words[1:])
        # It only waits less than on the page, for a second look and for those that are silent.
        if " doctor" in line:
            line = line.replace(" doctor", " doctor --interval=0s")
            line = f"KVORUMCTL_COMMAND_TIMEOUT=1s {line}"
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f"{line}\nprintf '\\n{_END}%s\\n' $?\n")
        self._shell.stdin.flush()
        output = ""
        for each in self._shell.stdout:
            if each.startswith(_END):
                return output.removesuffix("\n"), int(each.removeprefix(_END))
            output += each
        raise AssertionError(f"the shell has ended: {output}")

    # What is there.

    def client(self, *names: str) -> Client:
        return Client(",".join(map(self.address, names or self.members)), timeout=WAIT_SECONDS_MAX)

    def content(self, *names: str) -> dict[bytes, bytes]:
        """Return all keys and values, as the members agree on them."""
        with self.client(*names) as client:
            return {each.key: each.value for each in client.read(prefix="").kvs}

    def write(self, count: int = 20, prefix: str = "key/") -> None:
        """Put some keys."""
        with self.client() as client:
            for number in range(count):
                client.put(f"{prefix}{number}", f"value {number}")

    def check(self, expected: dict[bytes, bytes]) -> None:
        """Check that these are all the keys, that the members agree, and that they take writes."""
        assert self.content() == expected
        with self.client() as client:
            revision = client.put("after", "").revision
        hashes = set()
        for name in self.members:
            with self.client(name) as client:
                # A linearizable read waits until the member has what was put.
                client.read("after")
                hashes.add(client.maintenance.hash_kv(revision=revision).hash)
        assert len(hashes) == 1, hashes

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()
        self.kill(*self._processes)


@contextmanager
def made_site(directory: Path, size: int) -> Iterator[Site]:
    """Make a site for so many members, of which none runs yet, until the block ends."""
    prefix, reserved = reserved_prefix()
    site = Site(directory, NAMES[:size], prefix)
    try:
        yield site
    finally:
        site.close()
        reserved.close()
