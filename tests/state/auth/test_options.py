"""The value of `--auth-token`: what it means, and how it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.state.auth.options import (
    INVALID_OPTIONS,
    JWT_TTL_SECONDS,
    Notice,
    TokenKind,
    TokenOptions,
    TokenOptionsError,
    parse_token_options,
)

NAMES = ["sign-method", "pub-key", "priv-key", "foo", ""]
values = st.text(st.characters(exclude_characters=",=", exclude_categories=["Cs"]), max_size=8)
options = st.dictionaries(st.sampled_from(NAMES), values)


def written(kind: str, found: dict[str, str]) -> str:
    return ",".join([kind, *(f"{name}={value}" for name, value in found.items())])


def refusal(text: str) -> tuple[Notice, ...]:
    with pytest.raises(TokenOptionsError) as refused:
        parse_token_options(text)
    assert str(refused.value) == INVALID_OPTIONS
    return refused.value.notices


@given(options)
def test_what_is_written_is_read(found: dict[str, str]) -> None:
    unknown = [name for name in found if name in ("foo", "")]
    warnings = (Notice("unknown JWT options", {"keys": unknown}),) if unknown else ()
    assert parse_token_options(written("jwt", found)) == TokenOptions(
        kind=TokenKind.JWT,
        sign_method=found.get("sign-method", ""),
        private_key_file=found.get("priv-key", ""),
        public_key_file=found.get("pub-key", ""),
        warnings=warnings,
    )


@given(options)
def test_other_kinds_have_no_options(found: dict[str, str]) -> None:
    simple = parse_token_options(written("simple", found))
    warning = Notice("simple token is not cryptographically signed", {})
    assert simple == TokenOptions(kind=TokenKind.SIMPLE, warnings=(warning,))
    assert parse_token_options(written("", found)) == TokenOptions(kind=TokenKind.NONE)


@pytest.mark.parametrize("kind", ["jwt", "simple", "", "other"])
@given(options, st.sampled_from(["foo", "", "a=b=c", "==", "pub-key", "a=/keys=old"]))
def test_a_part_has_one_equals_sign(kind: str, found: dict[str, str], part: str) -> None:
    text = written(kind, found) + "," + part
    assert refusal(text) == (Notice("invalid token option", {"option": text}, is_error=True),)


@pytest.mark.parametrize("kind", ["jwt", "simple", "", "other"])
@given(options.filter(bool), values, st.data())
def test_a_name_comes_once(
    kind: str, found: dict[str, str], value: str, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(list(found)))
    text = f"{written(kind, found)},{name}={value}"
    fields: dict[str, object] = {"option": text, "duplicate-parameter": name}
    assert refusal(text) == (Notice("invalid token option", fields, is_error=True),)


@given(values.filter(lambda text: text not in ("jwt", "simple", "")), options)
def test_there_is_no_other_kind(kind: str, found: dict[str, str]) -> None:
    fields: dict[str, object] = {"type": kind, "error": INVALID_OPTIONS}
    assert refusal(written(kind, found)) == (Notice("unknown token type", fields),)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", JWT_TTL_SECONDS), ("1h30m", 5400.0), ("-1.5s", -1.5), ("0", 0.0), ("250ms", 0.25)],
)
def test_the_time_to_live_is_a_duration(text: str, seconds: float) -> None:
    assert parse_token_options(f"jwt,ttl={text}").ttl_seconds == seconds


def test_another_text_is_none() -> None:
    reason = 'time: missing unit in duration "5"'
    assert refusal("jwt,ttl=5") == (
        Notice("problem loading JWT options", {"error": reason}, is_error=True),
    )
    assert parse_token_options("simple,ttl=5").kind is TokenKind.SIMPLE
