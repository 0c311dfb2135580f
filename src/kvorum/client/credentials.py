"""TLS as a client is told to speak it: files that are read again for each new connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvorum.client.endpoints import Address

if TYPE_CHECKING:
    import ssl


class TlsOptions(NamedTuple):
    """Which certificates to trust, and which to show."""

    ca: str = ""
    """A file of authorities; empty: the system's."""
    cert: str = ""
    key: str = ""
    insecure: bool = False
    """Whether any certificate of a server is accepted."""

    @property
    def is_given(self) -> bool:
        """Whether TLS is spoken with endpoints that do not say."""
        return bool(self.ca or self.cert or self.insecure)


def contexts(options: TlsOptions) -> "Callable[[Address], ssl.SSLContext | None]":
    """Return what makes the TLS context of a connection, or None where none is spoken.

    The files are read for each connection, so that renewed ones need no new client.
    """
    if bool(options.cert) != bool(options.key):
        raise ValueError("a certificate and its key go together; one of cert, key is missing")

    def context(address: Address) -> "ssl.SSLContext | None":
        is_secure = options.is_given if address.is_secure is None else address.is_secure
        if not is_secure:
            return None
        import ssl

        made = ssl.create_default_context(cafile=options.ca or None)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["h2"])
        if options.insecure:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        if options.cert:
            made.load_cert_chain(options.cert, options.key)
        return made

    return context
