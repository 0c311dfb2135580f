"""Remove passwords, their hashes, and tokens from requests and stored users before display."""

from google.protobuf.message import DecodeError

from kvorum.api.pb.authpb import User
from kvorum.api.pb.etcdserverpb import InternalRaftRequest

REMOVED = "<value removed>"

_SECRETS = {
    "authenticate": ("password", "simple_token"),
    "auth_user_add": ("password", "hashedPassword"),
    "auth_user_change_password": ("password", "hashedPassword"),
}


def remove_secrets(request: InternalRaftRequest) -> bool:
    """Replace secrets in a request; return whether there were any."""
    is_any = False
    for kind, names in _SECRETS.items():
        if request.HasField(kind):
            part = getattr(request, kind)
            for name in names:
                if getattr(part, name):
                    setattr(part, name, REMOVED)
                    is_any = True
    return is_any


def data_without_secrets(data: bytes) -> bytes:
    """Return the data of an entry without secrets; unchanged if it has none."""
    try:
        request = InternalRaftRequest.FromString(data)
    except DecodeError:
        return data
    return request.SerializeToString() if remove_secrets(request) else data


def user_without_secrets(stored: bytes) -> bytes:
    """Return a stored user without the hash of its password; other bytes stay unchanged."""
    try:
        user = User.FromString(stored)
    except DecodeError:
        return stored
    if not user.password:
        return stored
    user.password = REMOVED.encode()
    return user.SerializeToString()
