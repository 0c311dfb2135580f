"""TLS contexts of the standard library: versions, suites, PEM files and their change stamps."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from kvorum.client.grpc import trust
from kvorum.client.grpc.trust import verify_like_go

SELF_SIGNED = 18
"""OpenSSL's number for a certificate that looks self-signed."""

VERSIONS = {
    "TLS1.2": ssl.TLSVersion.TLSv1_2,
    "TLS1.3": ssl.TLSVersion.TLSv1_3,
    "": ssl.TLSVersion.MAXIMUM_SUPPORTED,
}

_ALERTS = {
    "bad record mac": "bad record MAC",
    "certificate expired": "expired certificate",
    "certificate revoked": "revoked certificate",
    "certificate unknown": "unknown certificate",
    "decode error": "error decoding message",
    "decrypt error": "error decrypting message",
    "insufficient security": "insufficient security level",
    "protocol version": "protocol version not supported",
    "unknown ca": "unknown certificate authority",
    "unknown psk identity": "unknown PSK identity",
    "user cancelled": "user canceled",
}
"""TLS alerts for which Go, and so etcd, has other texts than OpenSSL."""
_UNKNOWN_AUTHORITY = "certificate signed by unknown authority"
_JUDGEMENTS = {
    **dict.fromkeys((2, 7, SELF_SIGNED, 19, 20, 21), _UNKNOWN_AUTHORITY),
    **dict.fromkeys((9, 10), "certificate has expired or is not yet valid"),
    26: "certificate specifies an incompatible key usage",
}
"""Go's texts for OpenSSL's certificate verification errors, by error number."""
_FAILURES = {"peer did not return a certificate": "client didn't provide a certificate"}

Stamp = tuple[int, int, int] | None


def stamp(path: str) -> Stamp:
    """Return a stamp that changes when a file is replaced or written; None if it is missing."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def new_context(
    protocol: int, version_min: str, version_max: str, cipher_suites: Sequence[str]
) -> ssl.SSLContext:
    """Return a context for these versions and TLS 1.2 suites, named as in RFC 5289."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = VERSIONS[version_min or "TLS1.2"]
    context.maximum_version = VERSIONS[version_max]
    if cipher_suites:
        try:
            context.set_ciphers(":".join(map(_library_name, cipher_suites)))
        except ssl.SSLError:
            raise ValueError("none of the cipher suites is known") from None
    return context


def load_identity(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Load the certificate and key to present; raise OSError or ValueError with the file's name."""
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(f"{cert_file} with {key_file}: {reason(error)}") from None
    except OSError as error:
        missing = cert_file if not Path(cert_file).exists() else key_file
        raise OSError(error.errno, f"{missing}: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Load the authorities to trust; raise OSError or ValueError with the file's name."""
    verify_like_go(context)
    try:
        trust.load_authorities(context, path)
    except ssl.SSLError as error:
        raise ValueError(f"{path}: {reason(error)}") from None
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None


def reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason for an error as readable text."""
    return (error.reason or str(error)).replace("_", " ").lower()


def failure(error: ssl.SSLError) -> str:
    """Return why a handshake failed, as etcd words it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = _JUDGEMENTS.get(error.verify_code) or error.verify_message.rstrip(".")
        return f"tls: failed to verify certificate: x509: {text}"
    text = reason(error)
    _, is_alert, alert = text.partition(" alert ")
    if is_alert:
        return f"remote error: tls: {_ALERTS.get(alert, alert)}"
    return f"tls: {_FAILURES.get(text, text)}"


def _no_password() -> bytes:
    raise ValueError("an encrypted key cannot be used; there is nobody to ask for its password")


def _library_name(suite: str) -> str:
    """Return OpenSSL's name of a suite, such as ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}_{cipher}".replace("_", "-")
