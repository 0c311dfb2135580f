"""Check the TLS files named by flags before the server starts.

Texts begin as Go's do, and tell the operator what to do. An expired or not yet valid certificate is
usable: the other side refuses it, and the server loads a replacement without a restart.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from kvorum.client.grpc.namesakes import allow_odd_names
from kvorum.network.tls.security import Security

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"


class TlsFileError(ValueError):
    """An unusable file; the text names its flag, the reason, and the remedy."""


class _File(NamedTuple):
    flag: str
    path: str

    def __str__(self) -> str:
        return f"--{self.flag}={self.path}"


def check_files(security: Security, prefix: str, now: datetime) -> list[str]:
    """Raise TlsFileError for an unusable file; return warnings about the others.

    `prefix` is `peer-` for peer flags.
    """
    allow_odd_names()
    doubts: list[str] = []
    if not security.uses_own:
        doubts += _check_pair(
            _File(f"{prefix}cert-file", security.cert_file),
            _File(f"{prefix}key-file", security.key_file),
            now,
        )
        if security.trusted_ca_file:
            file = _File(f"{prefix}trusted-ca-file", security.trusted_ca_file)
            doubts += _check_times(file, _certificates(file), now)
        if security.crl_file:
            _check_revocation_list(_File(f"{prefix or 'client-'}crl-file", security.crl_file))
    doubts += _check_pair(
        _File(f"{prefix}client-cert-file", security.client_cert_file),
        _File(f"{prefix}client-key-file", security.client_key_file),
        now,
    )
    return doubts


def _check_pair(cert: _File, key: _File, now: datetime) -> Iterator[str]:
    if not cert.path and not key.path:
        return
    for given, missing in ((cert, key), (key, cert)):
        if not missing.path:
            raise TlsFileError(
                f"{given}: KeyFile and CertFile must both be present; give --{missing.flag}, too"
            )
    certificates = _certificates(cert)
    own, wanted = _public_key(key), _public_bytes(certificates[0].public_key())
    if own != wanted:
        if any(own == _public_bytes(each.public_key()) for each in certificates[1:]):
            raise TlsFileError(
                f"{cert}: tls: private key does not match public key; {key} is the key of a later "
                "certificate in the file: put the server's own first, and its authorities after it"
            )
        raise TlsFileError(
            f"{cert}: tls: private key does not match public key; {key} belongs to another "
            "certificate: give the two that were made together"
        )
    yield from _check_times(cert, certificates[:1], now)


def _read(file: _File) -> bytes:
    try:
        return Path(file.path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid argument"
        advice = "give the path of a PEM file"
        if isinstance(error, PermissionError):
            advice = f"let user {os.geteuid()}, as which this process runs, read it"
        raise TlsFileError(
            f"{file}: open {file.path}: {(reason or str(error)).lower()}; {advice}"
        ) from None


def _certificates(file: _File) -> list[x509.Certificate]:
    data = _read(file)
    if _CERTIFICATE not in data:
        found = "it is empty" if not data.strip() else "it holds none"
        if _KEY in data:
            found = "it holds a private key: certificate and key may have been switched"
        raise TlsFileError(
            f"{file}: tls: failed to find any PEM data in certificate input; {found}. Expected is "
            f"a certificate that begins with {_CERTIFICATE.decode()}"
        )
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise TlsFileError(
            f"{file}: x509: malformed certificate; a certificate in it cannot be read ({error}). "
            "Copy or issue it anew"
        ) from None


def _public_key(file: _File) -> bytes:
    """Return the public half of the key in a file."""
    data = _read(file)
    if _KEY not in data:
        found = "it is empty" if not data.strip() else "it holds none"
        if _CERTIFICATE in data:
            found = "it holds a certificate: certificate and key may have been switched"
        raise TlsFileError(
            f"{file}: tls: failed to find any PEM data in key input; {found}. Expected is a "
            "private key in PEM"
        )
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise TlsFileError(
            f"{file}: the key is encrypted, and there is nobody to ask for its password. Decrypt "
            f"it: openssl pkey -in {file.path} -out <file that only this server may read>"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsFileError(
            f"{file}: tls: failed to parse private key; it cannot be read ({error}). Copy or make "
            "it anew"
        ) from None
    return _public_bytes(key.public_key())


def _public_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _check_times(
    file: _File, certificates: Iterable[x509.Certificate], now: datetime
) -> Iterator[str]:
    for each in certificates:
        name = each.subject.rfc4514_string()
        if now > each.not_valid_after_utc:
            yield (
                f"{file}: the certificate of {name!r} expired at {each.not_valid_after_utc}; those "
                "who check it refuse it. Replace the file: a new one is used without a restart"
            )
        elif now < each.not_valid_before_utc:
            yield (
                f"{file}: the certificate of {name!r} is valid from {each.not_valid_before_utc} "
                "on, which is later than this machine's clock says. Check the clock"
            )


def _check_revocation_list(file: _File) -> None:
    data = _read(file)
    is_pem = data.lstrip().startswith(b"-----BEGIN")
    try:
        _ = x509.load_pem_x509_crl(data) if is_pem else x509.load_der_x509_crl(data)
    except ValueError:
        raise TlsFileError(f"{file}: no revocation list; expected is one in PEM or DER") from None
