"""Plain HTTP requests to any server, and how one gets into a state that they show."""

import http.client
from typing import NamedTuple

import grpc

from kvorum.api.pb.etcdserverpb import AlarmRequest, AlarmResponse

# Header names whose values differ by nature, or that a server may choose.
FREE = {"date", "content-length", "transfer-encoding", "connection"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(address: str, method: str, target: str, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, target, headers=headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        body = response.read()
        return Answer(
            response.status,
            {name: value for name, value in found.items() if name not in FREE},
            body,
        )
    finally:
        connection.close()


def raise_alarm(address: str, kind: int) -> None:
    """Raise an alarm as a client may."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/etcdserverpb.Maintenance/Alarm",
            AlarmRequest.SerializeToString,
            AlarmResponse.FromString,
        )
        call(AlarmRequest(action=1, memberID=7, alarm=kind), timeout=30)  # type: ignore[arg-type]
