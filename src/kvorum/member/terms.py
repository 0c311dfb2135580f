"""Check the terms of raft messages: the highest possible term would end all elections for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvorum.member.replica import Replica
    from kvorum.raft.messages import Message

TERM_MAX: Final = 1 << 63
TERM_LEAP_MAX: Final = 1 << 32
"""No cluster elects so often that a member could miss this many terms."""


def has_credible_term(replica: Replica, message: Message) -> bool:
    """Return whether a message's term may be one of this cluster's; if not, log it.

    A member without a term yet accepts any term up to TERM_MAX.
    """
    term, own = message.term, replica.node.raft.term
    if term <= TERM_MAX and (term - own <= TERM_LEAP_MAX or not own):
        return True
    replica.boundary.log_refusal(
        f"a message of {message.sender:x} with term {term}: this member is at {own}, and no "
        "cluster elects so often. Its sender is no sound member; check its data"
    )
    return False
