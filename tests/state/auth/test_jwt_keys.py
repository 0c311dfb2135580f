"""Key files in all formats that are taken, and what is said of the others."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PublicFormat,
)

from kvorum.state.auth.jwt_keys import (
    ECDSA,
    EDDSA,
    HMAC,
    KEY_MISMATCH,
    METHODS,
    MISSING_KEY,
    NOT_PEM,
    RSA,
    UNSIGNED,
    Keys,
    read_keys,
)
from kvorum.state.auth.options import INVALID_OPTIONS, TokenOptionsError
from tests.state.auth.keys import (
    PKCS8,
    SECRET,
    TRADITIONAL,
    certificate_pem,
    key_files,
    private_key,
    private_pem,
    public_pem,
)

ASYMMETRIC = RSA + ECDSA + EDDSA


def refusal(method: str, private: bytes, public: bytes) -> str:
    with pytest.raises(TokenOptionsError) as refused:
        read_keys(method, private, public)
    return str(refused.value)


@pytest.mark.parametrize("method", HMAC)
def test_a_secret_is_the_whole_file(method: str) -> None:
    for secret in (b"\0", SECRET, public_pem(private_key("EdDSA"))):
        keys = read_keys(method, secret, b"not looked at")
        assert keys.signing == keys.checking == secret
    assert refusal(method, b"", SECRET) == MISSING_KEY


@pytest.mark.parametrize("method", ASYMMETRIC)
def test_keys_of_all_formats(method: str) -> None:
    key = private_key(method)
    private = [private_pem(key, PKCS8)]
    public = [public_pem(key)]
    if method in RSA + ECDSA:
        private.append(private_pem(key, TRADITIONAL))
        public.append(certificate_pem(key))
    if method in RSA:
        public.append(public_pem(key, PublicFormat.PKCS1))
    for one in private:
        for other in [*public, b""]:
            keys = read_keys(method, one, other)
            assert keys.signing is not None and keys.checking == key.public_key()
    for other in public:
        keys = read_keys(method, b"", other)
        assert keys.signing is None and keys.checking == key.public_key()


@pytest.mark.parametrize("method", ASYMMETRIC)
def test_what_is_no_key(method: str) -> None:
    private, public = key_files(method)
    assert refusal(method, b"", b"") == MISSING_KEY
    assert refusal(method, private, public_pem(private_key(method, 1))) == KEY_MISMATCH
    assert refusal(method, b"garbage", b"") == refusal(method, b"", b"garbage") == NOT_PEM
    family = "RSA" if method in RSA else "ECDSA" if method in ECDSA else "Ed25519"
    other = private_key("EdDSA" if method in RSA else "RS256")
    encrypted = private_key(method).private_bytes(
        Encoding.PEM, PKCS8, BestAvailableEncryption(b"word")
    )
    cut = private[: len(private) // 2]
    for one in (private_pem(other), public, encrypted, cut):
        assert refusal(method, one, b"") == f"key is not a valid {family} private key"
    for one in (public_pem(other), private, certificate_pem(other), public[: len(public) // 2]):
        assert refusal(method, b"", one) == f"key is not a valid {family} public key"


def test_certificates_of_ed25519_are_no_keys() -> None:
    pem = certificate_pem(private_key("EdDSA"))
    assert refusal("EdDSA", b"", pem) == "key is not a valid Ed25519 public key"


def test_curves_that_go_does_not_have() -> None:
    strange = private_pem(ec.generate_private_key(ec.SECP256K1()))
    assert refusal("ES256", strange, b"") == "key is not a valid ECDSA private key"
    other = ed448.Ed448PrivateKey.generate().private_bytes(Encoding.PEM, PKCS8, NoEncryption())
    assert refusal("EdDSA", other, b"") == "key is not a valid Ed25519 private key"


def test_methods_that_there_are_not() -> None:
    assert len(METHODS) == 13
    assert refusal("none", SECRET, b"") == UNSIGNED
    for method in ("", "hs256", "ES256K", "HS1", "RS256 "):
        with pytest.raises(TokenOptionsError, match=INVALID_OPTIONS) as refused:
            read_keys(method, SECRET, SECRET)
        (notice,) = refused.value.notices
        assert notice.fields == {"error": "auth: invalid auth signature method"}


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Keys("HS256", b"secret", b"secret"))
