"""What an examination returns, and the table of everything that can be found.

The names are an interface: scripts read them, and docs/doctor.md explains each of them.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from shlex import quote
from types import MappingProxyType
from typing import NamedTuple


class Severity(Enum):
    """How bad it is; the worst first."""

    CRITICAL = "critical"
    """Clients or data are harmed, or will be with the next failure."""
    WARNING = "warning"
    """Somebody should act."""
    NOTICE = "notice"
    """Worth knowing; nothing needs to be done."""


class Certainty(Enum):
    """How sure it is; the surest first."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


_CRITICAL, _WARNING, _NOTICE = Severity
Evidence = Mapping[str, int | float | str]

SEVERITIES = MappingProxyType(
    {
        # Of a cluster.
        "quorum-lost": _CRITICAL,
        "no-leader": _CRITICAL,
        "several-clusters": _CRITICAL,
        "alarm-corrupt": _CRITICAL,
        "alarm-nospace": _CRITICAL,
        "hashes-differ": _CRITICAL,
        "leader-behind": _CRITICAL,
        "certificate-expired": _CRITICAL,
        "versions-incompatible": _CRITICAL,
        "member-unreachable": _WARNING,
        "leader-changes": _WARNING,
        "log-disk-slow": _WARNING,
        "database-disk-slow": _WARNING,
        "network-slow": _WARNING,
        "clock-skew": _WARNING,
        "quota-near": _WARNING,
        "quotas-differ": _WARNING,
        "fragmentation": _WARNING,
        "member-behind": _WARNING,
        "learner-behind": _WARNING,
        "certificate-ends-soon": _WARNING,
        "proposals-pending": _WARNING,
        "proposals-failing": _WARNING,
        "watchers-slow": _WARNING,
        "versions-differ": _NOTICE,
        "downgrade-under-way": _NOTICE,
        "even-voters": _NOTICE,
        "single-member": _NOTICE,
        "metrics-unreadable": _NOTICE,
        # Of data directories.
        "directory-unreadable": _CRITICAL,
        "log-corrupt": _CRITICAL,
        "log-missing": _CRITICAL,
        "snapshot-missing": _CRITICAL,
        "database-missing": _CRITICAL,
        "database-corrupt": _CRITICAL,
        "database-ahead-of-log": _CRITICAL,
        "database-behind-log": _CRITICAL,
        "format-too-new": _CRITICAL,
        "directories-of-two-kinds": _CRITICAL,
        "committed-entries-lost": _CRITICAL,
        "disk-full": _CRITICAL,
        "configuration-invalid": _CRITICAL,
        "configuration-of-another-member": _CRITICAL,
        "directory-in-use": _WARNING,
        "disk-nearly-full": _WARNING,
        "owners-differ": _WARNING,
        "snapshot-broken": _WARNING,
        "alarm-stored": _WARNING,
        "election-timeout-short": _WARNING,
        "clusters-differ": _WARNING,
        "copies-of-one-member": _WARNING,
        "configuration-doubtful": _NOTICE,
        "directory-open-to-others": _NOTICE,
        "directory-of-etcd": _NOTICE,
        "log-torn": _NOTICE,
        "leftovers": _NOTICE,
        "recover-from": _NOTICE,
    }
)


class Finding(NamedTuple):
    """Something that is wrong."""

    name: str
    """A key of SEVERITIES."""
    certainty: Certainty
    subject: str
    """The endpoint, member, file or directory that has it; empty if it is the cluster."""
    what: str
    """A sentence without a full stop."""
    evidence: Evidence
    """What was seen: numbers with their units, by names that end in the unit."""
    run: tuple[str, ...] = ()
    """Command lines, the first one first; what is not known stands in angle brackets."""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return SEVERITIES[self.name]

    @property
    def needs_action(self) -> bool:
        """Whether somebody should act."""
        return self.severity is not Severity.NOTICE


_SEVERITY_ORDER = list(Severity)
_CERTAINTY_ORDER = list(Certainty)
_NAME_ORDER = list(SEVERITIES)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order in which they should be read."""
    return sorted(
        findings,
        key=lambda each: (
            _SEVERITY_ORDER.index(each.severity),
            _NAME_ORDER.index(each.name),
            _CERTAINTY_ORDER.index(each.certainty),
        ),
    )


class Unknown(str):
    """A word of a command line that the reader has to fill in, as `<name>`."""

    __slots__ = ()


def command_line(*words: str) -> str:
    """Return a command line that a shell reads as these words.

    Names and URLs come from servers, and are quoted if they are more than plain words.
    """
    return " ".join(word if isinstance(word, Unknown) else quote(word) for word in words)
