"""Signed tokens: who is known by one, for how long, and that a real etcd agrees."""

import base64
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt import PyJWS

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError
from kvorum.state.auth.jwt_keys import ECDSA, HMAC, METHODS, RSA, read_keys
from kvorum.state.auth.jwt_tokens import (
    TOKEN_CHARACTERS_MAX,
    VERIFIED_CHARACTERS_MAX,
    VERIFIED_MAX,
    JwtTokens,
)
from kvorum.storage.files.memory import MemoryFiles
from tests.etcd import is_target
from tests.state.auth.keys import (
    SECRET,
    key_files,
    private_key,
    private_pem,
    public_pem,
    tokens,
)
from tests.state.auth.oracle import OK, Guarded, guarded_etcd

FILES = MemoryFiles()
NOW = 1_800_000_000.25
TTL = 300.0
INVALID_TOKEN = errors.INVALID_AUTH_TOKEN.text
OLD = errors.AUTH_OLD_REVISION.text
EMPTY = errors.USER_EMPTY.text
FAMILIES = ("HS256", "RS256", "PS256", "ES256", "EdDSA")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
revisions = st.integers(0, 2**53)
few = settings(deadline=None, max_examples=20)


def issued(provider: JwtTokens, user: str = "user", revision: int = 7) -> str:
    return provider.signing_job(user, revision, NOW).run(FILES)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(segment: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4)))


def signed(payload: str | bytes, headers: dict[str, Any] | None = None) -> str:
    """Return a token of any content, with a good signature."""
    data = payload if isinstance(payload, bytes) else payload.encode()
    return PyJWS().encode(data, SECRET, "HS256", headers)


@pytest.mark.parametrize("method", METHODS)
@few
@given(user=names, revision=revisions)
def test_a_token_says_whom_it_was_issued_to(method: str, user: str, revision: int) -> None:
    token = issued(tokens(method), user, revision)
    provider = tokens(method)
    for _ in range(2):
        assert provider.verify(token, 0.0, NOW) == (user, revision)
    header, claims, _ = token.split(".")
    assert decoded(header) == {"alg": method, "typ": "JWT"}
    assert decoded(claims) == {
        "exp": math.floor(NOW + TTL),
        "revision": revision,
        "username": user,
    }


@few
@given(st.floats(-1e6, 1e6), st.floats(0, 2e9))
def test_a_token_lasts_to_the_second_of_its_end(ttl_seconds: float, now: float) -> None:
    provider = tokens("HS256", ttl_seconds)
    token = provider.signing_job("user", 7, now).run(FILES)
    end = math.floor(now + ttl_seconds)
    if end:
        # Before, after, and before again: a clock may be set.
        for moment in (end - 1e-3, end, end + 1e-3, end - 1e-3):
            assert (provider.verify(token, 0.0, moment) is not None) == (moment < end)


