"""The signing methods and keys of signed tokens.

The member reads a key once, at the start, from the bytes of files in the formats that etcd accepts.
An unusable key refuses the start, with etcd's text where etcd has its own.
"""

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from kvorum.state.auth.options import TokenOptionsError, not_loaded

INVALID_METHOD: Final = "auth: invalid auth signature method"
MISSING_KEY: Final = "auth: missing key data"
KEY_MISMATCH: Final = "auth: public and private keys don't match"
NOT_PEM: Final = "invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key"
UNSIGNED: Final = "unsupported signing method: *jwt.signingMethodNone"

HMAC: Final = ("HS256", "HS384", "HS512")
RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ECDSA: Final = ("ES256", "ES384", "ES512")
EDDSA: Final = ("EdDSA",)
METHODS: Final = (*RSA, *ECDSA, *HMAC, *EDDSA)

# The curves of Go's library, which accepts no key on another one.
_CURVES: Final = (ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(slots=True, frozen=True, repr=False)
class Keys:
    """The keys that sign and verify tokens; `signing` is None for a member that only verifies."""

    method: str
    signing: PrivateKey | bytes | None
    checking: PublicKey | bytes


def read_keys(method: str, private: bytes, public: bytes) -> Keys:
    """Return the keys for a signing method from the content of their files; empty: not given.

    Raises TokenOptionsError.
    """
    if method in HMAC:
        if not private:
            raise TokenOptionsError(MISSING_KEY)
        return Keys(method, private, private)
    if method == "none":
        raise TokenOptionsError(UNSIGNED)
    if method not in METHODS:
        raise not_loaded(INVALID_METHOD)
    signing = _private_key(method, private) if private else None
    checking = _public_key(method, public) if public else None
    if signing is None:
        if checking is None:
            raise TokenOptionsError(MISSING_KEY)
        return Keys(method, None, checking)
    own = signing.public_key()
    if checking is not None and checking != own:
        raise TokenOptionsError(KEY_MISMATCH)
    return Keys(method, signing, own)


def _private_key(method: str, data: bytes) -> PrivateKey:
    _check_pem(data)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # A TypeError means that the key is encrypted.
        key = None
    if method in RSA and isinstance(key, rsa.RSAPrivateKey):
        return key
    if method in ECDSA and isinstance(key, ec.EllipticCurvePrivateKey):
        if isinstance(key.curve, _CURVES):
            return key
    elif method in EDDSA and isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    raise TokenOptionsError(f"key is not a valid {_family(method)} private key")


def _public_key(method: str, data: bytes) -> PublicKey:
    _check_pem(data)
    key: PublicKeyTypes | None = None
    try:
        if b"-----BEGIN CERTIFICATE-----" in data and method not in EDDSA:
            key = x509.load_pem_x509_certificate(data).public_key()
        else:
            key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        pass
    if method in RSA and isinstance(key, rsa.RSAPublicKey):
        return key
    if method in ECDSA and isinstance(key, ec.EllipticCurvePublicKey):
        if isinstance(key.curve, _CURVES):
            return key
    elif method in EDDSA and isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise TokenOptionsError(f"key is not a valid {_family(method)} public key")


def _check_pem(data: bytes) -> None:
    if b"-----BEGIN " not in data:
        raise TokenOptionsError(NOT_PEM)


def _family(method: str) -> str:
    if method in RSA:
        return "RSA"
    return "ECDSA" if method in ECDSA else "Ed25519"
