"""`--auth-token` at a start: key files are read, and refusals are those of a real etcd."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvorum.process.settings.checks import make_config
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.tokens import open_tokens
from kvorum.server.telemetry.logs import Logger, Sink, as_json
from kvorum.state.auth.options import parse_token_options
from kvorum.state.auth.tokens import NoTokens, SimpleTokens
from kvorum.storage.files.memory import MemoryFiles
from tests.etcd import binary, is_target
from tests.state.auth.keys import SECRET, private_key, private_pem, public_pem
from tests.waiting import WAIT_SECONDS_MAX

Lines = list[dict[str, Any]]

TOLD = {
    "invalid token option",
    "unknown token type",
    "problem loading JWT options",
    "unknown JWT options",
    "simple token is not cryptographically signed",
    "failed to create token provider",
}


def told(log: str) -> Lines:
    """Return the lines about tokens, without what differs by nature."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    left_out = ("ts", "caller", "stacktrace", "logger")
    return [
        {name: value for name, value in line.items() if name not in left_out}
        for line in lines
        if line["msg"] in TOLD
    ]


def we_say(directory: Path, flag: str) -> tuple[str, Lines]:
    """Return the text of our refusal, empty without one, and what is logged."""
    refused = ""
    with (directory / "log").open("w+") as log:
        try:
            open_tokens(Config(auth_token=flag), Logger([Sink(log.fileno(), as_json)]))
        except ConfigError as error:
            refused = str(error)
        log.seek(0)
        return refused, told(log.read())


def etcd_says(directory: Path, flag: str) -> tuple[str, Lines]:
    """Return the same of a real etcd that refuses to start."""
    done = subprocess.run(
        [
            str(binary("etcd")),
            f"--data-dir={directory / 'data'}",
            "--listen-client-urls=http://127.0.0.1:0",
            "--advertise-client-urls=http://127.0.0.1:1",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--initial-advertise-peer-urls=http://127.0.0.1:2",
            "--initial-cluster=default=http://127.0.0.1:2",
            "--unsafe-no-fsync",
            f"--auth-token={flag}",
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    fatal = json.loads(done.stderr.splitlines()[-1])
    assert fatal["level"] == "fatal" and fatal["msg"] == "discovery failed"
    return fatal["error"], told(done.stderr)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    for name, data in {
        "secret": SECRET,
        "empty": b"",
        "rsa": private_pem(private_key("RS256")),
        "rsa.pub": public_pem(private_key("RS256")),
        "other.pub": public_pem(private_key("RS256", 1)),
        "ec": private_pem(private_key("ES256")),
        "ec.pub": public_pem(private_key("ES256")),
        "ed": private_pem(private_key("EdDSA")),
        "ed.pub": public_pem(private_key("EdDSA")),
    }.items():
        (directory / name).write_bytes(data)
    return directory


@pytest.mark.parametrize(
    "flag",
    [
        "foo",
        "Simple",
        "foo,a",
        "simple,a",
        "simple,a=b=c",
        ",a",
        "jwt",
        "jwt,",
        "jwt,sign-method=HS256,priv-key=/a=b",
        "jwt,sign-method=HS256,sign-method=HS384",
        "jwt,sign-method=hs256,priv-key={}/secret",
        "jwt,sign-method=none,priv-key={}/secret",
        "jwt,sign-method=HS256",
        "jwt,sign-method=HS256,priv-key={}/empty",
        "jwt,sign-method=HS256,pub-key={}/secret",
        "jwt,sign-method=HS256,priv-key={}/missing",
        "jwt,sign-method=HS256,priv-key={}",
        "jwt,sign-method=HS256,priv-key={}/secret,pub-key={}/missing",
        "jwt,sign-method=HS256,priv-key={}/secret,ttl=5",
        "jwt,sign-method=x,priv-key={}/missing,pub-key={}/missing2,ttl=x",
        "jwt,sign-method=x,priv-key={}/missing,pub-key={}/missing2",
        "jwt,sign-method=x,priv-key={}/missing,foo=1",
        "jwt,sign-method=RS256",
        "jwt,sign-method=PS384,priv-key={}/secret",
        "jwt,sign-method=RS256,pub-key={}/secret",
        "jwt,sign-method=RS256,priv-key={}/ec",
        "jwt,sign-method=ES256,priv-key={}/rsa",
        "jwt,sign-method=EdDSA,priv-key={}/ec",
        "jwt,sign-method=RS256,pub-key={}/ed.pub",
        "jwt,sign-method=ES512,pub-key={}/rsa.pub",
        "jwt,sign-method=EdDSA,pub-key={}/ec.pub",
        "jwt,sign-method=RS256,priv-key={}/rsa,pub-key={}/other.pub",
    ],
)
def test_refusals_as_a_real_etcd_words_them(keys: Path, tmp_path: Path, flag: str) -> None:
    given = flag.replace("{}", str(keys))
    refused, lines = we_say(tmp_path, given)
    assert refused
    if not is_target() and not re.search("HS256|=x|^[^j]|^jwt,?$", flag):
        # 3.5.1 has an older library, and compares no keys.
        return
    theirs, their_lines = etcd_says(tmp_path, given)
    assert refused == theirs
    if is_target():
        assert lines == their_lines


@pytest.mark.parametrize(
    "flag",
    [
        "jwt,sign-method=HS512,priv-key={}/secret,pub-key={}/ec,ttl=-1h",
        "jwt,sign-method=RS256,priv-key={}/rsa,pub-key={}/rsa.pub",
        "jwt,sign-method=ES256,priv-key={}/ec",
        "jwt,sign-method=EdDSA,priv-key={}/ed,pub-key={}/empty",
    ],
)
def test_what_key_files_hold_is_used(keys: Path, flag: str) -> None:
    flag = flag.replace("{}", str(keys))
    tokens = open_tokens(make_config({"auth-token": flag}), Logger([]))
    token = tokens.signing_job("user", 7, 1e9).run(MemoryFiles())
    end = 1e9 + parse_token_options(flag).ttl_seconds
    assert tokens.verify(token, 0.0, end - 1) == ("user", 7)
    assert tokens.verify(token, 0.0, end) is None


def test_what_needs_attention_is_logged(keys: Path, tmp_path: Path) -> None:
    assert we_say(tmp_path, "") == ("", [])
    warning = {"level": "warn", "msg": "simple token is not cryptographically signed"}
    assert we_say(tmp_path, "simple,a=b") == ("", [warning])
    flag = f"jwt,sign-method=HS256,priv-key={keys / 'secret'},a=b,c=d"
    unknown = {"level": "warn", "msg": "unknown JWT options", "keys": ["a", "c"]}
    assert we_say(tmp_path, flag) == ("", [unknown])
    (tmp_path / "short").write_bytes(b"short")
    we_say(tmp_path, f"jwt,sign-method=HS256,priv-key={tmp_path / 'short'}")
    assert "the key of auth tokens is weak" in (tmp_path / "log").read_text()


def test_the_default_is_simple() -> None:
    assert isinstance(open_tokens(Config(), Logger([])), SimpleTokens)
    assert isinstance(open_tokens(Config(auth_token=""), Logger([])), NoTokens)
