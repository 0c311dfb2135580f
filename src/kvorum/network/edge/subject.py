"""The names in a certificate, which identify a verified client."""

from functools import lru_cache
from typing import NamedTuple

from kvorum.client.grpc.namesakes import allow_odd_names


class Subject(NamedTuple):
    """The names in a certificate."""

    common_name: str
    """Empty if there is none; the last one if there are several."""
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def subject_of(certificate: bytes) -> Subject:
    """Return the names in a certificate, given in DER as `Edge.peer_certificate` has it.

    Raises ValueError if it cannot be parsed: authorities may sign malformed certificates.
    """
    # The import is slow, and a member without TLS does not need it.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    allow_odd_names()
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        common_name = str(names[-1].value) if names else ""
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return Subject(common_name)
    except Exception as error:
        # The library does not document which exceptions a malformed certificate raises.
        raise ValueError(f"x509: the certificate cannot be read: {error}") from error
    others = extension.value
    return Subject(
        common_name,
        tuple(others.get_values_for_type(x509.DNSName)),
        tuple(str(one) for one in others.get_values_for_type(x509.IPAddress)),
    )


def is_for(subject: Subject, hostname: str) -> bool:
    """Return whether a certificate is for a host: an address, a name, or `*.` and the rest."""
    name = hostname.lower().rstrip(".")
    if name in subject.ip_addresses:
        return True
    _, _, rest = name.partition(".")
    names = [one.lower() for one in subject.dns_names]
    return name in names or (bool(rest) and f"*.{rest}" in names)
