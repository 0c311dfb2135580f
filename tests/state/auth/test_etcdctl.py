"""What `etcdctl` prints to administrators and users: the same for ours and for a real etcd.

Both get the same commands in the same order, so that even revisions agree.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.etcdctl import Outcome, run, session
from tests.state.auth.servers import Both, running_both

pytestmark = pytest.mark.timeout(120)

FORMATS = ("simple", "json", "fields")
OFF = (
    ("auth status", ""),
    ("auth status -w json", ""),
    ("auth status -w fields", ""),
    ("auth status more", ""),
    ("auth enable more", ""),
    ("auth disable more", ""),
    ("auth enable", ""),
    ("auth disable", ""),
    ("--user root:secret get a", ""),
    ("user list", ""),
    ("user list more", ""),
    ("user add", ""),
    ("user add :x", ""),
    ("user add root:secret", ""),
    ("user add root:secret", ""),
    ("user add alice --new-user-password=secret", ""),
    ("user add with:colon --new-user-password=secret", ""),
    ("user add bob --no-password", ""),
    ("user add carol --interactive=false", "secret\n"),
    ("user add dave --interactive=false", "\n"),
    ("user add eve:", ""),
    ("user add json:secret -w json", ""),
    ("user add fields:secret -w fields", ""),
    (f"user add long:{'x' * 73}", ""),
    ("user list", ""),
    ("user list -w json", ""),
    ("user list -w fields", ""),
    ("user get alice", ""),
    ("user get none", ""),
    ("user get", ""),
    ("user passwd alice --interactive=false", "secret\n"),
    ("user passwd none --interactive=false", "secret\n"),
    ("user passwd", ""),
    ("user delete json", ""),
    ("user delete fields -w fields", ""),
    ("user delete json", ""),
    ("user delete", ""),
    ("role list", ""),
    ("role add", ""),
    ("role add reading", ""),
    ("role add reading", ""),
    ("role add writing -w json", ""),
    ("role add all", ""),
    ("role add nothing", ""),
    ("role list", ""),
    ("role list -w json", ""),
    ("role list -w fields", ""),
    ("role get reading", ""),
    ("role get none", ""),
    ("role get", ""),
    ("role grant-permission reading", ""),
    ("role grant-permission reading read a", ""),
    ("role grant-permission reading read a", ""),
    ("role grant-permission reading read a b", ""),
    ("role grant-permission reading READ p --prefix", ""),
    ("role grant-permission reading read p q --prefix", ""),
    ("role grant-permission reading read p --prefix --from-key", ""),
    ("role grant-permission reading read p q --from-key", ""),
    ("role grant-permission reading read t --from-key", ""),
    ("role grant-permission reading read z a", ""),
    ("role grant-permission reading other a", ""),
    ("role grant-permission none read a", ""),
    ("role grant-permission writing Write w --prefix", ""),
    ("role grant-permission writing readwrite a", ""),
    ("role grant-permission all readwrite '' --prefix -w fields", ""),
    ("role grant-permission all readwrite '' --from-key", ""),
    ("role revoke-permission reading", ""),
    ("role revoke-permission reading a", ""),
    ("role revoke-permission reading a", ""),
    ("role revoke-permission reading a b", ""),
    ("role revoke-permission reading p --prefix", ""),
    ("role revoke-permission reading t --from-key", ""),
    ("role revoke-permission none t", ""),
    ("role grant-permission reading read a", ""),
    ("role grant-permission reading read a b", ""),
    ("role grant-permission reading read p --prefix", ""),
    ("user grant-role", ""),
    ("user grant-role alice reading", ""),
    ("user grant-role alice reading", ""),
    ("user grant-role alice writing -w json", ""),
    ("user grant-role alice none", ""),
    ("user grant-role none reading", ""),
    ("user revoke-role", ""),
    ("user revoke-role alice none", ""),
    ("user revoke-role alice writing", ""),
    ("user grant-role alice writing", ""),
    ("user grant-role carol all", ""),
    ("put a 1", ""),
    ("put p1 2", ""),
    ("put w1 3", ""),
    ("put z 4", ""),
    ("auth enable", ""),
)
SHOWN = (
    "user get alice",
    "user get --detail alice",
    "user get root",
    "user get --detail root",
    "role get reading",
    "role get writing",
    "role get all",
    "role get root",
    "user list",
    "role list",
    "auth status",
)
ON = (
    ("get a", ""),
    ("--user root get a", "secret\n"),
    ("--user root --password secret get a", ""),
    ("--user root:wrong get a", ""),
    ("--user none:secret get a", ""),
    ("--user bob:secret get a", ""),
    ("--user alice:secret get a", ""),
    ("--user alice:secret get z", ""),
    ("--user alice:secret get p --prefix", ""),
    ("--user alice:secret get '' --prefix", ""),
    ("--user alice:secret get p --from-key", ""),
    ("--user alice:secret put a 5 --prev-kv", ""),
    ("--user alice:secret put w1 5", ""),
    ("--user alice:secret put w1 6 --prev-kv", ""),
    ("--user alice:secret del a --prev-kv", ""),
    ("--user alice:secret del p1", ""),
    ("--user carol:secret get '' --prefix", ""),
    ("--user carol:secret put z 5", ""),
    ("--user alice:secret txn", 'value("a") = "5"\n\nput w1 7\n\nget a\n\n'),
    ("--user alice:secret txn", 'value("z") = "5"\n\nput w1 7\n\nget a\n\n'),
    ("--user alice:secret txn", 'value("a") = "5"\n\nput w1 7\n\nput z 8\n\n'),
    ("--user alice:secret compaction 2", ""),
    ("--user alice:secret watch z", ""),
    ("watch a", ""),
    ("--user alice:secret lease list", ""),
    ("--user alice:secret lease timetolive 4d2", ""),
    ("--user alice:secret lease revoke 4d2", ""),
    ("lease list", ""),
    ("lease grant 100", ""),
    ("--user alice:secret lease keep-alive 4d2 --once", ""),
    ("--user alice:secret member list -w json", ""),
    ("member list", ""),
    ("--user alice:secret member remove 5", ""),
    ("--user alice:secret alarm list", ""),
    ("--user alice:secret alarm disarm", ""),
    ("--user alice:secret defrag", ""),
    ("--user alice:secret endpoint hashkv", ""),
    ("--user alice:secret move-leader 1", ""),
    ("--user alice:secret lock z echo held", ""),
    ("--user carol:secret lock z echo held", ""),
    ("--user alice:secret elect -l z", ""),
    ("--user alice:secret user list", ""),
    ("--user alice:secret user get alice", ""),
    ("--user alice:secret user get carol", ""),
    ("--user alice:secret role get reading", ""),
    ("--user alice:secret role get all", ""),
    ("--user alice:secret user add x:y", ""),
    ("--user alice:secret user passwd alice --interactive=false", "secret\n"),
    ("--user alice:secret auth disable", ""),
    ("--user root:secret user delete root", ""),
    ("--user root:secret user revoke-role root root", ""),
    ("--user root:secret role delete root", ""),
    ("--user root:secret role delete none", ""),
    ("--user root:secret role delete writing", ""),
    ("--user root:secret user get alice", ""),
    ("--user root:secret compaction 3", ""),
    ("--user root:secret auth enable", ""),
    ("--user root:secret auth disable", ""),
    ("user delete root", ""),
    ("auth enable", ""),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("etcdctl")) as found:
        yield found


def compare(both: Both, commands: Sequence[tuple[str, str]]) -> None:
    for line, text in commands:
        ours, theirs = (run(server.address, *shlex.split(line), text=text) for server in both)
        found, expected = (
            comparable(each, server.address)
            for each, server in zip((ours, theirs), both, strict=True)
        )
        assert found == expected, f"etcdctl {line}"


def comparable(outcome: Outcome, address: str) -> Outcome:
    """Leave out what differs by its nature: the address, ids of leases, and the term."""
    output = outcome.output.replace(address, "...")
    output = re.sub(r'("RaftTerm" : |"raft_term":)\d+', r"\1...", output)
    output = re.sub(r"\b[0-9a-f]{13,16}\b", "...", output)
    error = re.sub(r"\b[0-9a-f]{13,16}\b", "...", outcome.error.replace(address, "..."))
    error = re.sub(r"took [0-9.]+[mµ]?s", "took ...", error)
    return outcome._replace(output=output, error=error)


def test_users_and_roles_are_made(both: Both) -> None:
    compare(both, OFF)


def test_users_and_roles_are_shown(both: Both) -> None:
    shown = [f"--user root:secret {line} -w {form}" for line in SHOWN for form in FORMATS]
    compare(both, [(line, "") for line in shown])


@contextmanager
def watching(both: Both, *arguments: str) -> Iterator[list[list[str]]]:
    """Watch at both for as long as the block takes; yields what they print then."""
    printed: list[list[str]] = []
    sessions = [session(server.address, *arguments) for server in both]
    with sessions[0] as ours, sessions[1] as theirs:
        yield printed
        printed += [[each.hear() for _ in range(3)] for each in (ours, theirs)]


def test_users_watch_what_they_may_read(both: Both) -> None:
    user = ("--user", "alice:secret")
    with watching(both, *user, "watch", "p", "--prefix", "--rev=1") as printed:
        pass
    assert printed == [["PUT", "p1", "2"]] * 2


def test_leases_belong_to_those_who_may_write_their_keys(both: Both) -> None:
    assert _lease_outcomes(both.ours.address) == _lease_outcomes(both.oracle.address)


def _lease_outcomes(address: str) -> list[tuple[int, str]]:
    """Let a user try everything with a lease of root's; return what is printed."""
    root, alice = ("--user", "root:secret"), ("--user", "alice:secret")
    lease = run(address, *root, "lease", "grant", "9000").output.split()[1]
    tried = (
        ("lease", "timetolive", lease),
        ("lease", "timetolive", lease, "--keys"),
        ("lease", "keep-alive", lease, "--once"),
    )
    outcomes = []
    for key in ("w2", "z"):
        run(address, *root, "put", key, "x", f"--lease={lease}")
        outcomes += [run(address, *alice, *words) for words in tried]
    outcomes.append(run(address, *alice, "lease", "revoke", lease))
    outcomes.append(run(address, *alice, "put", "w3", "x", f"--lease={lease}"))
    outcomes.append(run(address, *root, "del", "z"))
    outcomes.append(run(address, *alice, "lease", "revoke", lease))
    texts = [(each.code, (each.output + each.error).replace(lease, "...")) for each in outcomes]
    return [(code, re.sub(r"remaining\(\d+s\)", "remaining(...)", text)) for code, text in texts]


