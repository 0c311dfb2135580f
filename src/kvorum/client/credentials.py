"""The TLS options of a client: its files are read again for each new connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvorum.client.endpoints import Address
from kvorum.client.grpc.link import UnusableError

if TYPE_CHECKING:
    import ssl


class TlsOptions(NamedTuple):
    """Which certificates to trust, and which to present."""

    ca: str = ""
    """A file of authorities; empty for the system's."""
    cert: str = ""
    key: str = ""
    insecure: bool = False
    """Whether to accept any server certificate."""

    @property
    def is_given(self) -> bool:
        """Whether to use TLS with endpoints whose address leaves it open."""
        return bool(self.ca or self.cert or self.insecure)


def contexts(options: TlsOptions) -> "Callable[[Address], ssl.SSLContext | None]":
    """Return a function that makes the TLS context for an address, or None for plain text.

    It reads the files for each connection, so that renewed certificates need no new client.
    """
    if bool(options.cert) != bool(options.key):
        raise ValueError("a certificate and its key go together; one of cert, key is missing")

    def context(address: Address) -> "ssl.SSLContext | None":
        is_secure = options.is_given if address.is_secure is None else address.is_secure
        if not is_secure:
            return None
        # Imported late: most clients use no TLS.
        import ssl

        from kvorum.client.grpc.trust import server_context

        if options.ca:
            _read("ca", options.ca)
        try:
            made = server_context(options.ca)
        except ssl.SSLError:
            raise UnusableError(f"ca={options.ca!r} holds no certificates in PEM") from None
        made.set_alpn_protocols(["h2"])
        if options.insecure:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        if options.cert:
            _load(made, options.cert, options.key)
        return made

    return context


def _read(name: str, path: str) -> bytes:
    """Return the content of a file; raises UnusableError that names the file."""
    try:
        # Not with pathlib, which takes long to import.
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UnusableError(f"{name}={path!r} cannot be read: {reason}") from None


def _load(context: "ssl.SSLContext", cert: str, key: str) -> None:
    """Let connections present a certificate; raises UnusableError that names the faulty file."""
    import ssl

    if b"-----BEGIN CERTIFICATE" not in _read("cert", cert):
        raise UnusableError(f"cert={cert!r} holds no certificate in PEM")
    if b"PRIVATE KEY-----" not in _read("key", key):
        raise UnusableError(f"key={key!r} holds no private key in PEM")
    try:
        # Without a password, OpenSSL would ask the terminal for one.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"key={key!r} does not belong to the certificate in cert={cert!r}"
        else:
            detail = (error.reason or str(error)).replace("_", " ").lower()
            reason = (
                f"cert={cert!r} and key={key!r} cannot be used: {detail}; expected a certificate "
                "and its key in PEM, without a password"
            )
        raise UnusableError(reason) from None
