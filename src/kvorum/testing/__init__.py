"""Tools for tests of programs that use the store.

Names are imported on first access, because most of them need a whole server.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.testing.cluster import Cluster
    from kvorum.testing.simulated_cluster import SimulatedCluster, SimulatedProcess
    from kvorum.testing.simulation import (
        Scenario,
        Simulated,
        SimulationError,
        simulate,
        simulated,
    )
    from kvorum.testing.store import Store
    from kvorum.testing.worker_process import WorkerError

__all__ = [
    "Cluster",
    "Scenario",
    "Simulated",
    "SimulatedCluster",
    "SimulatedProcess",
    "SimulationError",
    "Store",
    "WorkerError",
    "simulate",
    "simulated",
]

_MODULES = {
    "Cluster": "cluster",
    "WorkerError": "worker_process",
    "Scenario": "simulation",
    "Simulated": "simulation",
    "SimulatedCluster": "simulated_cluster",
    "SimulatedProcess": "simulated_cluster",
    "SimulationError": "simulation",
    "Store": "store",
    "simulate": "simulation",
    "simulated": "simulation",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name on first access."""
        if name not in _MODULES:
            raise AttributeError(f"module 'kvorum.testing' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"kvorum.testing.{_MODULES[name]}"), name)
