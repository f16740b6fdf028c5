"""The kit for authors of backends: run one through generated and shipped graphs, from Python, pytest or the command.

    from relayout.testing import check_backend

    report = check_backend(Acme)
    assert report.passed, "\\n".join(map(str, report.faults))

Nothing else in the library imports this package, and it imports pytest only as pytest's plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayout.testing.checks import KINDS, BackendReport, Fault, check_backend, check_graph
    from relayout.testing.graphs import SampleGraph, generated_graphs, sample_graphs, shipped_graphs
    from relayout.testing.suite import BackendTests

_EXPORTS = {
    "checks": "BackendReport Fault KINDS check_backend check_graph",
    "graphs": "SampleGraph generated_graphs sample_graphs shipped_graphs",
    "suite": "BackendTests",
}
_MODULE_OF = {name: f"relayout.testing.{module}" for module, names in _EXPORTS.items() for name in names.split()}

__all__ = [
    "KINDS",
    "BackendReport",
    "BackendTests",
    "Fault",
    "SampleGraph",
    "check_backend",
    "check_graph",
    "generated_graphs",
    "sample_graphs",
    "shipped_graphs",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value
