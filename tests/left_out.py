"""What a machine may lack that tests need: a line of the summary for each, and how to get it."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest


class Lack(NamedTuple):
    """What is missing, how to get it, and the reasons of skipped tests that mean it."""

    what: str
    remedy: str
    reasons: str


DEBIAN = "install the Debian package {}, or your system's package of it"
NOT_MEANT = "nothing is missing: these tests are not meant for this machine or this server"
LACKS = (
    Lack(
        "the native edge",
        "install cargo and run 'make setup' without KVORUM_EDGE=python",
        r"native edge",
    ),
    Lack(
        "the compiled core",
        "run 'make setup' without KVORUM_COMPILED=0",
        r"no core is compiled",
    ),
    Lack(
        "etcd 3.7.3",
        "install Go 1.26 or later and run 'make oracle'; these tests do not fit etcd 3.5.1",
        r"make oracle|3\.5|3\.7|^older versions|^this etcd|^an older etcd|^an older library"
        r"|^an older one",
    ),
    Lack("Go", "install Go 1.26 or later", r"Go to build|an older Go"),
    Lack("etcd before 3.6", "run 'make setup-dev' on x86-64", r"etcd at hand is older"),
    Lack(
        "the scenario and reference files",
        "set KVORUM_RAFT_SCENARIOS to the folder of etcd-io/raft's scenarios; the tables that "
        "messages and errors are checked against are not public",
        r"^no (reference|scenario files)",
    ),
    Lack("h2load", DEBIAN.format("nghttp2-client"), r"h2load"),
    Lack("the npm client", "install Node.js with npm and run 'make clients'", r"Node\.js"),
    Lack("the consumers", "run 'make consumers' as root on Debian", r"consumers are not installed"),
    Lack("a C compiler", DEBIAN.format("gcc"), r"gcc|C compiler"),
    Lack("fish", DEBIAN.format("fish"), r"\bfish\b"),
    Lack("zsh", DEBIAN.format("zsh"), r"\bzsh\b"),
    Lack("curl", DEBIAN.format("curl"), r"\bcurl\b"),
    Lack("patch", DEBIAN.format("patch"), r"\bpatch\b"),
    Lack("systemd", DEBIAN.format("systemd"), r"\bsystemd-analyze\b"),
    Lack("helm", "run 'go install helm.sh/helm/v3/cmd/helm@latest'", r"\bhelm\b"),
    Lack("openssl", DEBIAN.format("openssl"), r"\bopenssl\b"),
    Lack(
        "the rights of root",
        "run 'make test' as root in a container of its own",
        r"only root|mounted here|not allowed here",
    ),
    Lack(
        "higher limits for processes",
        "raise 'ulimit -n' to 20000 and 'ulimit -l' to 16384",
        r"descriptors|RLIMIT",
    ),
    Lack("a package for tests", "run 'make setup-dev'", r"could not import"),
    Lack("a git checkout", "clone the repository", r"not a git checkout"),
    Lack(
        "something of the machine",
        "run the tests on a Linux with an IPv6 loopback and an address of its own",
        r"/dev/full|IPv6|beside loopback|no such clock",
    ),
    Lack(
        "",
        NOT_MEANT,
        r"not meant for|has a journal|ignores this signal|^etcd'?s? |^an etcd starts|^at an etcd",
    ),
)


def lack_of(reason: str) -> Lack | None:
    """Return what the reason of a skipped test means is missing."""
    return next((each for each in LACKS if re.search(each.reasons, reason)), None)


def summary(reasons: Iterable[str]) -> list[str]:
    """Return a line for everything that is missing, which so many tests were skipped for."""
    counts: Counter[str] = Counter()
    for reason in reasons:
        lack = lack_of(reason)
        if lack is None:
            counts[f": {reason}"] += 1
        else:
            counts[f" without {lack.what}: {lack.remedy}" if lack.what else f": {lack.remedy}"] += 1
    return [f"{count} skipped{text}" for text, count in counts.most_common()]


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test, or a module with tests, was skipped."""
    assert isinstance(report.longrepr, tuple)
    return report.longrepr[2].removeprefix("Skipped: ")
