"""Every line of the log names the line of source that logged it, on both cores."""

import ast
import json
from pathlib import Path

import kvorum
from kvorum.compiled import MODULES
from kvorum.compiled.build import with_callers
from kvorum.compiled.extension import PACKAGE
from kvorum.raft.logger import named, with_caller
from kvorum.server.telemetry.logs import open_logger
from tests.kvorum import running_kvorum
from tests.process.client import connected

SOURCES = Path(kvorum.__file__).parent


def calling_lines(path: Path) -> set[int]:
    """Return the lines of a source at which something is called."""
    tree = ast.parse(path.read_text())
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_lines_name_the_place_where_they_are_logged(tmp_path: Path) -> None:
    flags = ("--snapshot-count=5", "--log-level=debug", f"--log-outputs=stderr,{tmp_path}/log")
    with running_kvorum(tmp_path / "data", *flags) as server, connected(server.address) as client:
        for number in range(20):
            client.put(b"k%d" % number, b"v")
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    callers = {entry["caller"]: entry["msg"] for entry in entries}
    for caller, message in callers.items():
        name, _, number = caller.rpartition(":")
        path = SOURCES / name
        assert path.is_file(), (caller, message)
        assert int(number) in calling_lines(path), (caller, message)
        # The text is in that module, up to where something is filled in.
        source = path.read_text()
        assert any(word in source for word in message.split() if len(word) > 3), (caller, message)
    rooms = {caller.partition("/")[0] for caller in callers}
    assert {"process", "server", "raft", "member"} <= rooms
    # These modules are compiled, where there is a compiled core.
    modules = {caller.partition(":")[0] for caller in callers}
    assert {"server/server.py", "raft/core.py"} <= modules


def test_places_are_added_to_what_is_compiled() -> None:
    source = (
        '"""A module."""\n'
        "from __future__ import annotations\n"
        "def f(self, logger):\n"
        "    self.shared.logger.info(\n"
        '        "é"\n'
        '    ); logger.warning("x")\n'
        "    math.log(self.logger)\n"
    )
    made = with_callers(source, "room/module.py")
    assert made.splitlines() == [
        '"""A module."""',
        "from __future__ import annotations; from kvorum.raft.logger import with_caller",
        "def f(self, logger):",
        '    with_caller(self.shared.logger, "room/module.py:4").info(',
        '        "é"',
        '    ); with_caller(logger, "room/module.py:6").warning("x")',
        "    math.log(self.logger)",
    ]


def test_every_compiled_module_stays_as_long_as_it_is() -> None:
    count = 0
    for name in MODULES:
        source = (PACKAGE.parent / (name.replace(".", "/") + ".py")).read_text()
        made = with_callers(source, name)
        assert len(made.splitlines()) == len(source.splitlines())
        ast.parse(made)
        count += made.count("with_caller(")
        # Its frame would not be found: see `kvorum.member.log_lines`.
        assert "import log_fields" not in source and "lines.warn_of_drops(" not in source, name
    assert count > 50


def test_other_loggers_are_left_alone(tmp_path: Path) -> None:
    other = object()
    assert with_caller(other, "a.py:1") is other and named(other, "raft") is other
    path = tmp_path / "log"
    logger = open_logger("zap", [str(path)], "debug", "json")
    line = with_caller(named(logger, "raft"), "room/module.py:7")
    line.debug("a message")
    line.info("a message", urls=["a"])
    line.warning("a message")
    line.error("a message")
    line.critical("a message")
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert {(each["logger"], each["caller"]) for each in found} == {("raft", "room/module.py:7")}
    assert [each["level"] for each in found] == ["debug", "info", "warn", "error", "fatal"]
