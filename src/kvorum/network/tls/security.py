"""The TLS flags for clients or peers, and the edge's and the dialer's settings made from them.

Error texts are etcd's. A listener has TLS if its URL's scheme has. `https` and `http` may share an
address; the first byte of a connection distinguishes them.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvorum.network.edge import CIPHER_SUITES, TlsSettings
from kvorum.network.tls.credentials import DialSettings
from kvorum.network.urls import Url

SECURE_SCHEMES = ("https", "unixs")
VERSIONS = ("TLS1.2", "TLS1.3")

_ALIASES = {
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
}
_NEWER = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3, which are always enabled; naming them has no effect."""
WEAK_CIPHER_SUITES = (
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
)
"""Suites that etcd supports and this server does not; the server omits them with a warning."""


@dataclass(frozen=True, slots=True)
class Security:
    """The TLS flags of one side of the server: for clients or for peers."""

    cert_file: str
    key_file: str
    trusted_ca_file: str
    crl_file: str
    client_cert_auth: bool
    client_cert_file: str
    client_key_file: str
    """Certificate and key for outgoing connections; empty: the same as for incoming ones."""
    skip_address_check: bool
    """Whether a peer's certificate need not match the address that the peer connects from."""
    allowed_names: tuple[str, ...]
    allowed_hostnames: tuple[str, ...]
    auto: bool
    self_signed_years: int
    cipher_suites: tuple[str, ...]
    version_min: str
    version_max: str

    @property
    def has_certificate(self) -> bool:
        """Whether certificate and key are both given."""
        return bool(self.cert_file and self.key_file)

    @property
    def names_files(self) -> bool:
        """Whether any TLS file is given."""
        return bool(
            self.cert_file
            or self.key_file
            or self.trusted_ca_file
            or self.crl_file
            or self.client_cert_file
            or self.client_key_file
        )

    @property
    def uses_own(self) -> bool:
        """Whether the server makes a self-signed certificate: only if no file is given."""
        return self.auto and not (self.cert_file or self.key_file)

    @property
    def asks_for_certificates(self) -> bool:
        """Whether clients must present a certificate; never if the server's is self-signed."""
        return not self.uses_own and bool(self.client_cert_auth or self.trusted_ca_file)

    @property
    def offered_cipher_suites(self) -> tuple[str, ...]:
        """The requested suites that the server offers."""
        return tuple(name for name in self.cipher_suites if name in CIPHER_SUITES)

    @property
    def weak_cipher_suites(self) -> list[str]:
        """The requested suites that the server does not offer."""
        return [name for name in self.cipher_suites if name in WEAK_CIPHER_SUITES]


def cipher_suites_by_name(names: Sequence[str]) -> tuple[str, ...]:
    """Return suites under the edge's names, without empty ones."""
    return tuple(_ALIASES.get(name, name) for name in names if name)


def check_versions(security: Security) -> None:
    """Raise ValueError for unknown or contradictory TLS versions."""
    version_min, version_max = security.version_min, security.version_max
    for version in (version_min, version_max):
        if version not in ("", *VERSIONS):
            raise ValueError(
                f'unexpected TLS version "{version}" (must be one of: {", ".join(VERSIONS)})'
            )
    if version_max and version_min > version_max:
        raise ValueError(f"min version ({version_min}) is greater than max version ({version_max})")
    if version_min == "TLS1.3" and security.cipher_suites:
        raise ValueError("cipher suites cannot be configured when only TLS1.3 is enabled")


def check_security(security: Security, prefix: str) -> None:
    """Raise ValueError for invalid or contradictory flags; `prefix` is `peer-` for peer flags."""
    _check_cipher_suites(security.cipher_suites)
    if bool(security.client_cert_file) != bool(security.client_key_file):
        raise ValueError(
            f"--{prefix}client-cert-file and --{prefix}client-key-file must be given together"
        )
    if security.allowed_names and security.allowed_hostnames:
        raise ValueError(
            f"AllowedCN and AllowedHostname are mutually exclusive "
            f"(cn={list(security.allowed_names)}, hostname={list(security.allowed_hostnames)})"
        )


