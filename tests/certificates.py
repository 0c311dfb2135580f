"""Certificates for tests: an authority, what it issues, and what it revokes."""

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

DAY = datetime.timedelta(days=1)
PURPOSES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path
    serial: int


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


def trusting(authority: Path) -> ssl.SSLContext:
    """Return a client's context that trusts an authority, and judges as clients in Go do.

    From Python 3.13 on, a default context demands key identifiers of every certificate.
    """
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class Authority:
    """Signs certificates; everything it makes is a file in one directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = directory / f"{name}.pem"
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        *,
        file: str = "",
        days: int = 1,
        purposes: Sequence[str] = ("server", "client"),
        use_rsa: bool = False,
        names: bytes = b"",
    ) -> Pair:
        """Make a certificate and its key; with negative days it has expired.

        `names` replaces the names of the hosts in it, whether they can be parsed or not.
        """
        key = (
            rsa.generate_private_key(65_537, 2048)
            if use_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        now = datetime.datetime.now(datetime.UTC)
        serial = x509.random_serial_number()
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([PURPOSES[one] for one in purposes]), critical=False
            )
        )
        if names:
            oid = ExtensionOID.SUBJECT_ALTERNATIVE_NAME
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, names), critical=False)
        elif hosts:
            known = x509.SubjectAlternativeName([_host(one) for one in hosts])
            builder = builder.add_extension(known, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = file or name or "nameless"
        pair = Pair(self._directory / f"{stem}.pem", self._directory / f"{stem}.key", serial)
        replace(pair.cert, certificate.public_bytes(serialization.Encoding.PEM))
        replace(
            pair.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return pair

    def revoke(self, *pairs: Pair, pem: bool = False) -> Path:
        """Make a revocation list of these."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for pair in pairs:
            entry = x509.RevokedCertificateBuilder().serial_number(pair.serial)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        revoked = builder.sign(self._key, hashes.SHA256())
        encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
        path = self._directory / "revoked.crl"
        replace(path, revoked.public_bytes(encoding))
        return path


def replace(path: Path, content: bytes) -> None:
    """Write a file the way renewal tools do: complete, and renamed into place."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
