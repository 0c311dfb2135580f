"""`kvorum config check FILE`: list all mistakes in a configuration file.

A server stops at the first mistake, before it warns of unknown keys. The exit code is 0 if etcd
would start with the file, and 1 if not. The check opens no ports, creates no files and sends no
requests. `kvorum config sample` prints a file with every key.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kvorum.network.tls.security import Security, is_secure
from kvorum.network.urls import Url, is_ip
from kvorum.process.settings.checks import mistakes, settle
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.environment import set_in_environment, variables_of
from kvorum.process.settings.file import KEYS, ConfigProblem, Content, read_content
from kvorum.process.settings.file_keys import SECTIONS, place_of
from kvorum.process.settings.flags import BY_NAME, REMOVED, FlagError, parse_arguments
from kvorum.process.settings.nearest import nearest
from kvorum.process.settings.sample import sample
from kvorum.process.settings.suggestions import suggestions
from kvorum.server.telemetry.logs import STREAMS, escaped, open_logger, rules_for
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    check_initial_cluster,
    parse_initial_cluster,
)

USAGE = """Usage:

  kvorum config check FILE [flags]
    List all mistakes of a configuration file, and what a server would ignore: unknown keys,
    and flags and variables beside the file. Exit code 0 if a server would start with it, else 1.

  kvorum config sample
    Print a file with every key, its meaning and its default.
"""


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command with the arguments after `config`; return its exit code."""
    if list(arguments) == ["sample"]:
        sys.stdout.write(sample())
        return 0
    if len(arguments) < 2 or arguments[0] != "check" or arguments[1].startswith("-"):
        _write(sys.stderr, USAGE)
        return 2
    path = arguments[1]
    try:
        data = Path(path).read_bytes()
        flags, rest = parse_arguments(arguments[2:])
    except OSError as error:
        _write(sys.stderr, f"{path}: {error.strerror}")
        return 1
    except FlagError as error:
        _write(sys.stderr, f"{error}\n{USAGE}")
        return 2
    if rest:
        _write(sys.stderr, f'"{rest[0]}" is not a valid flag\n{USAGE}')
        return 2
    return _tell(path, data, flags, environment)


def _tell(
    path: str, data: bytes, flags: Mapping[str, object], environment: Mapping[str, str]
) -> int:
    try:
        content = read_content(data)
    except ConfigError as error:
        _write(sys.stdout, f"{path}: error: {error}")
        return 1
    problems = list(find_problems(content))
    for problem in problems:
        _write(sys.stdout, f"{path}: error: {problem.text}")
        if problem.advice:
            _write(sys.stdout, f"    {problem.advice}")
    for text in (*find_ignored(content), *_beside(flags, environment)):
        _write(sys.stdout, f"{path}: ignored: {text}")
    if not problems:
        config = settle(content.given)
        for message, fields in suggestions(config, content.given):
            shown = "".join(f"  {name}={value}" for name, value in fields.items())
            _write(sys.stdout, f"{path}: warning: {message}{shown}")
    count = f"{len(problems)} error{'s' if len(problems) > 1 else ''}" if problems else "no errors"
    _write(sys.stdout, f"{path}: {count}; a server would {'not ' if problems else ''}start with it")
    return 1 if problems else 0


def find_problems(content: Content) -> Iterator[ConfigProblem]:
    """Yield the mistakes that keep a server from starting with this file, in etcd's order."""
    yield from content.problems
    try:
        config = settle(content.given)
    except ConfigError as error:
        yield ConfigProblem(str(error))
        return
    yield from map(ConfigProblem, _log_mistakes(config))
    found = list(mistakes(config, content.given))
    # The client and the peer side share TLS versions and suites, so a mistake may come twice.
    yield from map(ConfigProblem, dict.fromkeys(found))
    yield from map(ConfigProblem, _missing_files(config))
    yield from map(ConfigProblem, _cluster_mistakes(config))


def find_ignored(content: Content) -> Iterator[str]:
    """Yield the parts of this file that have no effect, with suggestions."""
    for key in content.unknown:
        yield f"{key}: {_explain(key)}"
    for key in content.document.repeated:
        yield f"{key}: given more than once; the last one counts"
    if content.document.is_followed:
        yield "everything after the first document"


def _beside(flags: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[str]:
    for name in flags:
        yield f"--{name}: flags have no effect beside a configuration file"
    for name in set_in_environment(environment):
        if name not in variables_of("config-file"):
            yield f"{name}: variables have no effect beside a configuration file"


def _explain(key: str) -> str:
    """Return why a key is unknown, with a suggestion if there is one."""
    section, _, name = key.lower().rpartition(".")
    plain = name.removeprefix("experimental-")
    if not section and name in REMOVED:
        return f"unknown key; {REMOVED[name]}"
    if not section and plain != name:
        meant = plain if plain in KEYS else "feature-gates"
        return f"unknown key; etcd 3.7 has no experimental keys any more, see {meant}"
    flag = BY_NAME.get(name)
    if flag is not None:
        place = place_of(flag)
        return f"belongs at {place}" if place else f"--{name} has no key in a file"
    names = {
        place.rpartition(".")[2]: place
        for place in (*KEYS, *SECTIONS)
        if place.rpartition(".")[0] == section
    }
    meant = names.get(nearest(name, names)) or nearest(key.lower(), KEYS)
    return f"unknown key; did you mean {meant}?" if meant else "unknown key"


def _log_mistakes(config: Config) -> Iterator[str]:
    """Yield the mistakes in the log's flags, without opening any of its files."""
    outputs = [output if output in STREAMS else "/dev/null" for output in config.log_outputs]
    try:
        open_logger(config.logger, outputs, config.log_level, config.log_format)
        if config.log_rotation:
            rules_for(config.log_outputs, config.log_rotation_text)
    except (ConfigError, FlagError) as error:
        yield str(error)


def _missing_files(config: Config) -> Iterator[str]:
    sides: tuple[tuple[Security, str, Sequence[Url]], ...] = (
        (
            config.client_security,
            "client-transport-security",
            (
                *config.listen_client_urls,
                *config.listen_client_http_urls,
                *config.listen_metrics_urls,
            ),
        ),
        (config.peer_security, "peer-transport-security", config.listen_peer_urls),
    )
    for security, section, urls in sides:
        if not any(map(is_secure, urls)):
            continue
        for name in ("cert_file", "key_file", "client_cert_file", "client_key_file"):
            yield from _unreadable(getattr(security, name), f"{section}.{name}")
        yield from _unreadable(security.trusted_ca_file, f"{section}.trusted_ca_file")


def _unreadable(path: str, key: str) -> Iterator[str]:
    if path and not Path(path).is_file():
        yield f"{key.replace('_', '-')}: open {path}: no such file or directory"


def _cluster_mistakes(config: Config) -> Iterator[str]:
    """Yield an error if the member does not fit its initial cluster; this resolves no names."""
    if not config.initial_cluster or Path(config.data_directory, "member", "wal").exists():
        return
    urls = config.advertise_peer_urls
    has_names = not all(url.scheme.startswith("unix") or is_ip(url.hostname) for url in urls)
    try:
        cluster = parse_initial_cluster(config.initial_cluster)
        advertised = None if has_names else [str(url) for url in urls]
        check_initial_cluster(cluster, config.name, advertised, str)
    except ClusterSettingsError as error:
        yield str(error)


def _write(stream: TextIO, text: str) -> None:
    stream.write("".join(f"{escaped(line)}\n" for line in text.splitlines()))
