"""Keys for every signing method, in the formats of key files."""

import datetime
import functools

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from kvorum.state.auth.jwt_keys import ECDSA, EDDSA, HMAC, RSA, Keys, PrivateKey, read_keys
from kvorum.state.auth.jwt_tokens import JwtTokens

SECRET = b"The bytes of a file, the end of its last line included, as etcd takes them.\n"
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
TRADITIONAL = PrivateFormat.TraditionalOpenSSL
PKCS8 = PrivateFormat.PKCS8


@functools.cache
def private_key(method: str, number: int = 0) -> PrivateKey:
    """Return a key for a method; each number has its own."""
    if method in RSA:
        return _rsa_key(number)
    return ec.generate_private_key(CURVES[method]) if method in ECDSA else _ed_key(number)


@functools.cache
def _rsa_key(_number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2048)


@functools.cache
def _ed_key(_number: int) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def private_pem(key: PrivateKey, form: PrivateFormat = PKCS8) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def public_pem(key: PrivateKey, form: PublicFormat = PublicFormat.SubjectPublicKeyInfo) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, form)


def certificate_pem(key: PrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def key_files(method: str) -> tuple[bytes, bytes]:
    """Return the content of the files of a private and a public key; without one for HMAC."""
    if method in HMAC:
        return SECRET, b""
    assert method in RSA + ECDSA + EDDSA
    key = private_key(method)
    return private_pem(key), public_pem(key)


@functools.cache
def keys_of(method: str) -> Keys:
    """Return the keys of a method; reading them takes its time."""
    return read_keys(method, *key_files(method))


def tokens(method: str, ttl_seconds: float = 300.0) -> JwtTokens:
    """Return signed tokens of a method."""
    return JwtTokens(keys_of(method), ttl_seconds)
