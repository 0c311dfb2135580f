"""Messages between two hosts, and the headers a member sends."""

from kvorum.raft.entries import Entry
from kvorum.raft.messages import Message, MessageType
from tests.server.peer.transport.network import Host


def heartbeat(sender: Host, to: Host, term: int = 1) -> Message:
    return Message(MessageType.HEARTBEAT, to=to.id, sender=sender.id, term=term)


def append(sender: Host, to: Host, index: int, count: int = 1) -> Message:
    entries = [Entry(0, 1, index + 1 + place, b"data" * 20) for place in range(count)]
    return Message(
        MessageType.APP, to.id, sender.id, term=1, log_term=1, index=index, entries=entries
    )


def member_headers() -> list[tuple[str, str]]:
    return [
        ("X-Server-Version", "3.7.1"),
        ("X-Min-Cluster-Version", "3.0.0"),
        ("X-Etcd-Cluster-ID", "cdf818194e3a8c32"),
    ]