def _check_cipher_suites(suites: Sequence[str]) -> None:
    for name in suites:
        if name not in (*CIPHER_SUITES, *_NEWER, *WEAK_CIPHER_SUITES):
            raise ValueError(f'unexpected TLS cipher suite "{name}"')
    if suites and all(name in WEAK_CIPHER_SUITES for name in suites):
        raise ValueError(
            f"--cipher-suites: none of {', '.join(suites)} is offered by this server; name at "
            f"least one of {', '.join(CIPHER_SUITES)}"
        )


def is_secure(url: Url) -> bool:
    """Return whether a URL's scheme requires TLS."""
    return url.scheme in SECURE_SCHEMES


def tls_settings(
    security: Security, urls: Sequence[Url], directory: Path
) -> dict[str, TlsSettings | None]:
    """Return the TLS settings by the URLs' addresses; None for an address without TLS.

    The server keeps a self-signed certificate under `directory`.
    """
    secure = {url.address for url in urls if is_secure(url)}
    plain = {url.address for url in urls if not is_secure(url)}
    settings = None
    if secure:
        settings = _settings(security, [url for url in urls if is_secure(url)], directory)
    found: dict[str, TlsSettings | None] = {}
    for url in urls:
        if url.address not in secure or settings is None:
            found[url.address] = None
        else:
            found[url.address] = settings[url.address in plain]
    return found


def _own_files(security: Security, urls: Sequence[Url], directory: Path) -> tuple[str, str]:
    """Return the files of the self-signed certificate and its key."""
    # The import is slow and rarely needed.
    from kvorum.network.tls.certificates import self_signed

    hosts = [url.host for url in urls]
    cert_file, key_file = self_signed(directory, hosts, security.self_signed_years)
    return str(cert_file), str(key_file)


def _settings(
    security: Security, urls: Sequence[Url], directory: Path
) -> tuple[TlsSettings, TlsSettings]:
    """Return two settings: one refuses clients without TLS, the other accepts them."""
    if security.uses_own:
        cert_file, key_file = _own_files(security, urls, directory)
        authority = ""
    else:
        cert_file, key_file = security.cert_file, security.key_file
        authority = security.trusted_ca_file
        if security.client_cert_auth and not authority:
            authority = system_authorities()

    def made(*, plain_too: bool) -> TlsSettings:
        return TlsSettings(
            cert_file=cert_file,
            key_file=key_file,
            client_ca_file=authority,
            client_crl_file=security.crl_file,
            allowed_names=security.allowed_names,
            allowed_hostnames=security.allowed_hostnames,
            version_min=security.version_min or VERSIONS[0],
            version_max=security.version_max,
            cipher_suites=security.offered_cipher_suites,
            plain_too=plain_too,
        )

    return made(plain_too=False), made(plain_too=True)


def dial_settings(security: Security, urls: Sequence[Url], directory: Path) -> DialSettings:
    """Return the settings for dialing; `urls` are the URLs that this member listens at.

    The server keeps a self-signed certificate under `directory`; with such certificates it trusts
    every peer.
    """
    if security.uses_own:
        cert_file, key_file = _own_files(security, urls, directory)
    elif security.client_cert_file:
        cert_file, key_file = security.client_cert_file, security.client_key_file
    else:
        cert_file, key_file = security.cert_file, security.key_file
    return DialSettings(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=security.trusted_ca_file,
        insecure=security.uses_own,
        allowed_names=security.allowed_names,
        allowed_hostnames=security.allowed_hostnames,
        version_min=security.version_min or VERSIONS[0],
        version_max=security.version_max,
        cipher_suites=security.offered_cipher_suites,
    )


def system_authorities() -> str:
    """Return the file of the system's trusted authorities; raise ValueError if there is none."""
    paths = ssl.get_default_verify_paths()
    known = (paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
    for path in known:
        if path and Path(path).exists():
            return path
    raise ValueError(
        "--client-cert-auth: this machine has no bundle of authorities; name one with "
        "--trusted-ca-file"
    )
