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
        "Server certificate file for clients; the server reloads it when it changes.",
    )
    key_file: str = flag(
        "key-file", STRING, "", SECURITY, "Private key file of the server certificate."
    )
    client_cert_file: str = flag(
        "client-cert-file",
        STRING,
        "",
        SECURITY,
        "Client certificate with which etcd calls itself; Kvorum checks the file but does "
        "not use it.",
    )
    client_key_file: str = flag(
        "client-key-file", STRING, "", SECURITY, "Private key file of that client certificate."
    )
    client_cert_auth: bool = flag(
        "client-cert-auth", BOOL, "false", SECURITY, "Require clients to present certificates."
    )
    trusted_ca_file: str = flag(
        "trusted-ca-file",
        STRING,
        "",
        SECURITY,
        "CA file for client certificates; clients must then present one.",
    )
    client_crl_file: str = flag(
        "client-crl-file", STRING, "", SECURITY, "Revocation list file for client certificates."
    )
    client_allowed_names: tuple[str, ...] = flag(
        "client-cert-allowed-cn",
        STRINGS,
        "",
        SECURITY,
        "Common names accepted in client certificates.",
        only_in_file=True,
    )
    client_allowed_hostnames: tuple[str, ...] = flag(
        "client-cert-allowed-hostname",
        STRINGS,
        "",
        SECURITY,
        "Host names accepted in client certificates.",
    )
    auto_tls: bool = flag(
        "auto-tls", BOOL, "false", SECURITY, "Generate a self-signed certificate for clients."
    )
    peer_cert_file: str = flag(
        "peer-cert-file", STRING, "", SECURITY, "Certificate file for connections between members."
    )
    peer_key_file: str = flag(
        "peer-key-file", STRING, "", SECURITY, "Private key file of the peer certificate."
    )
    peer_client_cert_file: str = flag(
        "peer-client-cert-file",
        STRING,
        "",
        SECURITY,
        "Certificate file for dialing other members; empty: the peer certificate.",
    )
    peer_client_key_file: str = flag(
        "peer-client-key-file",
        STRING,
        "",
        SECURITY,
        "Private key file of the certificate for dialing.",
    )
    peer_client_cert_auth: bool = flag(
        "peer-client-cert-auth",
        BOOL,
        "false",
        SECURITY,
        "Require other members to present certificates.",
    )
    peer_trusted_ca_file: str = flag(
        "peer-trusted-ca-file", STRING, "", SECURITY, "CA file for members' certificates."
    )
    peer_crl_file: str = flag(
        "peer-crl-file", STRING, "", SECURITY, "Revocation list file for members' certificates."
    )
    peer_allowed_names: tuple[str, ...] = flag(
        "peer-cert-allowed-cn",
        STRINGS,
        "",
        SECURITY,
        "Common names accepted in members' certificates.",
    )
    peer_allowed_hostnames: tuple[str, ...] = flag(
        "peer-cert-allowed-hostname",
        STRINGS,
        "",
        SECURITY,
        "Host names accepted in members' certificates.",
    )
    peer_skip_address_check: bool = flag(
        "peer-skip-client-san-verification",
        BOOL,
        "false",
        SECURITY,
        "Accept a member's certificate from any address.",
    )
    peer_auto_tls: bool = flag(
        "peer-auto-tls", BOOL, "false", SECURITY, "Generate a self-signed certificate for members."
    )
    self_signed_years: int = flag(
        "self-signed-cert-validity",
        UINT,
        "1",
        SECURITY,
        "Validity of generated certificates, in years.",
    )
    cipher_suites: tuple[str, ...] = flag(
        "cipher-suites", STRINGS, "", SECURITY, "TLS 1.2 cipher suites, by their Go names."
    )
    tls_version_min: str = flag(
        "tls-min-version", STRING, "TLS1.2", SECURITY, "Minimum TLS version: TLS1.2 or TLS1.3."
    )
    tls_version_max: str = flag(
        "tls-max-version",
        STRING,
        "",
        SECURITY,
        "Maximum TLS version; empty: the highest supported.",
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
