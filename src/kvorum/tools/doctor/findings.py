"""The result of an examination, and the table of all findings with their severities.

The names of findings are an interface: scripts read them, and docs/doctor.md explains each one.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from shlex import quote
from types import MappingProxyType
from typing import NamedTuple


class Severity(Enum):
    """How bad a finding is; the worst first."""

    CRITICAL = "critical"
    """Clients or data are harmed, or will be with the next failure."""
    WARNING = "warning"
    """The operator should act."""
    NOTICE = "notice"
    """The operator should know, and needs to do nothing."""


class Certainty(Enum):
    """How sure a finding is; the surest first."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


_CRITICAL, _WARNING, _NOTICE = Severity
Evidence = Mapping[str, int | float | str]

SEVERITIES = MappingProxyType(
    {
        # Findings about a running cluster.
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
        # Findings about data directories and configuration files.
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
    """A problem, its evidence, and the next steps."""

    name: str
    """A key of SEVERITIES."""
    certainty: Certainty
    subject: str
    """The endpoint, member, file or directory with the problem; empty for the whole cluster."""
    what: str
    """The problem and the advice, without the last full stop."""
    evidence: Evidence
    """Observed values by name; the name of a value ends in its unit."""
    run: tuple[str, ...] = ()
    """Command lines in the order to run them; unknown words stand in angle brackets."""

    @property
    def severity(self) -> Severity:
        """How bad the finding is."""
        return SEVERITIES[self.name]

    @property
    def needs_action(self) -> bool:
        """Whether the operator should act."""
        return self.severity is not Severity.NOTICE


_SEVERITY_ORDER = list(Severity)
_CERTAINTY_ORDER = list(Certainty)
_NAME_ORDER = list(SEVERITIES)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by severity, then by their order in SEVERITIES, then by certainty."""
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
    """Return a command line that a shell splits into these words.

    Words are quoted where necessary, because names and URLs come from servers.
    """
    return " ".join(word if isinstance(word, Unknown) else quote(word) for word in words)
