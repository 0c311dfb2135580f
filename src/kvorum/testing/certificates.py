"""Certificates for the tests of a session: an authority, a server's pair and a client's."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvorum.testing.ports import HOST

_BEFORE = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=7)
CLIENT_NAME = "kvorum-test-client"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    ca: str
    cert: str
    """The client's certificate."""
    key: str
    server_cert: str
    server_key: str

    def flags(self) -> dict[str, str]:
        """Return the flags of a server that presents its certificate."""
        return {"cert-file": self.server_cert, "key-file": self.server_key}

    def require_client_flags(self) -> dict[str, str]:
        """Return the additional flags of a server that requires client certificates."""
        return {"trusted-ca-file": self.ca, "client-cert-auth": "true"}

    def peer_flags(self) -> dict[str, str]:
        """Return the flags of members that require each other's certificates."""
        flags = self.flags() | self.require_client_flags()
        return {f"peer-{name}": value for name, value in flags.items()}


def make_certificates(directory: Path) -> Certificates:
    """Write new certificates into a directory."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _name("kvorum-test-authority")
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    signed = _builder(authority, authority, authority_key).add_extension(is_authority, True)
    files = {"ca.pem": signed.sign(authority_key, hashes.SHA256()).public_bytes(_PEM)}
    for file, name in (("server", "kvorum-test-server"), ("client", CLIENT_NAME)):
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        hosts: list[x509.GeneralName] = [x509.DNSName("localhost")]
        hosts.append(x509.IPAddress(ipaddress.ip_address(HOST)))
        certificate = (
            _builder(_name(name), authority, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(x509.ExtendedKeyUsage(purposes), False)
            .add_extension(x509.SubjectAlternativeName(hosts), False)
            .sign(authority_key, hashes.SHA256())
        )
        files[f"{file}.pem"] = certificate.public_bytes(_PEM)
        files[f"{file}.key"] = key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    for file, content in files.items():
        (directory / file).write_bytes(content)
    names = ("ca.pem", "client.pem", "client.key", "server.pem", "server.key")
    return Certificates(*(str(directory / file) for file in names))


_PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
    )
