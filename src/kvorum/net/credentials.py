"""What a member shows to the members it dials, and which of them it believes.

Files are PEM, looked at before every connection and read again when they have changed. If changed
files cannot be used, the ones before go on being used. HTTP/2 is never offered: etcd's peer
port would agree to it and then speak HTTP/1.1.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from kvorum.edge.contexts import Stamp, load_authorities, load_identity, new_context, stamp
from kvorum.edge.subject import is_for, subject_of


@dataclass(frozen=True, slots=True)
class DialSettings:
    """TLS of what is dialed."""

    cert_file: str = ""
    key_file: str = ""
    """What is shown where a certificate is asked for; empty: nothing."""
    ca_file: str = ""
    """Authorities of those that are dialed; empty: those that this machine trusts."""
    server_name: str = ""
    """The name that certificates have to be for; empty: the host that is dialed."""
    insecure: bool = False
    """Believe everyone: certificates that members made for themselves prove nothing."""
    allowed_names: tuple[str, ...] = ()
    """Common names of those that are dialed; empty: any."""
    allowed_hostnames: tuple[str, ...] = ()
    """Host names, one of which a certificate has to be for; empty: any."""
    version_min: str = "TLS1.2"
    version_max: str = ""
    cipher_suites: tuple[str, ...] = ()


class Credentials:
    """The settings, and what their files have become."""

    def __init__(self, settings: DialSettings, warn: Callable[[str], None]) -> None:
        """Read nothing yet: what cannot be used is told when something is dialed."""
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
                # Once: the same files would fail again.
                self._warn(str(error))
        self._stamps = stamps
        return self._context

    def refusal(self, certificate: bytes | None) -> str:
        """Return why a genuine certificate is not welcome, or "" if it is."""
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
            return f"tls: the certificate's common name {subject.common_name!r} is not allowed"
        if hostnames and not any(is_for(subject, name) for name in hostnames):
            return "tls: the certificate is for none of the allowed host names"
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
