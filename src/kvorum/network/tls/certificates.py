"""Self-signed certificates for `--auto-tls` and `--peer-auto-tls`.

They encrypt but prove no identity. The server keeps them in its data directory and reuses them
after a restart for as long as they are valid.
"""

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvorum.network.urls import split_host_port

YEAR = datetime.timedelta(days=365)
DIRECTORY_MODE = 0o700
KEY_MODE = 0o600


def self_signed(directory: Path, hosts: Sequence[str], years: int) -> tuple[Path, Path]:
    """Return the files of a certificate for these hosts and of its key; make them if needed."""
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    if _is_usable(cert_file, key_file):
        return cert_file, key_file
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    # The fastest curve that every TLS library supports.
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "etcd")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + years * YEAR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(), critical=True)
    )
    names = [_general_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    # Create a new file, so that other users cannot read the key even for a moment.
    key_file.unlink(missing_ok=True)
    descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return cert_file, key_file


def _is_usable(cert_file: Path, key_file: Path) -> bool:
    """Return whether files of an earlier start are still usable.

    Files made by etcd use the curve P-521, which not every TLS library supports; the server
    replaces them.
    """
    try:
        certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError):
        return False
    return (
        isinstance(key, ec.EllipticCurvePrivateKey)
        and isinstance(key.curve, ec.SECP256R1)
        and certificate.public_key() == key.public_key()
        and certificate.not_valid_after_utc > datetime.datetime.now(datetime.UTC)
    )


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        host = split_host_port(host)[0]
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
