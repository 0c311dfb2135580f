"""Which certificate a member shows to the members it dials, and which of theirs it trusts.

Files are PEM, checked before every connection and read again when they have changed. If changed
files cannot be used, the old ones stay in use. HTTP/2 is never offered: etcd's peer port would
agree to it and then speak HTTP/1.1.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from kvorum.client.namesakes import believe_namesakes
from kvorum.edge.contexts import (
    SELF_SIGNED,
    Stamp,
    load_authorities,
    load_identity,
    new_context,
    stamp,
)
from kvorum.edge.subject import is_for, subject_of

REFUSED = "client certificate authentication failed"
"""What etcd says of a certificate with a wrong name, whichever side shows it."""


@dataclass(frozen=True, slots=True)
class DialSettings:
    """TLS for the members that are dialed."""

    cert_file: str = ""
    key_file: str = ""
    """The certificate to show if asked for one; empty: none."""
    ca_file: str = ""
    """Authorities of the members that are dialed; empty: those that this machine trusts."""
    server_name: str = ""
    """The name that certificates have to be for; empty: the host that is dialed."""
    insecure: bool = False
    """Trust everyone: certificates that members made for themselves prove nothing."""
    allowed_names: tuple[str, ...] = ()
    """Common names of the members that are dialed; empty: any."""
    allowed_hostnames: tuple[str, ...] = ()
    """Host names; a certificate has to be for one of them. Empty: any."""
    version_min: str = "TLS1.2"
    version_max: str = ""
    cipher_suites: tuple[str, ...] = ()


class Credentials:
    """The settings, and the context made from their files."""

    def __init__(self, settings: DialSettings, warn: Callable[[str], None]) -> None:
        """Read nothing yet: files that cannot be used are reported when something is dialed."""
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
                # Noted even if loading fails: the same files would fail again.
                self._warn(str(error))
        self._stamps = stamps
        return self._context

    def second_context(self, error: Exception) -> ssl.SSLContext | None:
        """Return the context to try again with after an error; None if that would not help.

        It accepts certificates that have the name of their authority, and once one was found
        `context` does as well.
        """
        is_self_signed = (
            isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == SELF_SIGNED
        )
        if not is_self_signed or not self.settings.ca_file:
            return None
        first, second = self.context(), _load(self.settings)
        believe_namesakes(second, [first])
        return second

    def refusal(self, certificate: bytes | None) -> str:
        """Return why a genuine certificate is refused, or "" if it is not."""
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
