"""relayout's pytest plugin, by the entry point `pytest11`: the graphs of `BackendTests`, and the fixture
`check_relayout_backend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relayout.testing.checks import BackendReport


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a graph for each test of a class with `graphs` that asks for a `relayout_graph`."""
    if "relayout_graph" in metafunc.fixturenames and metafunc.cls is not None:
        metafunc.parametrize("relayout_graph", metafunc.cls.graphs(), ids=str)


@pytest.fixture
def check_relayout_backend() -> Callable[..., BackendReport]:
    """`check_backend` as a fixture: `check_relayout_backend(Acme)` fails with all faults, and returns the report."""

    def check(backend: object, **arguments: object) -> BackendReport:
        from relayout.testing.checks import check_backend

        report = check_backend(backend, **arguments)  # type: ignore[arg-type]  # check_backend's own
        assert report.passed, "\n".join(map(str, report.faults))
        return report

    return check
