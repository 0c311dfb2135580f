"""Every panel and alert of etcd's official dashboard has its series in a cluster of ours."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.members import Cluster, Member, running_cluster
from tests.server.telemetry.mixin import ALERTS, PANELS, Series
from tests.server.telemetry.traffic import scrape
from tests.waiting import until

Shown = list[tuple[str, dict[str, str]]]


def shown(member: Member) -> Shown:
    """Return name and labels of every series of a member."""
    return [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(scrape(member.address))
        for sample in family.samples
    ]


def is_selected(found: Shown, wanted: Series) -> bool:
    """Return whether an expression's selector selects anything."""
    name, labels = wanted
    return any(
        each == name
        and all(re.fullmatch(value, has.get(label, "")) for label, value in labels.items())
        for each, has in found
    )


def missing(member: Member) -> set[str]:
    """Return the panels and alerts that would be empty."""
    found = shown(member)
    return {
        title
        for title, series in (*PANELS.items(), *ALERTS.items())
        if not all(is_selected(found, each) for each in series)
    }


def until_complete(cluster: Cluster) -> None:
    """Wait for the first probes of each other, of which there are no series before."""
    for member in cluster:
        until(f"{member} shows everything", lambda member=member: not missing(member))  # type: ignore[misc]


@pytest.mark.long
def test_no_panel_and_no_alert_is_without_series(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "kvorum", 3, "--metrics=extensive") as cluster:
        cluster[0].put(b"key")
        until_complete(cluster)
        # The test would fail if something were missing: one alert needs extensive metrics.
        found = [each for each in shown(cluster[0]) if "handling_seconds" not in each[0]]
        assert not all(is_selected(found, each) for each in ALERTS["etcdGRPCRequestsSlow"])
