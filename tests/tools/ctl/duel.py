"""etcdctl and kvorumctl side by side: the same command lines, each at a server of its own.

Both servers are of one kind and see the same calls, so answers are equal, revisions included; what
cannot be equal (addresses, ids, times) is replaced by a word before the comparison.
"""

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvorum.client.sync.client import Client
from kvorum.tools.ctl.environment import PREFIXES
from kvorum.tools.ctl.main import run
from tests.etcd import binary, running_etcd
from tests.kvorum import running_kvorum
from tests.tools.ctl.processes import Outcome as Outcome
from tests.tools.ctl.processes import Program
from tests.waiting import WAIT_SECONDS_MAX

KINDS = ("etcd", "kvorum")
KEPT_VARIABLES = ("PATH", "PYTHONPATH", "KVORUM_COMPILED", "LANG")
PATIENCE = tuple(f"--{name}-timeout={WAIT_SECONDS_MAX:.0f}s" for name in ("dial", "command"))
"""Answers come at once, or late from a busy machine. What a test gives itself comes behind."""
_TOOK = re.compile(rb"\b[0-9.]+(?:\xc2\xb5s|[mn]?s)\b")
_LONG_HEX = re.compile(rb"\b[0-9a-f]{11,16}\b")
_LONG_NUMBER = re.compile(rb"\b[0-9]{13,20}\b")
_LOG = re.compile(rb'\{"level":"(?:warn|info|error)"|Hint: ')
_RAFT = re.compile(rb'("raft_term":|"RaftTerm" : )[0-9]+')


class Conversation(Program):
    """A tool that is talked to, and the server that it talks to."""

    def __init__(
        self, command: list[str], env: Mapping[str, str], address: str, *, has_terminal: bool
    ) -> None:
        super().__init__(command, env, has_terminal=has_terminal)
        self.address = address
        self.lease = ""

    def ctl(self, *words: str, stdin: bytes = b"") -> Outcome:
        """Run another command at the same server meanwhile."""
        return run_here([f"--endpoints={self.address}", *PATIENCE, *words], stdin)


