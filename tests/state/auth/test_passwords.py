"""Hashes of passwords: they hold for that password alone, here and in a real etcd."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.errors import StatusError
from kvorum.api.pb.authpb import User
from kvorum.state.auth.passwords import (
    PASSWORD_BYTES_MAX,
    SALT_BYTES,
    CheckPassword,
    HashPassword,
    draw_salt,
    hash_now,
)
from kvorum.storage.backend.bbolt import open_image
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from tests.state.auth.oracle import OK, Guarded, guarded_etcd

COST = 4
FILES = MemoryFiles()
passwords = st.text(max_size=80) | st.text("a\0", max_size=6) | st.text("aé", min_size=34)
salts = st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES)


def is_accepted(stored: bytes, password: str) -> bool:
    return CheckPassword(stored, password).run(FILES)


def key_of(password: str) -> bytes:
    """Return what bcrypt looks at: the password and a zero byte, again and again."""
    return ((password.encode() + b"\0") * PASSWORD_BYTES_MAX)[:PASSWORD_BYTES_MAX]


@settings(deadline=None, max_examples=60)
@given(passwords, passwords, salts)
def test_a_hash_holds_for_its_password(password: str, other: str, salt: bytes) -> None:
    work = HashPassword(password, COST, salt)
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        with pytest.raises(StatusError) as refused:
            work.run(FILES)
        assert refused.value.status == errors.PASSWORD_TOO_LONG
        return
    stored = work.run(FILES)
    assert stored.startswith(b"$2a$04$") and len(stored) == 60
    assert is_accepted(stored, password)
    assert is_accepted(stored, other) == (key_of(password) == key_of(other))


def test_the_longest_password_is_counted_in_bytes() -> None:
    for text, count in (("x", PASSWORD_BYTES_MAX), ("é", PASSWORD_BYTES_MAX // 2)):
        assert HashPassword(text * count, COST, bytes(SALT_BYTES)).run(FILES)
        with pytest.raises(StatusError):
            HashPassword(text * (count + 1), COST, bytes(SALT_BYTES)).run(FILES)


@given(st.binary(max_size=80) | st.binary(min_size=56, max_size=56).map(lambda b: b"$2a$" + b))
def test_what_is_no_hash_is_nobodys(stored: bytes) -> None:
    assert not is_accepted(stored, "")


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=PASSWORD_BYTES_MAX // 4), st.binary(), st.binary())
def test_members_make_the_same_hash_of_an_old_entry(
    password: str, seed: bytes, other: bytes
) -> None:
    stored = hash_now(password, COST, seed)
    assert stored == hash_now(password, COST, seed) and is_accepted(stored, password)
    assert (stored == hash_now(password, COST, other)) == (seed == other)


def test_every_bit_of_a_salt_is_drawn() -> None:
    limits: list[int] = []

    def highest(limit: int) -> int:
        limits.append(limit)
        return limit - 1

    assert draw_salt(highest) == b"\xff" * SALT_BYTES
    assert limits == [2**128]


def test_nothing_secret_is_shown() -> None:
    for work in (HashPassword("secret", COST, b"salt" * 4), CheckPassword(b"hash", "secret")):
        shown = f"{work} {work!r}"
        assert not any(each in shown for each in ("secret", "salt", "b'hash'"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_etcd(tmp_path_factory.mktemp("passwords")) as guarded:
        yield guarded


def assert_agreement(etcd: Guarded, stored: bytes, password: str) -> bool:
    _, root = etcd.log_in("root", "root")
    encoded = base64.b64encode(stored).decode()
    assert etcd.call("auth/user/changepw", root, name="user", hashedPassword=encoded)[0] == OK
    refused, _ = etcd.log_in("user", password)
    accepted = is_accepted(stored, password)
    assert accepted == (refused == OK), (stored, password, refused)
    return accepted


@pytest.mark.parametrize(
    "password", ["", "word", "a\0", "a\0a", "a\0b", "\0", "é" * 36, "x" * 72], ids=ascii
)
def test_etcd_takes_our_hashes(etcd: Guarded, password: str) -> None:
    stored = HashPassword(password, COST, bytes(range(SALT_BYTES))).run(FILES)
    assert assert_agreement(etcd, stored, password)
    for other in (password + "\0", password + password, password + "x", password[:-1], "x" * 73):
        assert_agreement(etcd, stored, other)


def forms(stored: bytes) -> dict[str, bytes]:
    tail = stored[7:]
    return {
        "2b": b"$2b$04$" + tail,
        "2y": b"$2y$04$" + tail,
        "2q": b"$2q$04$" + tail,
        "no minor": b"$2$04$" + tail,
        "no minor, cut": b"$2$04$" + tail[:-1],
        "major 1": b"$1a$04$" + tail,
        "major 3": b"$3a$04$" + tail,
        "no dollar": b"#2a$04$" + tail,
        "another cost": b"$2a$05$" + tail,
        "cost too low": b"$2a$03$" + tail,
        "cost too high": b"$2a$32$" + tail,
        "no cost": b"$2a$xx$" + tail,
        "no dollar behind the cost": b"$2a$04_" + tail,
        "cut": stored[:-1],
        "longer": stored + b"more",
        "unused bits": stored[:28] + bytes((stored[28] + 1,)) + stored[29:],
        "no character of a salt": stored[:20] + b"!" + stored[21:],
        "no character at its end": stored[:28] + b"!" + stored[29:],
        "other hash": stored[:-1] + b"x",
        "short": b"$2a$04$",
    }


@pytest.mark.parametrize("form", forms(bytes(60)))
def test_etcd_takes_the_same_hashes_of_others(etcd: Guarded, form: str) -> None:
    stored = HashPassword("word", COST, bytes(SALT_BYTES)).run(FILES)
    assert stored[28:29] == b"."
    assert_agreement(etcd, forms(stored)[form], "word")


def test_we_take_etcds_hashes(tmp_path: Path) -> None:
    names = ["word", "", "a\0b", "é" * 36]
    with guarded_etcd(tmp_path / "data") as guarded:
        _, root = guarded.log_in("root", "root")
        for number, password in enumerate(names):
            refused, _ = guarded.call(
                "auth/user/add", root, name=f"user{number}", password=password
            )
            assert refused == OK
        refused, _ = guarded.call("auth/user/add", root, name="long", password="x" * 73)
        # An older Go cuts it.
        assert refused in (errors.PASSWORD_TOO_LONG.text, OK)
    image = open_image(RealFiles(), str(tmp_path / "data" / "member" / "snap" / "db"))
    try:
        users = {key: User.FromString(row) for key, row in image.items(b"authUsers")}
    finally:
        image.close()
    for number, password in enumerate(names):
        stored = users[b"user%d" % number].password
        assert stored.startswith(b"$2a$04$")
        assert is_accepted(stored, password) and not is_accepted(stored, "x" + password)