def test_only_root_saves_a_snapshot(both: Both, tmp_path: Path) -> None:
    refusals = []
    for server in both:
        saved = tmp_path / "saved.db"
        save = ("snapshot", "save", str(saved))
        refused = run(server.address, "--user", "alice:secret", *save)
        assert refused.code != 0 and not saved.exists()
        refusals.append(refused.error)
        done = run(server.address, "--user", "root:secret", *save)
        assert done.code == 0 and saved.stat().st_size > 0, done
        saved.unlink()
    assert refusals[0] == refusals[1]


def test_root_changes_the_members(both: Both) -> None:
    root = ("--user", "root:secret")
    for server in both:
        added = ("member", "add", "new", "--learner", "--peer-urls=http://127.0.0.1:3")
        assert run(server.address, *added).code != 0
        done = run(server.address, *root, *added)
        assert done.code == 0, done
        learner = done.output.split()[1]
        assert run(server.address, "--user", "alice:secret", "member", "remove", learner).code != 0
        assert run(server.address, *root, "member", "remove", learner).code == 0


def test_users_are_elected(both: Both) -> None:
    for server in both:
        with session(server.address, "--user", "carol:secret", "elect", "office", "me") as elected:
            assert elected.hear().startswith("office/")
            assert elected.hear() == "me"
            told = run(server.address, "--user", "alice:secret", "elect", "-l", "office")
            assert told.code != 0
            elected.interrupt()


def test_users_do_what_they_may(both: Both) -> None:
    compare(both, ON)