class Duel:
    """Two tools, and a server for each."""

    def __init__(self, kind: str, theirs: str, ours: str) -> None:
        self.kind = kind
        """What serves both: `etcd` or `kvorum`."""
        self.theirs = theirs
        self.ours = ours
        self.saved: list[tuple[str, str]] = []
        """What `save` found in the outputs of both."""

    def compare(
        self,
        *words: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        save: str = "",
        err: bool = True,
        endpoints: bool = True,
        change: Callable[[bytes], bytes] = bytes,
        panic_code: int | None = None,
    ) -> Outcome:
        """Run a command line in both tools, demand the same outcome, return etcdctl's.

        `{0}` in a word stands for what the first `save` found: a pattern whose group is looked for
        in both outputs. `err=False` compares no standard error. `change` is done to both outputs
        in addition. Where etcdctl panics, ours is to end with `panic_code`.
        """
        theirs, ours = self.both(*words, stdin=stdin, env=env, endpoints=endpoints)
        if panic_code is not None and b"panic: " in theirs.err:
            assert ours.code == panic_code, (words, ours)
            return theirs
        if save:
            found = [re.search(save.encode(), each.out) for each in (theirs, ours)]
            assert found[0] and found[1], (theirs, ours)
            self.saved.append((found[0][1].decode(), found[1][1].decode()))
        wanted, got = self._plain(theirs, 0, change), self._plain(ours, 1, change)
        if not err:
            wanted, got = wanted._replace(err=b""), got._replace(err=b"")
        assert got == wanted, (words, got, wanted)
        return theirs

    def converse(
        self,
        *words: str,
        talk: Callable[[Conversation], None],
        env: Mapping[str, str] | None = None,
        lease_seconds: int = 0,
        has_terminal: bool = False,
        change: Callable[[bytes], bytes] = bytes,
    ) -> Outcome:
        """Start both tools as processes, talk to each, demand the same outcome, return etcdctl's.

        At a terminal, what is typed is part of the output. With `lease_seconds` a lease is granted
        before, which is `LEASE` in words and outputs.
        """
        outcomes = []
        own = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        tools = ([str(binary("etcdctl"))], [sys.executable, "-m", "kvorum.tools.ctl.main"])
        for tool, address in zip(tools, (self.theirs, self.ours), strict=True):
            side = int(address == self.ours)
            lease = granted_lease(address, lease_seconds) if lease_seconds else "LEASE"
            filled = [word.replace("LEASE", lease) for word in self._filled(words, side)]
            command = [*tool, f"--endpoints={address}", *PATIENCE, *filled]
            program = Conversation(
                command, {**own, **(env or {})}, address, has_terminal=has_terminal
            )
            try:
                program.lease = lease
                talk(program)
                code, *told = program.end()
                outcomes.append(Outcome(code, *(_without(lease, each) for each in told)))
            finally:
                program.close()
        wanted, got = (self._plain(each, side, change) for side, each in enumerate(outcomes))
        assert got == wanted, (words, got, wanted)
        return outcomes[0]

    def etcdctl_at(self, address: str, *words: str) -> None:
        """Run a command line in the real etcdctl, which is to work, at one of the servers."""
        command = [str(binary("etcdctl")), f"--endpoints={address}", *PATIENCE, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS_MAX)

    def ours_alone(self, *words: str, stdin: bytes = b"") -> Outcome:
        """Run a command line in kvorumctl only: what etcdctl does not do, or cannot."""
        return self._kvorumctl(words, stdin, {}, endpoints=True)

    def both(
        self,
        *words: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        endpoints: bool = True,
    ) -> tuple[Outcome, Outcome]:
        """Run a command line in both tools; return etcdctl's outcome and ours."""
        theirs = self._etcdctl(words, stdin, env or {}, endpoints=endpoints)
        return theirs, self._kvorumctl(words, stdin, env or {}, endpoints=endpoints)

    def raise_alarm(self) -> None:
        """Let both servers' members have no space left."""
        for address in (self.theirs, self.ours):
            with Client(address) as client:
                (member,) = client.members.list()
                client.maintenance.raise_alarm("nospace", member.id)

    def _etcdctl(
        self, words: tuple[str, ...], stdin: bytes, env: Mapping[str, str], *, endpoints: bool
    ) -> Outcome:
        begin = (f"--endpoints={self.theirs}", *PATIENCE) if endpoints else ()
        command = [str(binary("etcdctl")), *begin, *self._filled(words, 0)]
        done = subprocess.run(
            command, input=stdin, env=dict(env), capture_output=True, timeout=WAIT_SECONDS_MAX
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def _kvorumctl(
        self, words: tuple[str, ...], stdin: bytes, env: Mapping[str, str], *, endpoints: bool
    ) -> Outcome:
        """Run ours in this process, which is what makes hundreds of lines quick."""
        begin = (f"--endpoints={self.ours}", *PATIENCE) if endpoints else ()
        return run_here([*begin, *self._filled(words, 1)], stdin, env)

    def _filled(self, words: tuple[str, ...], side: int) -> list[str]:
        values = [pair[side] for pair in self.saved]
        return [re.sub(r"\{(\d+)\}", lambda at: values[int(at[1])], word) for word in words]

    def _plain(self, outcome: Outcome, side: int, change: Callable[[bytes], bytes]) -> Outcome:
        def plain(data: bytes) -> bytes:
            for number, pair in enumerate(self.saved):
                data = data.replace(pair[side].encode(), b"<saved %d>" % number)
            data = data.replace((self.theirs, self.ours)[side].encode(), b"<endpoint>")
            data = data.replace(b"kvorumctl", b"etcdctl")
            data = _TOOK.sub(b"<took>", data)
            data = _RAFT.sub(rb"\1<term>", data)
            data = _LONG_NUMBER.sub(b"<id>", _LONG_HEX.sub(b"<id>", data))
            return change(data)

        # etcd's client logs the calls that it gives up, ours gives hints; nobody may parse that.
        told = b"".join(
            line for line in outcome.err.splitlines(keepends=True) if not _LOG.match(line)
        )
        return Outcome(outcome.code, plain(outcome.out), plain(told))


def granted_lease(address: str, seconds: int) -> str:
    """Grant a lease; return its id in hexadecimal."""
    done = run_here([f"--endpoints={address}", *PATIENCE, "lease", "grant", str(seconds)])
    return done.out.split()[1].decode()


def _without(lease: str, data: bytes) -> bytes:
    return data.replace(lease.encode(), b"LEASE")


def run_here(
    arguments: list[str],
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    tool: Callable[[list[str]], int] = run,
) -> Outcome:
    """Run kvorumctl, or another of our tools, in this process; return how it ended."""
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", "surrogateescape"))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", "surrogateescape"))
        for name in [each for each in os.environ if each.startswith(PREFIXES)]:
            patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            code = tool(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        return Outcome(code, out.getvalue(), err.getvalue())


@contextmanager
def duel_of(kind: str, directory: Path, *flags: str, scheme: str = "http") -> Iterator[Duel]:
    """Start two servers of a kind, and let the tools meet."""
    with ExitStack() as stack:

        def address(name: str) -> str:
            if kind == "etcd":
                etcd = running_etcd(directory / name, *flags, scheme=scheme)
                return stack.enter_context(etcd).address
            kvorum = running_kvorum(directory / name, *flags, scheme=scheme)
            return stack.enter_context(kvorum).address

        yield Duel(kind, address("theirs"), address("ours"))
