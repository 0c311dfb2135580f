"""Options of an embedded member: the flags of the command, whatever Python has for their values."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.embed import Config, ConfigError
from kvorum.process.settings.flags import FLAGS, FlagError, parse_arguments
from kvorum.process.settings.rows import BOOL, INT, SECONDS, STRINGS, UINT, URLS, FlagRow

NAMED = [flag for flag in FLAGS if flag.name not in ("version", "config-file")]
TEXTS = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=12)


def outcome_of_flag(flag: FlagRow, text: str) -> object:
    try:
        return parse_arguments([f"--{flag.name}={text}"])[0]
    except FlagError as error:
        return str(error)


def outcome_of_option(flag: FlagRow, text: str) -> object:
    try:
        return Config(**{flag.name.replace("-", "_"): text}).given
    except ConfigError as error:
        return str(error)


@given(st.sampled_from(NAMED), TEXTS | st.sampled_from(["1", "true", "5m", "http://localhost:1"]))
def test_a_text_means_what_it_means_on_a_command_line(flag: FlagRow, text: str) -> None:
    assert outcome_of_option(flag, text) == outcome_of_flag(flag, text)


@given(
    st.sampled_from([flag for flag in NAMED if flag.kind in (BOOL, UINT, INT, SECONDS)]),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_numbers_are_what_they_are(flag: FlagRow, number: int, choice: bool) -> None:
    value: bool | int | timedelta = choice if flag.kind is BOOL else number
    if flag.kind is SECONDS and choice:
        value = timedelta(seconds=number)
    (found,) = Config(**{flag.name.replace("-", "_"): value}).given.values()
    assert found == (number if flag.kind is SECONDS else value)


@given(
    st.sampled_from([flag for flag in NAMED if flag.kind in (STRINGS, URLS)]),
    st.lists(st.from_regex(r"http://[a-z]{1,5}:[1-9]", fullmatch=True), min_size=1),
)
def test_lists_are_what_commas_separate(flag: FlagRow, values: list[str]) -> None:
    (found,) = Config(**{flag.name.replace("-", "_"): values}).given.values()
    assert isinstance(found, tuple)
    assert sorted(map(str, found)) == sorted(set(values))


def test_mappings_are_names_and_values() -> None:
    config = Config(
        initial_cluster={"one": "http://a:1", "two": ["http://b:1", "http://c:1"]},
        feature_gates={"CompactHashCheck": False},
    )
    assert config.given == {
        "initial-cluster": "one=http://a:1,two=http://b:1,two=http://c:1",
        "feature-gates": (("CompactHashCheck", False),),
    }


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean --heartbeat-interval"):
        Config(heartbeat_intervall=10)


def test_options_count_more_than_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kvorum.yml"
    path.write_text("name: from-file\nheartbeat-interval: 20\n")
    config = Config.from_file(path, name="given")
    assert (config.given["name"], config.given["heartbeat-interval"]) == ("given", 20)
    path.write_text("heartbeat-interval: often\n")
    with pytest.raises(ConfigError, match="cannot unmarshal string"):
        Config.from_file(path)


def test_a_copy_has_other_options() -> None:
    config = Config(name="one", ephemeral=True)
    assert config.replaced(name="two").given == {"name": "two", "ephemeral": True}
    assert config.given["name"] == "one"
