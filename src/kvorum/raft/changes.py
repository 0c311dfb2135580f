"""Membership changes as the application proposes them.

A first-version change names one node. A second-version change names any number of nodes, and how to
enter and leave the joint configuration that more than one change needs. An empty second-version
change with the automatic transition asks to leave the joint configuration.
"""

from typing import Final, NamedTuple


class ChangeType:
    """The kinds of change to one node."""

    ADD_NODE: Final = 0
    REMOVE_NODE: Final = 1
    UPDATE_NODE: Final = 2
    ADD_LEARNER_NODE: Final = 3


class Transition:
    """How to enter and leave a joint configuration."""

    AUTO: Final = 0
    JOINT_IMPLICIT: Final = 1
    JOINT_EXPLICIT: Final = 2


class Change(NamedTuple):
    """The change of one node; node 0 makes it a no-op."""

    type: int
    node_id: int


class ConfChangeV2(NamedTuple):
    """Any number of changes, applied at once."""

    transition: int = Transition.AUTO
    changes: tuple[Change, ...] = ()
    context: bytes = b""

    def leaves_joint(self) -> bool:
        """Return whether applying this leaves the joint configuration."""
        return self.transition == Transition.AUTO and not self.changes

    def enters_joint(self) -> bool:
        """Return whether applying this enters a joint configuration."""
        return self.transition != Transition.AUTO or len(self.changes) > 1

    def auto_leave(self) -> bool:
        """Return whether the leader proposes to leave the joint configuration automatically."""
        return self.transition != Transition.JOINT_EXPLICIT

    def as_v2(self) -> "ConfChangeV2":
        """Return this change itself."""
        return self


class ConfChange(NamedTuple):
    """The change of one node, in the first version's form."""

    type: int
    node_id: int
    context: bytes = b""
    id: int = 0

    def as_v2(self) -> ConfChangeV2:
        """Return the same change in the second version's form."""
        return ConfChangeV2(Transition.AUTO, (Change(self.type, self.node_id),), self.context)
