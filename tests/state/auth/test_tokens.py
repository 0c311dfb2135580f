"""Simple tokens last for a while after their last use, end with their users, and name an index."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvorum.api.errors import AUTH_FAILED, StatusError
from kvorum.state.auth.tokens import (
    LETTERS,
    PREFIX_LETTERS,
    SWEEP_SECONDS,
    NoTokens,
    SimpleTokens,
    TokenIdentity,
    Tokens,
    index_in,
)

TTL = 4.0
UINT64_MAX = (1 << 64) - 1
# Quarters of a second add up exactly.
SPANS = st.integers(0, 20).map(lambda quarters: quarters / 4)
users = st.sampled_from(["", "a", "b"])


class TokenMachine(RuleBasedStateMachine):
    """Tokens against a list of (token, user, when it ends)."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.index = 0
        self.tokens = SimpleTokens(TTL)
        self.model: dict[str, tuple[str, float]] = {}
        self.swept_at = self.now

    @rule(target=made, user=users)
    def assign(self, user: str) -> str:
        self.index += 1
        token = self.tokens.assign(user, "prefix", self.index, self.now)
        assert token == f"prefix.{self.index}"
        self.model[token] = (user, self.now + TTL)
        return token

    @rule(seconds=SPANS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(token=made)
    def show(self, token: str) -> None:
        user, end = self.model.get(token, ("", 0.0))
        if self.now < end:
            assert self.tokens.verify(token, self.now, 0.0) == TokenIdentity(user, None)
            self.model[token] = (user, self.now + TTL)
        else:
            assert self.tokens.verify(token, self.now, 0.0) is None

    @rule(token=consumes(made))
    def show_no_more(self, token: str) -> None:
        """Never look at it again: it has to be swept all the same."""
        self.show(token)

    @rule(user=users)
    def forget(self, user: str) -> None:
        self.tokens.forget(user)
        self.model = {token: kept for token, kept in self.model.items() if kept[0] != user}

    @rule()
    def forget_all(self) -> None:
        self.tokens.forget_all()
        self.model = {}

    @rule(user=users)
    def sweep(self, user: str) -> None:
        """As others are assigned, those that ended long enough ago are gone."""
        self.now += SWEEP_SECONDS
        self.assign(user)
        self.model = {token: kept for token, kept in self.model.items() if kept[1] > self.now}
        assert len(self.tokens) == len(self.model)

    @invariant()
    def agrees(self) -> None:
        valid = [token for token, (_, end) in self.model.items() if end > self.now]
        assert len(self.tokens) >= len(valid)
        # What is known here is not waited for.
        assert not any(map(self.tokens.index_to_await, valid))


def test_simple_tokens_and_model_agree() -> None:
    run_state_machine_as_test(TokenMachine)


def test_a_token_lasts_for_its_time_after_each_use() -> None:
    tokens = SimpleTokens(TTL)
    token = tokens.assign("u", "x", 5, 100.0)
    assert tokens.verify(token, 103.75, 0.0) == ("u", None)
    assert tokens.verify(token, 107.5, 0.0) == ("u", None)
    assert tokens.verify(token, 111.5, 0.0) is None
    # Looking at it after its end does not bring it back.
    assert tokens.verify(token, 111.5, 0.0) is None
    # What ended is not awaited as if it were still to come, neither before the sweep nor after it.
    assert tokens.index_to_await(token) == 0
    tokens.assign("v", "y", 6, 112.0)
    assert len(tokens) == 1
    assert tokens.index_to_await(token) == 6


def test_sweeping_goes_through_all_tokens_at_most_once_a_second() -> None:
    looks = 0

    class Watched(dict[str, float]):
        def items(self) -> Iterator[tuple[str, float]]:  # type: ignore[override]
            nonlocal looks
            looks += 1
            return iter(super().items())

    tokens = SimpleTokens(TTL)
    tokens._expiries = Watched()
    for number in range(100):
        tokens.assign("u", "x", number, 100.0 + number * SWEEP_SECONDS / 10)
    assert looks <= 11


@pytest.mark.parametrize(
    ("token", "index"),
    [
        ("abc.7", 7),
        (".7", 7),
        ("abc.0", 0),
        ("abc.007", 7),
        (f"abc.{UINT64_MAX}", UINT64_MAX),
        (f"abc.{UINT64_MAX + 1}", 0),
        ("abc." + "9" * 5000, 0),
        ("abc." + "0" * 5000 + "7", 0),
        ("abc", 0),
        ("", 0),
        (".", 0),
        ("abc.", 0),
        ("a.b.7", 0),
        ("abc.7.", 0),
        ("abc.+7", 0),
        ("abc.-7", 0),
        ("abc. 7", 0),
        ("abc.7\n", 0),
        ("abc.0x7", 0),
        ("abc.7_0", 0),
        ("abc.1e3", 0),
        ("abc.\u0667", 0),
        ("abc.\u00b2", 0),
        ("\ufffd.7", 7),
    ],
)
def test_the_index_in_a_token(token: str, index: int) -> None:
    assert index_in(token) == index


@given(st.text() | st.builds("{}.{}".format, st.text(), st.text("0123456789.+", max_size=25)))
@example("abc.18446744073709551616")
def test_any_text_has_an_index_or_none(text: str) -> None:
    index = index_in(text)
    assert 0 <= index <= UINT64_MAX
    tokens = SimpleTokens(TTL)
    assert tokens.index_to_await(text) == (index + 1 if index else 0)
    assert tokens.verify(text, 1.0, 1.0) is None


@given(st.text(LETTERS, min_size=PREFIX_LETTERS, max_size=PREFIX_LETTERS), st.integers(1, 1 << 63))
def test_a_token_that_was_made_names_its_index(prefix: str, index: int) -> None:
    token = SimpleTokens(TTL).assign("u", prefix, index, 0.0)
    assert index_in(token) == index


def test_without_tokens_none_is_valid_or_made() -> None:
    tokens: Tokens = NoTokens()
    assert tokens.assign("u", "x", 5, 0.0) == ""
    assert tokens.verify("x.5", 0.0, 0.0) is None
    assert tokens.index_to_await("x.5") == 0
    tokens.forget("u")
    tokens.forget_all()
    with pytest.raises(StatusError) as refused:
        tokens.signing_job("u", 1, 0.0)
    assert refused.value.status == AUTH_FAILED
