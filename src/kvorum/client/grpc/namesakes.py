"""Support for certificates that have the same name as the authority that issued them.

OpenSSL takes such a certificate for a self-signed one and refuses it, if both keys are of one kind
and no key identifiers distinguish them; etcd and the native edge accept it. This module inspects
certificates during the handshake, before OpenSSL judges them: if a trusted authority has signed
such a certificate, the module adds the certificate itself to the trusted ones. OpenSSL then checks
the rest, such as its dates, purposes and names.
"""

import datetime
import ssl
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

_HANDSHAKE = 22
_CERTIFICATE = 11

_SEQUENCE = 0x30
_VERSION = 0xA0
_CERTIFICATE_TYPE = "2.16.840.1.113730.1.1"
"""Netscape's extension, by which OpenSSL may take a certificate for an authority."""


def trust_namesakes(context: ssl.SSLContext, others: Sequence[ssl.SSLContext] = ()) -> None:
    """Make a context accept such certificates of its authorities.

    The other contexts then trust the certificates found, too. Until `forget_namesakes`, every TLS
    record of the context's connections costs a call.
    """

    def check_certificates(
        _connection: object, direction: str, version: int, content: int, kind: int, data: bytes
    ) -> None:
        if (direction, content, kind) == ("read", _HANDSHAKE, _CERTIFICATE):
            found = _first(data, has_request=version == ssl.TLSVersion.TLSv1_3)
            if has_issuers_name(found) and is_namesake(found, context.get_ca_certs(True)):
                for one in (context, *others):
                    one.load_verify_locations(cadata=found)

    # The `ssl` module's hook for debuggers, the only one before OpenSSL judges a certificate.
    context._msg_callback = check_certificates  # type: ignore[attr-defined]


def forget_namesakes(context: ssl.SSLContext) -> None:
    """Stop inspecting certificates, for a context whose only connection has done its handshake."""
    context._msg_callback = None  # type: ignore[attr-defined]


def allow_odd_names() -> None:
    """Silence the library's warnings about names, such as a country of three letters.

    The user of a program cannot change the name of an authority.
    """
    warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)


def has_issuers_name(certificate: bytes) -> bool:
    """Return whether a certificate in DER has the same name as its issuer.

    Almost no certificate has, and then the library that parses certificates need not be loaded.
    """
    try:
        _, place, _ = _value(certificate, 0)
        _, place, _ = _value(certificate, place)
        if certificate[place] == _VERSION:
            _, _, place = _value(certificate, place)
        names = []
        for name_is_here in (False, False, True, False, True):
            begin, (_, _, place) = place, _value(certificate, place)
            if name_is_here:
                names.append(certificate[begin:place])
    except IndexError:
        return False
    return names[0] == names[1]


def is_namesake(certificate: bytes, authorities: Sequence[bytes]) -> bool:
    """Return whether one of the authorities issued this certificate, all in DER, in its own name.

    False if the certificate may be an authority itself: once trusted, it could issue others. Also
    False without the package cryptography, which the client alone does not need.
    """
    try:
        # Imported late: it takes a while, and is rarely needed.
        from cryptography import x509
    except ImportError:
        return False

    if certificate in authorities:
        return False
    allow_odd_names()
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        if parsed.subject != parsed.issuer or _may_issue(parsed):
            return False
        now = datetime.datetime.now(datetime.UTC)
        return any(
            authority.not_valid_before_utc <= now <= authority.not_valid_after_utc
            and authority.subject == parsed.issuer
            and _is_authority(authority)
            and _has_signed(authority, parsed)
            for authority in map(x509.load_der_x509_certificate, authorities)
        )
    except Exception:
        # The library does not document its exceptions; OpenSSL judges unreadable certificates.
        return False


def _may_issue(certificate: "x509.Certificate") -> bool:
    """Return whether OpenSSL could take a certificate for an authority."""
    from cryptography import x509

    if certificate.version != x509.Version.v3:
        return True
    signs = False
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.BasicConstraints):
            return extension.value.ca
        if extension.oid.dotted_string == _CERTIFICATE_TYPE:
            signs = True
        if isinstance(extension.value, x509.KeyUsage):
            signs |= extension.value.key_cert_sign
    return signs


def _is_authority(certificate: "x509.Certificate") -> bool:
    """Return whether a certificate may issue others, for any purpose and name."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    both = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    is_authority = False
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            is_authority = value.ca
        elif isinstance(value, x509.KeyUsage):
            if not value.key_cert_sign:
                return False
        elif isinstance(value, x509.ExtendedKeyUsage):
            if not both <= set(value):
                return False
        elif isinstance(value, x509.NameConstraints) or extension.critical:
            return False
    return is_authority


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


def _value(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the tag of a DER value, and where its content begins and ends; raises IndexError."""
    tag, size, begin = data[place], data[place + 1], place + 2
    if size & 0x80:
        digits = size & 0x7F
        size, begin = int.from_bytes(data[begin : begin + digits], "big"), begin + digits
    return tag, begin, begin + size
