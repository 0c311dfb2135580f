"""TLS contexts that judge certificates as etcd does, as far as OpenSSL allows.

OpenSSL accepts more than Go in two cases that this module rejects: a host's name as common name,
and an authority that does not declare itself one. OpenSSL accepts less in two cases that this
module allows: a trusted certificate without its authority, and under Python 3.13 a home-made
authority that lacks what RFC 5280 asks for.
"""

import re
import ssl
from pathlib import Path

from kvorum.client.grpc.namesakes import trust_namesakes

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_BASIC_CONSTRAINTS = b"\x06\x03\x55\x1d\x13"
_KEY_USAGE = re.compile(rb"\x06\x03\x55\x1d\x0f(?:\x01\x01\xff)?\x04.\x03.(.)(.)", re.DOTALL)
_KEY_CERT_SIGN = 0x04


def server_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts a file's authorities, or with an empty path the system's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    verify_like_go(context)
    if ca_file:
        load_authorities(context, ca_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    trust_namesakes(context)
    return context


def verify_like_go(context: ssl.SSLContext) -> None:
    """Set the flags with which a context verifies certificates as Go does."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if context.check_hostname:
        context.hostname_checks_common_name = False


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Load a bundle, except for certificates that only OpenSSL takes for authorities.

    Raises OSError, of which ssl.SSLError is a subclass.
    """
    data = Path(path).read_bytes()
    blocks: list[bytes] = _PEM.findall(data)
    believed = [block for block in blocks if not _is_silent(block)]
    if len(believed) == len(blocks):
        context.load_verify_locations(path)
    elif believed:
        context.load_verify_locations(cadata=b"\n".join(believed).decode("ascii"))


def _is_silent(pem: bytes) -> bool:
    """Return whether a certificate may sign others but does not declare itself an authority."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
    except ValueError:
        # Loading the certificate reports the error.
        return False
    usage = _KEY_USAGE.search(der)
    signs = usage is not None and usage[2][0] & _KEY_CERT_SIGN != 0
    return signs and _BASIC_CONSTRAINTS not in der
