"""`doctor`: report what is wrong with a cluster or with data directories, and what to do next.

The exit code is 1 if a finding needs action, otherwise 0.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum.tools.cli.errors import BAD_ARGUMENTS, GENERAL, CommandError
from kvorum.tools.cli.output import ResultOutput, json_text, table_text
from kvorum.tools.cli.terminal import painted
from kvorum.tools.cli.text import printable
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.doctor.findings import Finding, Severity, worst_first
from kvorum.tools.offline.directories import DataDirectory

if TYPE_CHECKING:
    from kvorum.tools.doctor.configuration import ConfigurationFile

_STYLES = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}
_HEADS = ("severity", "finding", "certainty", "subject", "what")


def doctor(invocation: CtlInvocation) -> None:
    """Examine a cluster, or data directories that no member uses."""
    if invocation.arguments:
        raise CommandError("doctor command takes no arguments", BAD_ARGUMENTS)
    output = invocation.output
    output.check("simple", "json", "table")
    is_stopped = invocation.texts("data-dir") or invocation.text("config-file")
    findings, examined = _directories(invocation) if is_stopped else _cluster(invocation)
    _show(output, findings, examined)
    if any(each.needs_action for each in findings):
        output.flush()
        raise SystemExit(GENERAL)


def _cluster(invocation: CtlInvocation) -> tuple[list[Finding], list[str]]:
    from kvorum.tools.ctl.sampling import sample_cluster
    from kvorum.tools.doctor.cluster import examine_cluster

    with invocation.client(is_logged_in=False) as client:
        sample = sample_cluster(invocation, client, invocation.seconds("interval"))
    return examine_cluster(sample), [each.endpoint for each in sample.observations]


def _directories(invocation: CtlInvocation) -> tuple[list[Finding], list[str]]:
    from kvorum.tools.doctor.configuration import ConfigurationFile
    from kvorum.tools.doctor.recovery import recovery
    from kvorum.tools.doctor.stopped import examine_directory

    path = invocation.text("config-file")
    file = ConfigurationFile(path) if path else None
    directories = _list_directories(invocation, file)
    examinations = [examine_directory(directory) for directory in directories]
    records = [each.record for each in examinations if each.record is not None]
    findings = [finding for each in examinations for finding in each.findings]
    findings += recovery(records, len(examinations))
    if file is not None:
        findings += file.findings(records, time.time())
    examined = [str(directory.data) for directory in directories]
    return worst_first(findings), [*examined, path] if path else examined


def _list_directories(
    invocation: CtlInvocation, file: "ConfigurationFile | None"
) -> list[DataDirectory]:
    """Return the data directories that flags or the configuration file name."""
    data, logs = invocation.texts("data-dir"), invocation.texts("wal-dir")
    if not data and file is not None and file.config is not None:
        config = file.config
        data = [config.data_directory] if Path(config.data_directory).exists() else []
        logs = logs or ([config.wal_directory] if config.wal_directory else [])
    if logs and len(logs) != len(data):
        raise CommandError(
            f"{len(data)} --data-dir and {len(logs)} --wal-dir were given; expected is a --wal-dir "
            "for each --data-dir, in the same order, or none",
            BAD_ARGUMENTS,
        )
    directories = zip(data, logs or [""] * len(data), strict=True)
    return [DataDirectory(Path(each), Path(log) if log else None) for each, log in directories]


def _show(output: ResultOutput, findings: Sequence[Finding], examined: Sequence[str]) -> None:
    match output.form:
        case "json":
            output.line(json_text(_json(findings, examined)))
        case "table":
            output.line(table_text(_HEADS, map(_row, findings)))
        case _:
            for finding in findings:
                _lines(output, finding)
            output.styled_line(_summary(findings, examined))


def _json(findings: Sequence[Finding], examined: Sequence[str]) -> dict[str, object]:
    return {
        "healthy": not any(each.needs_action for each in findings),
        "examined": list(examined),
        "findings": [
            {
                "name": each.name,
                "severity": each.severity.value,
                "certainty": each.certainty.value,
                "subject": each.subject,
                "what": each.what,
                "evidence": dict(each.evidence),
                "run": list(each.run),
            }
            for each in findings
        ],
    }


def _row(finding: Finding) -> tuple[str, ...]:
    texts = (
        finding.severity.value,
        finding.name,
        finding.certainty.value,
        finding.subject,
        finding.what,
    )
    return tuple(map(printable, texts))


def _lines(output: ResultOutput, finding: Finding) -> None:
    head = painted(f"{finding.severity.value.upper()} {finding.name}", _STYLES[finding.severity])
    subject = f" {printable(finding.subject)}:" if finding.subject else ""
    output.styled_line(f"{head} ({finding.certainty.value}):{subject} {printable(finding.what)}")
    if finding.evidence:
        seen = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in finding.evidence.items()
        )
        output.styled_line(f"    seen: {printable(seen)}")
    for line in finding.run:
        output.styled_line(f"    run:  {printable(line)}")


def _summary(findings: Sequence[Finding], examined: Sequence[str]) -> str:
    what = printable(", ".join(examined))
    if not findings:
        return painted(f"nothing found: {what}", "green")
    counts = Counter(each.severity for each in findings)
    shown = ", ".join(f"{counts[each]} {each.value}" for each in Severity if counts[each])
    return painted(f"found: {shown}; examined: {what}", "bold")
