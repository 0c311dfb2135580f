"""When a member can judge a token, and which of them outlive a snapshot."""

from collections.abc import Callable

import pytest

from kvorum.member.installing import _end_tokens
from kvorum.state.auth.store import ROOT, AuthStore
from kvorum.state.auth.tokens import SimpleTokens
from tests.database import Database

PREFIX = "abcdefghijklmnop"


def test_a_token_is_awaited_until_its_own_entry_is_applied() -> None:
    """Its text has the index before that entry; a member that is just there does not know it."""
    elsewhere, here = SimpleTokens(300.0), SimpleTokens(300.0)
    token = elsewhere.assign("user", PREFIX, 41, 0.0)
    assert token == f"{PREFIX}.41"
    assert here.index_to_await(token) == 42
    assert elsewhere.index_to_await(token) == 0


@pytest.mark.parametrize("text", ["", "abc", "abc.", "abc.x", "abc.0", "a.b.1", "abc.-1"])
def test_nothing_is_awaited_for_what_is_no_token(text: str) -> None:
    assert SimpleTokens(300.0).index_to_await(text) == 0


def store() -> AuthStore:
    auth = AuthStore(Database().backend)
    auth.add_user(ROOT, b"hash", no_password=False)
    auth.grant_role(ROOT, ROOT)
    auth.add_user("user", b"hash", no_password=False)
    auth.enable()
    return auth


def disable_and_enable(auth: AuthStore) -> None:
    auth.disable()
    auth.enable()


def remove_and_add(auth: AuthStore) -> None:
    auth.delete_user("user")
    auth.add_user("user", b"hash", no_password=False)


def disable(auth: AuthStore) -> None:
    auth.disable()


@pytest.mark.parametrize("within", [disable_and_enable, remove_and_add, disable])
def test_no_token_outlives_what_ended_it_within_a_snapshot(
    within: Callable[[AuthStore], None],
) -> None:
    tokens, now = SimpleTokens(300.0), store()
    tokens.assign("user", PREFIX, 41, 0.0)
    within(now)
    _end_tokens(tokens, store(), now)
    assert len(tokens) == 0


def test_tokens_outlive_a_snapshot_without_a_change() -> None:
    tokens = SimpleTokens(300.0)
    tokens.assign("user", PREFIX, 41, 0.0)
    _end_tokens(tokens, store(), store())
    assert len(tokens) == 1
