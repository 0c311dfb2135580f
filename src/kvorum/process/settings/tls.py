"""The TLS options of the configuration, for clients and for other members."""

from dataclasses import dataclass

from kvorum.network.tls.security import Security, cipher_suites_by_name
from kvorum.process.settings.rows import BOOL, SECURITY, STRING, STRINGS, UINT, flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """The TLS flags, each at its field."""

    cert_file: str = flag(
        "cert-file",
        STRING,
        "",
        SECURITY,
        "Certificate shown to clients; read again when it changes.",
    )
    key_file: str = flag("key-file", STRING, "", SECURITY, "Key of it.")
    client_cert_file: str = flag(
        "client-cert-file",
        STRING,
        "",
        SECURITY,
        "Certificate with which etcd calls itself; checked, but not needed by this server.",
    )
    client_key_file: str = flag("client-key-file", STRING, "", SECURITY, "Key of it.")
    client_cert_auth: bool = flag(
        "client-cert-auth", BOOL, "false", SECURITY, "Demand certificates of clients."
    )
    trusted_ca_file: str = flag(
        "trusted-ca-file",
        STRING,
        "",
        SECURITY,
        "Authorities of clients' certificates, which it demands.",
    )
    client_crl_file: str = flag(
        "client-crl-file", STRING, "", SECURITY, "Revocation list of clients' certificates."
    )
    client_allowed_names: tuple[str, ...] = flag(
        "client-cert-allowed-cn",
        STRINGS,
        "",
        SECURITY,
        "Common names of clients' certificates.",
        only_in_file=True,
    )
    client_allowed_hostnames: tuple[str, ...] = flag(
        "client-cert-allowed-hostname",
        STRINGS,
        "",
        SECURITY,
        "Host names that clients' certificates may be for.",
    )
    auto_tls: bool = flag("auto-tls", BOOL, "false", SECURITY, "Make a certificate for clients.")
    peer_cert_file: str = flag("peer-cert-file", STRING, "", SECURITY, "Certificate for members.")
    peer_key_file: str = flag("peer-key-file", STRING, "", SECURITY, "Key of it.")
    peer_client_cert_file: str = flag(
        "peer-client-cert-file", STRING, "", SECURITY, "Certificate to dial with."
    )
    peer_client_key_file: str = flag("peer-client-key-file", STRING, "", SECURITY, "Key of it.")
    peer_client_cert_auth: bool = flag(
        "peer-client-cert-auth", BOOL, "false", SECURITY, "Demand members' certificates."
    )
    peer_trusted_ca_file: str = flag(
        "peer-trusted-ca-file", STRING, "", SECURITY, "Authority for members."
    )
    peer_crl_file: str = flag(
        "peer-crl-file", STRING, "", SECURITY, "Revoked members' certificates."
    )
    peer_allowed_names: tuple[str, ...] = flag(
        "peer-cert-allowed-cn", STRINGS, "", SECURITY, "Common names of members."
    )
    peer_allowed_hostnames: tuple[str, ...] = flag(
        "peer-cert-allowed-hostname", STRINGS, "", SECURITY, "Names of members."
    )
    peer_skip_address_check: bool = flag(
        "peer-skip-client-san-verification", BOOL, "false", SECURITY, "Trust any address."
    )
    peer_auto_tls: bool = flag(
        "peer-auto-tls", BOOL, "false", SECURITY, "Make a certificate for members."
    )
    self_signed_years: int = flag(
        "self-signed-cert-validity", UINT, "1", SECURITY, "Years such certificates last."
    )
    cipher_suites: tuple[str, ...] = flag(
        "cipher-suites", STRINGS, "", SECURITY, "Suites of TLS 1.2, by Go's names."
    )
    tls_version_min: str = flag(
        "tls-min-version", STRING, "TLS1.2", SECURITY, "Lowest version of TLS: TLS1.2 or TLS1.3."
    )
    tls_version_max: str = flag(
        "tls-max-version",
        STRING,
        "",
        SECURITY,
        "Highest version of TLS; empty: the highest there is.",
    )

    @property
    def client_security(self) -> Security:
        """The TLS options for clients."""
        return Security(
            cert_file=self.cert_file,
            key_file=self.key_file,
            trusted_ca_file=self.trusted_ca_file,
            crl_file=self.client_crl_file,
            client_cert_auth=self.client_cert_auth,
            client_cert_file=self.client_cert_file,
            client_key_file=self.client_key_file,
            skip_address_check=True,
            allowed_names=tuple(filter(None, self.client_allowed_names)),
            allowed_hostnames=tuple(filter(None, self.client_allowed_hostnames)),
            auto=self.auto_tls,
            self_signed_years=self.self_signed_years,
            cipher_suites=cipher_suites_by_name(self.cipher_suites),
            version_min=self.tls_version_min,
            version_max=self.tls_version_max,
        )

    @property
    def peer_security(self) -> Security:
        """The TLS options for other members."""
        return Security(
            cert_file=self.peer_cert_file,
            key_file=self.peer_key_file,
            trusted_ca_file=self.peer_trusted_ca_file,
            crl_file=self.peer_crl_file,
            client_cert_auth=self.peer_client_cert_auth,
            client_cert_file=self.peer_client_cert_file,
            client_key_file=self.peer_client_key_file,
            skip_address_check=self.peer_skip_address_check,
            allowed_names=tuple(filter(None, self.peer_allowed_names)),
            allowed_hostnames=tuple(filter(None, self.peer_allowed_hostnames)),
            auto=self.peer_auto_tls,
            self_signed_years=self.self_signed_years,
            cipher_suites=cipher_suites_by_name(self.cipher_suites),
            version_min=self.tls_version_min,
            version_max=self.tls_version_max,
        )
