"""Examine a member's configuration file, alone and together with its data directory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvorum.client.grpc.namesakes import allow_odd_names
from kvorum.network.tls.security import Security
from kvorum.process.config_check import find_ignored, find_problems
from kvorum.process.settings.checks import settle
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.file import Content, read_file
from kvorum.process.settings.suggestions import suggestions
from kvorum.tools.doctor.findings import Certainty, Evidence, Finding, command_line
from kvorum.tools.doctor.observations import Certificate
from kvorum.tools.doctor.resources import certificate_findings
from kvorum.tools.doctor.stopped import StoppedProgress

HEARTBEATS_PER_ELECTION = range(5, 10)
"""Ratios of election timeout to heartbeat interval that risk needless elections.

Below 5, no server starts; from 10 on, a late heartbeat does no harm.
"""

_CERTAIN, _LIKELY, _POSSIBLE = Certainty


class ConfigurationFile:
    """A configuration file, as far as it can be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._content: Content | None = None
        self._error = ""
        self.config: Config | None = None
        """The configuration that the file yields; None if the file yields none."""
        try:
            self._content = read_file(path)
            self.config = settle(self._content.given)
        except ConfigError as error:
            self._error = str(error)

    def findings(self, records: Sequence[StoppedProgress], now: float) -> Iterator[Finding]:
        """Find mistakes in the file, and conflicts with the data directory that it names."""
        yield from self._mistakes()
        if self.config is not None:
            yield from self._timing(self.config)
            for security in (self.config.client_security, self.config.peer_security):
                yield from _certificates(security, now)
            for record in records:
                yield from self._beside(self.config, record)

    def _finding(self, name: str, what: str, certainty: Certainty, evidence: Evidence) -> Finding:
        run = (command_line("kvorum", "config", "check", self.path),)
        return Finding(name, certainty, self.path, what, evidence, run)

    def _mistakes(self) -> Iterator[Finding]:
        if self._content is None:
            yield self._finding("configuration-invalid", self._error, _CERTAIN, {})
            return
        for problem in find_problems(self._content):
            advice = {"advice": problem.advice} if problem.advice else {}
            yield self._finding("configuration-invalid", problem.text, _CERTAIN, advice)
        for text in find_ignored(self._content):
            yield self._finding("configuration-doubtful", f"has no effect: {text}", _CERTAIN, {})
        if self.config is not None:
            for text, fields in suggestions(self.config, self._content.given):
                shown = {name: str(value) for name, value in fields.items()}
                yield self._finding("configuration-doubtful", text, _POSSIBLE, shown)

    def _timing(self, config: Config) -> Iterator[Finding]:
        heartbeat, election = config.heartbeat_milliseconds, config.election_milliseconds
        if heartbeat and election // heartbeat in HEARTBEATS_PER_ELECTION:
            yield self._finding(
                "election-timeout-short",
                "election-timeout is less than ten times heartbeat-interval, so that a few late "
                "heartbeats cost the leader its place",
                _LIKELY,
                {"heartbeat_milliseconds": heartbeat, "election_milliseconds": election},
            )

    def _beside(self, config: Config, record: StoppedProgress) -> Iterator[Finding]:
        if Path(config.data_directory).absolute() != record.directory.data.absolute():
            return
        member = record.member
        if member is not None and member.name and member.name != config.name:
            yield self._finding(
                "configuration-of-another-member",
                "the data directory is of a member with another name; give the member the file "
                "that is its own, or name its own data-dir",
                _CERTAIN,
                {
                    "name_in_file": config.name,
                    "name_in_directory": member.name,
                    "data_directory": str(record.directory.data),
                },
            )


def _certificates(security: Security, now: float) -> Iterator[Finding]:
    paths = (security.cert_file, security.client_cert_file, security.trusted_ca_file)
    for path in dict.fromkeys(path for path in paths if path):
        for certificate in _read(path):
            yield from certificate_findings(certificate, path, now)


def _read(path: str) -> Iterator[Certificate]:
    # This import is late because it is slow and only TLS needs it.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError):
        # `find_problems` reports a missing file; nothing reports a file that is not PEM.
        return
    allow_odd_names()
    for each in found:
        yield Certificate(each.subject.rfc4514_string(), each.not_valid_after_utc.timestamp())