@pytest.mark.parametrize("method", METHODS)
def test_only_the_configured_method_and_key_count(method: str) -> None:
    provider = tokens(method)
    for other in METHODS:
        known = provider.verify(issued(tokens(other)), 0.0, NOW)
        assert (known is not None) == (method == other)
    if method not in HMAC:
        stranger = JwtTokens(read_keys(method, private_pem(private_key(method, 1)), b""), TTL)
        assert provider.verify(issued(stranger), 0.0, NOW) is None
        # The public key is known to everybody; it must not do as a secret.
        for secret in (public_pem(private_key(method)), public_pem(private_key(method)).strip()):
            forged = issued(JwtTokens(read_keys("HS256", secret, b""), TTL))
            assert provider.verify(forged, 0.0, NOW) is None
    claims = issued(provider).split(".")[1]
    for algorithm in ("none", "None", "NONE", "", None, 5, [method], {method: 1}):
        header = encoded(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
        assert provider.verify(f"{header}.{claims}.", 0.0, NOW) is None


@pytest.mark.parametrize("method", [*RSA, *ECDSA, "EdDSA"])
def test_a_public_key_checks_and_does_not_sign(method: str) -> None:
    provider = JwtTokens(read_keys(method, b"", public_pem(private_key(method))), TTL)
    assert provider.verify(issued(tokens(method)), 0.0, NOW) == ("user", 7)
    with pytest.raises(StatusError) as refused:
        issued(provider)
    assert refused.value.status == errors.TOKEN_VERIFY_ONLY


@pytest.mark.parametrize("method", ECDSA)
@pytest.mark.parametrize("curve", ECDSA)
def test_a_key_of_another_curve_cannot_be_used(method: str, curve: str) -> None:
    if method == curve:
        return
    provider = JwtTokens(read_keys(method, private_pem(private_key(curve)), b""), TTL)
    with pytest.raises(StatusError) as refused:
        issued(provider)
    assert refused.value.status == Status(Code.UNKNOWN, "key is invalid")
    for other in METHODS:
        assert provider.verify(issued(tokens(other)), 0.0, NOW) is None


def test_weak_keys_are_told_of_once() -> None:
    assert tokens("HS256").weakness is None and tokens("PS256").weakness is None
    assert tokens("ES256").weakness is None and tokens("EdDSA").weakness is None
    weak = JwtTokens(read_keys("HS256", b"short", b""), TTL)
    assert weak.weakness is not None and "5 bytes" in weak.weakness
    # A warning would be an error here.
    assert weak.verify(issued(weak), 0.0, NOW) == ("user", 7)


def test_a_secret_may_look_like_another_key() -> None:
    for secret in (public_pem(private_key("RS256")), b'{"kty":"oct","k":"a"}', b"ssh-rsa AAAA"):
        provider = JwtTokens(read_keys("HS512", secret, b""), TTL)
        assert provider.verify(issued(provider), 0.0, NOW) == ("user", 7)


def test_a_signature_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, token = tokens("ES256"), issued(tokens("ES256"))
    checked: list[str] = []
    real = PyJWS.decode

    def counting(self: PyJWS, jwt: str, *rest: Any) -> Any:
        checked.append(jwt)
        return real(self, jwt, *rest)

    monkeypatch.setattr(PyJWS, "decode", counting)
    for _ in range(3):
        assert provider.verify(token, 0.0, NOW) is not None
        assert provider.verify(token[:-3], 0.0, NOW) is None
    assert checked == [token, token[:-3], token[:-3], token[:-3]]
    # An expired one is forgotten.
    assert provider.verify(token, 0.0, NOW + TTL) is None
    assert provider.verify(token, 0.0, NOW + TTL) is None
    assert checked.count(token) == 2


def test_few_tokens_are_remembered_and_no_long_ones() -> None:
    provider = tokens("HS256")
    for revision in range(VERIFIED_MAX + 5):
        assert provider.verify(issued(provider, "u", revision), 0.0, NOW) == ("u", revision)
    assert len(provider._verified) == VERIFIED_MAX
    assert issued(provider, "u", 4) not in provider._verified
    assert issued(provider, "u", 5) in provider._verified
    long = issued(provider, "u" * VERIFIED_CHARACTERS_MAX)
    assert len(long) < TOKEN_CHARACTERS_MAX
    assert provider.verify(long, 0.0, NOW) is not None
    assert long not in provider._verified


def test_a_token_is_only_so_long() -> None:
    provider = tokens("HS256")
    outcomes = set()
    # Characters of a name take 4/3 of their number.
    longest = (TOKEN_CHARACTERS_MAX - len(issued(provider, ""))) * 3 // 4
    for count in range(longest - 4, longest + 4):
        token = issued(provider, "u" * count)
        is_known = provider.verify(token, 0.0, NOW) is not None
        assert is_known == (len(token) <= TOKEN_CHARACTERS_MAX)
        outcomes.add(is_known)
    assert outcomes == {True, False}


BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@pytest.mark.parametrize("method", FAMILIES)
@few
@given(data=st.data())
def test_a_token_that_was_changed_is_refused(method: str, data: st.DataObject) -> None:
    token = issued(tokens(method))
    place = data.draw(st.integers(0, len(token)))
    end = data.draw(st.integers(place, min(place + 3, len(token))))
    piece = data.draw(st.text(BASE64 + ".=\n\0é\ud800", max_size=3))
    changed = token[:place] + piece + token[end:]
    if changed != token:
        assert tokens(method).verify(changed, 0.0, NOW) is None


BOMB = "[" * (TOKEN_CHARACTERS_MAX * 7 // 10)
segments = st.one_of(
    st.text(max_size=40),
    st.text(BASE64, max_size=40),
    st.binary(max_size=40).map(encoded),
    st.sampled_from(
        ['{"alg":"HS256"}', '{"alg":"HS256","b64":false,"crit":["b64"]}', BOMB, "[]"]
    ).map(lambda text: encoded(text.encode())),
    st.sampled_from(
        [b'{"alg":"HS256","kid":1}', b'{"alg":"HS256","crit":1}', b"\xff\xfe{\0}\0"]
    ).map(encoded),
    st.just("A" * 1_000_000),
)


@pytest.mark.long
@given(st.lists(segments, max_size=5).map(".".join) | st.text())
def test_garbage_is_refused(token: str) -> None:
    assert tokens("HS256").verify(token, 0.0, NOW) is None
    assert tokens("ES256").verify(token, 0.0, NOW) is None


claims = st.dictionaries(
    st.sampled_from(["username", "revision", "exp", "nbf", "x"]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=[]), max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=4,
    ),
)


@given(st.one_of(claims.map(json.dumps), st.text().map(json.dumps), st.binary(max_size=30)))
def test_signed_garbage_is_refused_too(payload: str | bytes) -> None:
    found = tokens("HS256").verify(signed(payload), 0.0, NOW)
    if found is not None:
        said = json.loads(payload)
        assert isinstance(said["username"], str) and isinstance(said["revision"], int | float)
        user, revision = found
        assert user.encode().decode() == user
        assert revision is not None and 0 <= revision < 2**64


def test_what_go_has_no_form_for() -> None:
    provider = tokens("HS256")
    token = signed('{"username":"a\\ud800\\udc00\\udc00","revision":1}')
    assert provider.verify(token, 0.0, NOW) == ("a\U00010000\ufffd", 1)
    for date, moment, is_known in (("exp", 99.9, True), ("exp", 100, False), ("nbf", 100, True)):
        token = signed(f'{{"username":"u","revision":1,"{date}":100.9}}')
        assert (provider.verify(token, 0.0, moment) is not None) == is_known


@pytest.mark.parametrize("depth", [10, TOKEN_CHARACTERS_MAX // 3])
def test_claims_may_be_nested_only_so_deep(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    found = tokens("HS256").verify(
        signed(f'{{"username":"u","revision":1,"x":{nested}}}'), 0.0, NOW
    )
    # How deep JSON may be is for the version of Python; nothing else may be raised.
    assert found is not None or depth > 1000


# What a real etcd does.


@pytest.mark.parametrize("method", FAMILIES)
def test_etcd_and_we_take_each_others_tokens(method: str, tmp_path: Path) -> None:
    if method == "EdDSA" and not is_target():
        pytest.skip("etcd 3.5 does not have it")
    private, public = key_files(method)
    (tmp_path / "private").write_bytes(private)
    (tmp_path / "public").write_bytes(public)
    flag = f"--auth-token=jwt,sign-method={method},priv-key={tmp_path / 'private'},ttl=10m"
    if public:
        flag += f",pub-key={tmp_path / 'public'}"
    provider = tokens(method, 600.0)
    with guarded_etcd(tmp_path / "data", flag) as etcd:
        began = time.time()
        refused, theirs = etcd.log_in("root", "root")
        assert refused == OK
        found = provider.verify(theirs, 0.0, time.time())
        assert found is not None
        user, revision = found
        assert user == "root" and revision is not None
        for moment, is_good in ((began + 599, True), (time.time() + 601, False)):
            assert (provider.verify(theirs, 0.0, moment) is not None) == is_good
        ours = provider.signing_job("root", revision, time.time()).run(FILES)
        assert ours.split(".")[0] == theirs.split(".")[0]
        assert etcd.call("kv/put", ours, key="YQ==")[0] == OK
        stale = provider.signing_job("root", revision, time.time() - 601).run(FILES)
        assert etcd.call("kv/put", stale, key="YQ==")[0] == INVALID_TOKEN
        older = provider.signing_job("root", revision - 1, time.time()).run(FILES)
        assert etcd.call("kv/put", older, key="YQ==")[0] == OLD


def test_etcd_cannot_sign_with_such_keys_either(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(private_pem(private_key("ES384")))
    flag = f"--auth-token=jwt,sign-method=ES256,priv-key={tmp_path / 'key'}"
    with guarded_etcd(tmp_path / "curve", flag) as etcd:
        refused, _ = etcd.log_in("root", "root")
        assert refused == "key is invalid"
    (tmp_path / "key").write_bytes(public_pem(private_key("ES256")))
    flag = f"--auth-token=jwt,sign-method=ES256,pub-key={tmp_path / 'key'}"
    with guarded_etcd(tmp_path / "public", flag) as etcd:
        refused, _ = etcd.log_in("root", "root")
        assert refused == errors.TOKEN_VERIFY_ONLY.text


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "key").write_bytes(SECRET)
    flag = f"--auth-token=jwt,sign-method=HS256,priv-key={directory / 'key'}"
    if not is_target():
        pytest.skip("etcd 3.5 has an older library, which some of these tokens stop")
    with guarded_etcd(directory / "data", flag) as guarded:
        yield guarded


def assert_agreement(etcd: Guarded, token: str) -> None:
    """Check that a token is known here as in a real etcd, and the revision that it is read as."""
    found = tokens("HS256").verify(token, 0.0, time.time())
    refused, answer = etcd.call("auth/status", token)
    assert (found is not None) == (refused == OK), (token, found)
    if found is None or found[0] != "root":
        return
    current = int(answer["authRevision"])
    revision = found[1]
    expected = EMPTY if not revision else OLD if revision < current else OK
    assert etcd.call("kv/put", token, key="YQ==")[0] == expected, (token, found)
    expected = expected or (OK if revision == current else OLD)
    assert etcd.call("kv/range", token, key="YQ==")[0] == expected, (token, found)


FAR = 10**6
dates = st.one_of(
    st.sampled_from(
        ["0", "-0.0", "0.5", "-0.5", "1e300", "-1e300", "1e400", '"1"', "true", "null"]
    ),
    st.sampled_from(["9223371974719178752", "9223371974719179776", "9.3e18", "[]", "NaN", "01"]),
    st.integers(-FAR, -100).map(lambda offset: str(int(time.time()) + offset)),
    st.integers(100, FAR).map(lambda offset: str(time.time() + offset)),
)
numbers = st.one_of(
    st.sampled_from(["0", "-0.5", "-1", "-5.7", "4", "4.9", "5", "3", "4e0", "0.4e1", "1e300"]),
    st.sampled_from(["-1e300", "-9.3e18", "9.3e18", "1.8446744073709552e19", "1.8e19", "3e19"]),
    st.sampled_from(['"4"', "true", "null", "[4]", "1e400", "Infinity", "-", "+4", "4."]),
)
users = st.sampled_from(
    ['"root"', '"root"', '"user"', '""', '"\\ud800"', "5", "null", '"r\\u006fot"']
)
rest = st.sampled_from(
    ["", ',"aud":5,"iss":[],"sub":1', ',"iat":99999999999', ',"iat":"x"', ',"x":NaN', ',"x":1e999']
) | st.sampled_from(
    [',"revision":4', ',"Username":"user"', ',"x":"\t"', ",", ',"x":"\\u12"', "} ", "}x"]
)


@given(users, numbers, st.none() | dates, st.none() | dates, rest)
def test_claims_as_etcd_reads_them(
    etcd: Guarded, user: str, revision: str, exp: str | None, nbf: str | None, more: str
) -> None:
    payload = f'{{"username":{user},"revision":{revision}'
    payload += "" if exp is None else f',"exp":{exp}'
    payload += "" if nbf is None else f',"nbf":{nbf}'
    assert_agreement(etcd, signed(payload + more + ("" if "}" in more else "}")))


GOOD = '{"username":"root","revision":4}'


@pytest.mark.parametrize(
    "token",
    [
        signed(GOOD),
        signed(GOOD) + "=",
        signed(GOOD) + ".",
        signed(GOOD)[:-1],
        signed(GOOD).replace(".", "=.", 1),
        signed(GOOD, {"typ": "other", "kid": "x"}),
        signed(GOOD, {"alg": "HS384"}),
        signed(GOOD.encode("utf-16")),
        signed(b"\xef\xbb\xbf" + GOOD.encode()),
        signed("null"),
        signed("[]"),
        signed(""),
        PyJWS().encode(GOOD.encode(), "", "none"),
        ".." + signed(GOOD),
        "..",
        "x",
    ],
)
def test_texts_as_etcd_reads_them(etcd: Guarded, token: str) -> None:
    assert_agreement(etcd, token)


@pytest.mark.parametrize(
    "token",
    [
        signed(GOOD, {"crit": ["x"], "x": 1}),
        signed(b'{"username":"root","revision":4,"x":"\xff"}'),
        signed(GOOD)[:-1] + BASE64[BASE64.index(signed(GOOD)[-1]) + 1],
    ],
    ids=["critical", "not UTF-8", "unused bits"],
)
def test_tokens_that_only_etcd_takes(etcd: Guarded, token: str) -> None:
    assert etcd.call("auth/status", token)[0] == OK
    assert tokens("HS256").verify(token, 0.0, time.time()) is None
