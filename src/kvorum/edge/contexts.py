"""TLS contexts of the standard library: versions, suites, PEM files, and when those change."""

import ssl
from collections.abc import Sequence
from pathlib import Path

VERSIONS = {
    "TLS1.2": ssl.TLSVersion.TLSv1_2,
    "TLS1.3": ssl.TLSVersion.TLSv1_3,
    "": ssl.TLSVersion.MAXIMUM_SUPPORTED,
}

_ALERTS = {"unknown ca": "unknown certificate authority"}

Stamp = tuple[int, int, int] | None


def stamp(path: str) -> Stamp:
    """Return a stamp that changes when a file is replaced or written; None if it is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def new_context(
    protocol: int, version_min: str, version_max: str, cipher_suites: Sequence[str]
) -> ssl.SSLContext:
    """Return a context for these versions, and suites of TLS 1.2 by the names of RFC 5289."""
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
    """Load the certificate and key to show; raise OSError or ValueError with the file's name."""
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(f"{cert_file} with {key_file}: {reason(error)}") from None
    except OSError as error:
        missing = cert_file if not Path(cert_file).exists() else key_file
        raise OSError(error.errno, f"{missing}: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Load the authorities to believe; raise OSError or ValueError with the file's name."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"{path}: {reason(error)}") from None
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None


def reason(error: ssl.SSLError) -> str:
    """Return in words why a handshake or a file failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    text = (error.reason or str(error)).replace("_", " ").lower()
    _, is_alert, alert = text.partition(" alert ")
    # What the other side reported, in Go's words.
    return f"remote error: {_ALERTS.get(alert, alert)}" if is_alert else text


def _no_password() -> bytes:
    raise ValueError("an encrypted key cannot be used; there is nobody to ask for its password")


def _library_name(suite: str) -> str:
    """Return OpenSSL's name of a suite, such as ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}_{cipher}".replace("_", "-")
