"""A backend's checks as a pytest class: one test a graph.

from acme_layouts import Acme
from relayout.testing import BackendTests

class TestAcme(BackendTests):
    backend = Acme
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from relayout.legalization import BackendSpec
from relayout.testing.checks import backend_faults, check_graph
from relayout.testing.graphs import SampleGraph, sample_graphs


class BackendTests:
    """The tests of one backend. Name a subclass as pytest's classes are named; relayout's pytest plugin does the rest.

    `backend` is whatever `load_backend` takes, `options` are its options. A graph without a legal model fails unless
    its name fits one of the patterns `allow_infeasible`. `graphs` may add models of your own.
    """

    backend: ClassVar[BackendSpec]
    options: ClassVar[Mapping[str, Any]] = {}
    allow_infeasible: ClassVar[Sequence[str]] = ()

    @classmethod
    def graphs(cls) -> list[SampleGraph]:
        """The graphs that the backend is run through."""
        return sample_graphs()

    def test_class(self) -> None:
        """It can be made, its name is its own, and its methods are those that relayout calls."""
        faults = list(backend_faults(self.backend, self.options))
        assert not faults, "\n".join(map(str, faults))

    def test_graph(self, relayout_graph: SampleGraph) -> None:
        """Its answers about one graph, and the legal model that they lead to."""
        may_fail = any(fnmatchcase(relayout_graph.name, pattern) for pattern in self.allow_infeasible)
        not_compared: dict[str, str] = {}
        faults = check_graph(self.backend, relayout_graph, options=self.options, not_compared=not_compared)
        if relayout_graph.runs and not_compared:
            warnings.warn(f"the numbers were not compared: {not_compared[relayout_graph.name]}", stacklevel=1)
        faults = [fault for fault in faults if not (may_fail and fault.kind == "infeasible")]
        assert not faults, "\n".join(map(str, faults))
