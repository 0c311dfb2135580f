"""The certificate that a member presents to the members it dials, and the ones it trusts.

A member checks the PEM files before every connection and reloads changed ones. If changed files
are unusable, the old ones stay in use. ALPN never offers HTTP/2: etcd's peer port would select it
and then speak HTTP/1.1.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from kvorum.client.grpc.namesakes import trust_namesakes
from kvorum.network.edge.contexts import (
    SELF_SIGNED,
    Stamp,
    load_authorities,
    load_identity,
    new_context,
    stamp,
)
from kvorum.network.edge.subject import is_for, subject_of

REFUSED = "client certificate authentication failed"
"""etcd's text for a certificate with a wrong name, on either side."""


@dataclass(frozen=True, slots=True)
class DialSettings:
    """TLS for dialing members."""

    cert_file: str = ""
    key_file: str = ""
    """Certificate and key to present on request; empty: none."""
    ca_file: str = ""
    """Authorities of the dialed members; empty: the system's."""
    server_name: str = ""
    """The name that certificates must be for; empty: the dialed host."""
    insecure: bool = False
    """Trust any certificate: self-signed ones prove nothing."""
    allowed_names: tuple[str, ...] = ()
    """Common names of the dialed members; empty: any."""
    allowed_hostnames: tuple[str, ...] = ()
    """Host names, one of which a certificate must match. Empty: any."""
    version_min: str = "TLS1.2"
    version_max: str = ""
    cipher_suites: tuple[str, ...] = ()


class TlsCredentials:
    """TLS settings for dialing, and the context made from their files."""

    def __init__(self, settings: DialSettings, warn: Callable[[str], None]) -> None:
        """Read no files yet: `context` reports unusable files when a member is dialed."""
        self.settings = settings
        self._warn = warn
        self._context: ssl.SSLContext | None = None
        self._stamps: list[Stamp] = []

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; raise OSError or ValueError with the file."""
        settings = self.settings
        files = (settings.cert_file, settings.key_file, settings.ca_file)
        stamps = [stamp(path) for path in files if path]
        if self._context is None:
            self._context = _load(settings)
        elif stamps != self._stamps:
            try:
                self._context = _load(settings)
            except (OSError, ValueError) as error:
                # Keep the new stamps even so: the same files would fail again.
                self._warn(str(error))
        self._stamps = stamps
        return self._context

    def second_context(self, error: Exception) -> ssl.SSLContext | None:
        """Return a context for a retry after an error; None if a retry would not help.

        The returned context accepts certificates that have the same name as the authority that
        issued them. Once it has accepted one, `context` accepts it, too.
        """
        is_self_signed = (
            isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == SELF_SIGNED
        )
        if not is_self_signed or not self.settings.ca_file:
            return None
        first, second = self.context(), _load(self.settings)
        trust_namesakes(second, [first])
        return second

    def refusal(self, certificate: bytes | None) -> str:
        """Return why to refuse a valid certificate because of its names, or "" to accept it."""
        names, hostnames = self.settings.allowed_names, self.settings.allowed_hostnames
        if self.settings.insecure or not (names or hostnames):
            return ""
        try:
            subject = None if certificate is None else subject_of(certificate)
        except ValueError as error:
            return str(error)
        if subject is None:
            return "tls: no certificate was shown"
        if names and subject.common_name not in names:
            return f"{REFUSED}: the common name {subject.common_name!r} is not allowed"
        if hostnames and not any(is_for(subject, name) for name in hostnames):
            return f"{REFUSED}: it is for none of the allowed host names"
        return ""


def _load(settings: DialSettings) -> ssl.SSLContext:
    context = new_context(
        ssl.PROTOCOL_TLS_CLIENT,
        settings.version_min,
        settings.version_max,
        settings.cipher_suites,
    )
    context.hostname_checks_common_name = False
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca_file:
        load_authorities(context, settings.ca_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if settings.cert_file or settings.key_file:
        load_identity(context, settings.cert_file, settings.key_file)
    return context
