"""Clients of several servers that run in one thread."""

from typing import Any

from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.network.edge.interface import EdgeEventKind, Metadata
from kvorum.server.rpc.table import NUMBERS
from tests.member.harness import Cluster, Machine
from tests.server.rpc.harness import by_name


class Fronts(Cluster):
    """Members that are called by clients."""

    def begin(
        self, machine: Machine, name: str, request: Message, metadata: Metadata | None = None
    ) -> int:
        call = self.next_call()
        number = NUMBERS[by_name(name).path]
        machine.requests.append((call, number, request.SerializeToString(), metadata))
        self.settle()
        return call

    def call(
        self, machine: Machine, name: str, request: Message, metadata: Metadata | None = None
    ) -> Any:
        call = self.begin(machine, name, request, metadata)
        result = self.answer(machine, call)
        return result if isinstance(result, Status) else by_name(name).response.FromString(result)

    def open(self, machine: Machine, name: str, metadata: Metadata | None = None) -> int:
        call = self.next_call()
        opened = (EdgeEventKind.OPENED, call, (NUMBERS[by_name(name).path], metadata))
        machine.events.append(opened)
        self.settle()
        return call

    def message(self, machine: Machine, call: int, request: Message) -> None:
        machine.events.append((EdgeEventKind.MESSAGE, call, request.SerializeToString()))
        self.settle()

    def received(self, machine: Machine, name: str, call: int) -> list[Any]:
        sent = machine.edge.sent.get(call, [])
        return [by_name(name).response.FromString(each) for each in sent]

    def finished(self, machine: Machine, call: int) -> Status | None:
        return machine.edge.finished.get(call)
