"""Clients of a guarded server: each with a certificate, a token, or neither."""

from pathlib import Path

import grpc

from tests.certificates import Authority, Pair
from tests.cluster.client import OPTIONS, Client


class SecureClient(Client):
    """A client over TLS; it shows its certificate, if it has one."""

    def __init__(self, address: str, authority: Authority, pair: Pair | None = None) -> None:
        super().__init__(address)
        self._channel.close()
        credentials = grpc.ssl_channel_credentials(
            Path(authority.cert).read_bytes(),
            None if pair is None else Path(pair.key).read_bytes(),
            None if pair is None else Path(pair.cert).read_bytes(),
        )
        self._channel = grpc.secure_channel(address, credentials, OPTIONS)
