"""Encode users and roles for the database: etcd's messages, in etcd's bytes.

A change of a row modifies its message, so that fields from a newer version survive.
"""

from typing import TypeVar

from google.protobuf.message import DecodeError

from kvorum.api.pb.authpb import Role, User

Row = TypeVar("Row", User, Role)


class AuthRowError(Exception):
    """A row about users or roles cannot be read: the storage is damaged."""


def encoded(row: User | Role) -> bytes:
    """Return the bytes of a row; the same on every member."""
    return row.SerializeToString(deterministic=True)


def decoded(kind: type[Row], bucket: bytes, key: bytes, value: bytes) -> Row:
    """Return a row of a bucket; raises AuthRowError."""
    try:
        return kind.FromString(value)
    except DecodeError as error:
        raise AuthRowError(
            f"bucket {bucket.decode()}, row {key.hex()}: {error}. The storage is damaged: replace "
            "this member, or restore the cluster from a snapshot"
        ) from error
