"""Examine a running cluster."""

from kvorum.tools.doctor.agreement import agreement
from kvorum.tools.doctor.availability import availability
from kvorum.tools.doctor.findings import Finding, worst_first
from kvorum.tools.doctor.observations import ClusterSample
from kvorum.tools.doctor.resources import resources


def examine_cluster(sample: ClusterSample) -> list[Finding]:
    """Return the findings about a cluster, the worst first."""
    return worst_first((*availability(sample), *agreement(sample), *resources(sample)))
