"""Certificates that have the very name of the authority that issued them.

OpenSSL takes such a certificate for a self-signed one if both keys are of one kind and no key
identifiers tell them apart, and refuses it; etcd and the native edge do not. Here it is found while
the handshake goes on, before it is judged: if an authority has signed it, it is itself added to
what is trusted. OpenSSL then checks the rest, such as its dates, purposes and names.
"""

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

_HANDSHAKE = 22
_CERTIFICATE = 11


def believe_namesakes(
    context: ssl.SSLContext, authorities_file: str, others: Sequence[ssl.SSLContext] = ()
) -> None:
    """Make a context accept such certificates of these authorities.

    Those that are found are known to the other contexts, too, from then on. Every record of the
    context's connections costs a call.
    """
    # Imported late: it takes a while, and a member without TLS starts without it.
    from cryptography import x509

    try:
        authorities = x509.load_pem_x509_certificates(Path(authorities_file).read_bytes())
    except ValueError:
        # OpenSSL reads more than this library does.
        return

    def look(
        _connection: object, direction: str, version: int, content: int, kind: int, data: bytes
    ) -> None:
        if (direction, content, kind) == ("read", _HANDSHAKE, _CERTIFICATE):
            found = _first(data, has_request=version == ssl.TLSVersion.TLSv1_3)
            if is_namesake(found, authorities):
                for one in (context, *others):
                    one.load_verify_locations(cadata=found)

    # The library's hook for debuggers, and its only one before a certificate is judged.
    context._msg_callback = look  # type: ignore[attr-defined]


def is_namesake(certificate: bytes, authorities: Sequence["x509.Certificate"]) -> bool:
    """Return whether one of the authorities issued this certificate, given in DER, in its own name.

    Not if it is an authority itself: what is trusted must not be able to issue others.
    """
    from cryptography import x509

    try:
        parsed = x509.load_der_x509_certificate(certificate)
        if parsed.subject != parsed.issuer or _is_authority(parsed) is not False:
            return False
        now = datetime.datetime.now(datetime.UTC)
        return any(
            authority.subject == parsed.issuer
            and authority.not_valid_before_utc <= now <= authority.not_valid_after_utc
            and _is_authority(authority)
            and _has_signed(authority, parsed)
            for authority in authorities
        )
    except Exception:
        # The library does not promise which exceptions; OpenSSL judges what cannot be read.
        return False


def _is_authority(certificate: "x509.Certificate") -> bool | None:
    """Return whether a certificate may issue others; None if it does not say, or with limits."""
    from cryptography import x509

    limits = None
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.BasicConstraints):
            limits = extension.value.ca
        if isinstance(extension.value, x509.NameConstraints):
            return None
    return limits


def _has_signed(authority: "x509.Certificate", certificate: "x509.Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature:
        return False
    return True


def _first(message: bytes, *, has_request: bool) -> bytes:
    """Return the first certificate of a TLS message; empty if there is none.

    The message begins with its kind and length; in TLS 1.3 the context of the request follows.
    """
    place = 4
    if has_request:
        place += 1 + int.from_bytes(message[place : place + 1], "big")
    place += 3
    length = int.from_bytes(message[place : place + 3], "big")
    return message[place + 3 : place + 3 + length]
