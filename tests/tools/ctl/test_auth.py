"""`auth`, `user` and `role` beside etcdctl's."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.etcd import binary, is_target
from tests.tools.ctl.duel import KINDS, Duel, duel_of
from tests.tools.ctl.processes import until_it_waits
from tests.tools.ctl.terminal import terminal_of

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")
ENVIRONMENT = {"PATH": os.environ["PATH"]}
"""etcdctl asks for passwords with the help of stty."""
OURS = (sys.executable, "-m", "kvorum.tools.ctl.main")


@pytest.fixture(scope="module", params=KINDS)
def duel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Duel]:
    """Servers that hash passwords as quickly as they can."""
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    with duel_of(request.param, tmp_path_factory.mktemp("auth"), "--bcrypt-cost=4") as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_users_and_roles_look_the_same(duel: Duel, form: str) -> None:
    is_short = form in ("table", "nonsense")

    def compare(*words: str) -> None:
        if is_short and words[1] not in ("add", "get", "list", "delete", "status"):
            return
        duel.compare(
            *words,
            *("-w", form),
            change=lambda data: b"" if form == "protobuf" else data,
        )

    compare("role", "add", "look")
    compare("role", "get", "look")
    compare("role", "grant-permission", "look", "read", "a")
    compare("role", "grant-permission", "look", "WRITE", "b", "c")
    compare("role", "grant-permission", "look", "readwrite", "d", "--prefix")
    compare("role", "grant-permission", "look", "readwrite", "e", "--from-key")
    compare("role", "grant-permission", "look", "read", "\udcff", "--prefix")
    compare("role", "grant-permission", "look", "read", "", "--from-key")
    compare("role", "get", "look")
    compare("role", "list")
    compare("user", "add", "look:secret")
    compare("user", "add", "bare", "--no-password")
    compare("user", "get", "look")
    compare("user", "grant-role", "look", "look")
    compare("user", "grant-role", "look", "look")
    compare("user", "get", "look")
    compare("user", "get", "look", "--detail")
    compare("user", "list")
    compare("user", "revoke-role", "look", "look")
    compare("user", "delete", "look")
    compare("user", "delete", "bare")
    compare("role", "revoke-permission", "look", "a")
    compare("role", "revoke-permission", "look", "b", "c")
    compare("role", "revoke-permission", "look", "d", "--prefix")
    compare("role", "revoke-permission", "look", "e", "--from-key")
    compare("role", "revoke-permission", "look", "", "--prefix")
    compare("role", "delete", "look")
    compare("auth", "status")


@pytest.mark.parametrize(
    "words",
    [
        ("auth", "enable", "x"),
        ("auth", "disable", "x"),
        ("auth", "status", "x"),
        ("auth", "enable"),
        ("auth", "disable"),
        ("user", "add"),
        ("user", "add", "a", "b"),
        ("user", "add", ":password"),
        ("user", "add", "", "--no-password"),
        ("user", "add", "empty:"),
        ("user", "delete", "empty"),
        ("user", "add", "a:b:c"),
        ("user", "delete", "a"),
        ("user", "add", "a:b", "--new-user-password=c"),
        ("user", "delete", "a:b"),
        ("user", "delete"),
        ("user", "delete", "nobody"),
        ("user", "get"),
        ("user", "get", "nobody"),
        ("user", "get", "nobody", "--detail"),
        ("user", "list", "x"),
        ("user", "passwd"),
        ("user", "passwd", "nobody", "--interactive=false"),
        ("user", "grant-role", "nobody"),
        ("user", "grant-role", "nobody", "nothing"),
        ("user", "revoke-role", "nobody"),
        ("user", "revoke-role", "nobody", "nothing"),
        ("role", "add"),
        ("role", "add", ""),
        ("role", "add", "one"),
        ("role", "add", "one", "-w=json"),
        ("role", "grant-permission", "one", "read"),
        ("role", "grant-permission", "one", "nonsense", "key"),
        ("role", "grant-permission", "nothing", "read", "key"),
        ("role", "grant-permission", "one", "read", ""),
        ("role", "grant-permission", "one", "read", "", "--prefix", "--from-key"),
        ("role", "grant-permission", "one", "read", "k", "--prefix", "--from-key"),
        ("role", "grant-permission", "one", "read", "k", "l", "--prefix"),
        ("role", "grant-permission", "one", "read", "k", "l", "--from-key"),
        ("role", "grant-permission", "one", "read", "l", "k"),
        ("role", "revoke-permission", "one"),
        ("role", "revoke-permission", "one", "unknown"),
        ("role", "revoke-permission", "nothing", "k"),
        ("role", "get"),
        ("role", "get", "nothing"),
        ("role", "get", "one"),
        ("role", "list", "x"),
        ("role", "delete", "one"),
        ("role", "delete", "one", "-w=json"),
        ("role", "delete"),
        ("user", "nonsense"),
    ],
)
def test_what_is_refused(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare(*words, err=words[-1] != "nonsense", change=_without_help)


def _without_help(data: bytes) -> bytes:
    """Leave the help out, which is in our own words."""
    return b"" if b"Usage:" in data else data


KEYS = st.text("ab\x7fü \udcff\udcfe", min_size=1, max_size=3)
PERMISSIONS = st.tuples(
    st.sampled_from(["read", "write", "readwrite"]),
    st.sampled_from(["--prefix", "--from-key", "--prefix=false"]),
    st.tuples(KEYS),
) | st.tuples(
    st.sampled_from(["read", "write", "readwrite"]),
    st.just("--prefix=false"),
    st.tuples(KEYS, KEYS),
)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.lists(PERMISSIONS, min_size=1, max_size=4))
def test_permissions_of_any_keys(
    duel: Duel, permissions: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    duel.compare("role", "add", "any")
    for kind, flag, keys in permissions:
        duel.compare("role", "grant-permission", flag, "--", "any", kind, *keys)
    for form in ("simple", "fields", "json"):
        duel.compare("role", "get", "any", "-w", form)
    _, flag, keys = permissions[0]
    duel.compare("role", "revoke-permission", flag, "--", "any", *keys)
    duel.compare("role", "delete", "any")


@pytest.mark.parametrize("stdin", [b"word\n", b" one two\n", b"\n", b""])
def test_passwords_come_from_the_standard_input(duel: Duel, stdin: bytes) -> None:
    for options in (("--interactive=false",), ()):
        # What stty says to a pipe is nobody's concern.
        for command in ("add", "passwd"):
            duel.compare(
                *("user", command, "piped", *options),
                stdin=stdin * 2,
                err=bool(options),
                env=ENVIRONMENT,
            )
        duel.compare("user", "delete", "piped")


@pytest.fixture
def guarded(duel: Duel) -> Iterator[Duel]:
    """Authentication is on, and there is a user who may little."""
    duel.compare("role", "add", "some")
    duel.compare("role", "grant-permission", "some", "readwrite", "mine/", "--prefix")
    duel.compare("user", "add", "some:secret")
    duel.compare("user", "grant-role", "some", "some")
    duel.compare("user", "add", "root:rootpw")
    duel.compare("auth", "enable")
    yield duel
    duel.compare("auth", "disable", "--user=root:rootpw")
    for kind in ("user", "role"):
        for name in ("root", "some"):
            duel.compare(kind, "delete", name)


def test_the_identity_of_the_caller(guarded: Duel) -> None:
    for user in (
        ("--user=some:secret",),
        ("--user=some", "--password=secret"),
        ("--user=some:wrong",),
        ("--user=some", "--password=some:secret"),
        ("--user=nobody:secret",),
        ("--user=some:",),
        ("--password=secret",),
        ("--auth-jwt-token=nonsense",),
        ("--auth-jwt-token=nonsense", "--user=some:secret"),
    ):
        for words in (("put", "mine/a", "1"), ("get", "other"), ("endpoint", "status", "-w=table")):
            guarded.compare(*words, *user, change=_without_status)


@pytest.mark.long
def test_the_permissions_of_the_caller(guarded: Duel) -> None:
    for user in (("--user=root:rootpw",), ("--user=some:secret",), ()):
        for words in (
            ("put", "mine/a", "1"),
            ("get", "mine/a"),
            ("get", "other"),
            ("endpoint", "health"),
            ("endpoint", "hashkv", "-w=json"),
            ("member", "list", "-w=json"),
            ("alarm", "list"),
            ("auth", "status"),
            ("user", "list"),
            ("user", "get", "some"),
            ("role", "get", "some"),
            ("user", "get", "some", "--detail"),
            ("snapshot", "save", "/nonexistent/file"),
            ("defrag",),
            ("move-leader", "1"),
            ("downgrade", "validate", "3.6"),
        ):
            guarded.compare(*words, *user)


@pytest.mark.parametrize("options", [("--cluster",), ()])
def test_a_wrong_password_of_endpoints(guarded: Duel, options: tuple[str, ...]) -> None:
    for command in ("health", "status", "hashkv"):
        for form in ("simple", "json"):
            guarded.compare("endpoint", command, "-w", form, "--user=a:b", *options)


def test_a_password_is_asked_for(guarded: Duel) -> None:
    for words in (("get", "mine/a"), ("endpoint", "status", "-w=table"), ("defrag",)):
        for stdin in (b"secret\n", b" secret \n", b"wrong\n", b""):
            guarded.compare(
                *words,
                "--user=some",
                stdin=stdin,
                err=False,
                env=ENVIRONMENT,
                change=_without_status,
            )


def _without_status(data: bytes) -> bytes:
    return b"a table" if "┌".encode() in data else data


def test_the_role_root_is_granted_if_no_user_has_it(duel: Duel) -> None:
    # etcdctl gives up there: the role exists already.
    duel.compare("user", "add", "root:rootpw")
    duel.compare("role", "add", "root")
    duel.compare("role", "get", "root")
    theirs, ours = duel.both("auth", "enable")
    assert (theirs.code, ours.code, ours.out) == (1, 0, b"Authentication Enabled\n")
    duel.both("user", "grant-role", "root", "root")
    duel.both("auth", "enable")
    for words in (("auth", "disable"), ("user", "delete", "root"), ("role", "delete", "root")):
        assert {each.code for each in duel.both(*words, "--user=root:rootpw")} <= {0, 2}
    duel.both("user", "delete", "root")
    duel.both("role", "delete", "root")


# At a terminal.


def _tools(duel: Duel) -> list[tuple[Sequence[str], str]]:
    return [((str(binary("etcdctl")),), duel.theirs), (OURS, duel.ours)]


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("user", "add", "typed"), ("one", "one")),
        (("user", "passwd", "typed"), ("two", "two")),
        (("get", "a", "--user=typed"), ("two",)),
        (("user", "passwd", "typed"), ("two", "three")),
        (("user", "passwd", "typed"), ("",)),
        (("user", "passwd", "typed"), ("\x04",)),
        (("user", "delete", "typed"), ()),
        (("make-mirror", "127.0.0.1:1", "--dest-user=x", "--dial-timeout=50ms"), ("pw",)),
    ],
)
def test_prompts_at_a_terminal(
    duel: Duel, words: tuple[str, ...], answers: tuple[str, ...]
) -> None:
    shown = []
    for tool, address in _tools(duel):
        with terminal_of([*tool, f"--endpoints={address}", *words]) as terminal:
            for answer in answers:
                terminal.wait_hidden(": ")
                terminal.type(answer if answer == "\x04" else f"{answer}\n")
            code = terminal.end()
            assert terminal.is_echoing(), "the terminal is left as it was"
        seen = terminal.seen.splitlines()
        shown.append((code, [each for each in seen if not each.startswith((b"{", b"Hint"))]))
    assert shown[0] == shown[1]


def test_an_interruption_of_a_prompt(duel: Duel) -> None:
    for tool, address in _tools(duel):
        with terminal_of([*tool, f"--endpoints={address}", "user", "add", "never"]) as terminal:
            terminal.wait_hidden(": ")
            until_it_waits(terminal.process)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 255
            assert terminal.is_echoing()
    duel.compare("user", "get", "never")


def test_a_password_is_asked_for_once(guarded: Duel) -> None:
    # etcdctl asks twice with --cluster.
    words = ("endpoint", "health", "--cluster", "--user=some")
    with terminal_of([*OURS, f"--endpoints={guarded.ours}", *words]) as terminal:
        terminal.wait_hidden("Password: ")
        terminal.type("secret\n")
        code = terminal.end()
    assert (code, terminal.seen.count(b"Password: ")) == (0, 1)
    assert b"is healthy" in terminal.seen
