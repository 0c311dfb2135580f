"""Examine a running cluster."""

from kvorum.doctor.agreement import agreement
from kvorum.doctor.availability import availability
from kvorum.doctor.findings import Finding, worst_first
from kvorum.doctor.resources import resources
from kvorum.doctor.sights import Sight


def examine_cluster(sight: Sight) -> list[Finding]:
    """Return the findings about a cluster, the worst first."""
    return worst_first((*availability(sight), *agreement(sight), *resources(sight)))
