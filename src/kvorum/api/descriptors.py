"""The compiled `.proto` files, and message classes made from them.

The classes live in a descriptor pool of their own. Protobuf's default pool accepts each name once
per process, and the common Python clients register `etcdserverpb` there. A program that embeds
Kvorum beside such a client must not crash at import.
"""

from collections.abc import Iterator
from pkgutil import get_data
from typing import Any, NamedTuple

from google.protobuf.descriptor import DescriptorBase, FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


def _load() -> tuple[DescriptorPool, tuple[str, ...]]:
    compiled = get_data("kvorum.api.pb", "descriptors.binpb")
    assert compiled is not None, "the package kvorum.api.pb cannot be read"
    pool = DescriptorPool()
    names = []
    for file in FileDescriptorSet.FromString(compiled).file:
        pool.AddSerializedFile(file.SerializeToString())
        names.append(file.name)
    return pool, tuple(names)


POOL, _FILE_NAMES = _load()


class Method(NamedTuple):
    """One RPC of the contract."""

    path: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool
    server_streaming: bool
    descriptor: MethodDescriptor


def contract_files() -> list[FileDescriptor]:
    """Return every file of `proto/`, without imported files from elsewhere."""
    return [POOL.FindFileByName(name) for name in _FILE_NAMES if not name.startswith("google/")]


def define(file_name: str, namespace: dict[str, Any]) -> None:
    """Put the messages and enums of one `.proto` file into a module's namespace."""
    file = POOL.FindFileByName(file_name)
    namespace["DESCRIPTOR"] = file
    for name, message in file.message_types_by_name.items():
        namespace[name] = GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        namespace[name] = EnumTypeWrapper(enum)
        namespace.update((value.name, value.number) for value in enum.values)


def methods() -> Iterator[Method]:
    """Yield every RPC, in the order of the `.proto` files."""
    for file in contract_files():
        for service in file.services_by_name.values():
            for method in service.methods:
                yield Method(
                    path=f"/{service.full_name}/{method.name}",
                    request=GetMessageClass(method.input_type),
                    response=GetMessageClass(method.output_type),
                    client_streaming=method.client_streaming,
                    server_streaming=method.server_streaming,
                    descriptor=method,
                )


def http_paths(method: Method) -> list[str]:
    """Return the paths of a method's JSON API, its own path before the additional ones."""
    rule = option(method.descriptor, "google.api.http")
    return [each.post for each in (rule, *rule.additional_bindings) if each.post]


def option(descriptor: DescriptorBase, extension_name: str) -> Any:
    """Return the value of a custom option, e.g. `versionpb.etcd_version_field`.

    An option that is not set has its type's default value.
    """
    extension = POOL.FindExtensionByName(extension_name)
    # Protobuf parses options with the default pool, which does not know our extensions.
    extended = extension.containing_type
    assert extended is not None, f"{extension_name} extends no message"
    options: Any = GetMessageClass(extended).FromString(descriptor.GetOptions().SerializeToString())
    return options.Extensions[extension]
