"""Show the members of a Raft configuration in dumps."""

from collections.abc import Iterable
from typing import Any

from kvorum.api.pb.raftpb import ConfState

_LISTS = ("voters", "learners", "voters_outgoing", "learners_next")


def conf_state_object(state: ConfState) -> dict[str, Any]:
    """Return the members as etcd writes them in JSON, without empty lists."""
    found: dict[str, Any] = {
        name: list(getattr(state, name)) for name in _LISTS if getattr(state, name)
    }
    return found | {"auto_leave": state.auto_leave}


def nodes_text(voters: Iterable[int]) -> str:
    """Return ids in hexadecimal."""
    return f"[{' '.join(f'{voter:x}' for voter in voters)}]"
