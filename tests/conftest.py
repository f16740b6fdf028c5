"""Settings of every test, and its tier.

`make quick` leaves out the slow tier: folders and files that run whole models, servers, the manual or random graphs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before the first test module imports onnxruntime: its telemetry writes into the home folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

settings.register_profile(
    "relayout", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("relayout")

TESTS = Path(__file__).parent
SLOW = [
    TESTS / name
    for name in (
        "backend/test_composite.py",
        "behaviour/test_black_box_layouts.py",
        "behaviour/test_deep_graphs.py",
        "behaviour/test_many_formats.py",
        "behaviour/test_node_tests.py",
        "behaviour/test_space_to_depth.py",
        "behaviour/test_tiling.py",
        "behaviour/test_whole_models.py",
        "behaviour/test_second_run.py",
        "cli/test_backends.py",
        "cli/test_batch.py",
        "cli/test_batch_on_a_cluster.py",
        "cli/test_exit_status.py",
        "cli/test_start_up.py",
        "model/dims",
        "model/test_runtime.py",
        "ops/test_op_table.py",
        "properties",
        "relayout_api",
        "relayout_backends",
        "rewrite/test_constant_folding.py",
        "rewrite/test_operators_page.py",
        "solve/test_conflict.py",
        "solve/test_solver.py",
        "systems",
        "test_docs.py",
        "testing",
    )
]


@cache
def _is_slow(path: Path) -> bool:
    return any(path == each or each in path.parents for each in SLOW)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: of the slow tier, which `make quick` leaves out")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without searches for garbage: modules and tests live to the end, and each search would visit all of them.
    While the tests run, old objects are searched rarely: most are kept to the end too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(700, 10, 100)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the slow tier for the quick one."""
    return True if config.option.markexpr == "not slow" and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_slow(item.path):
            item.add_marker("slow")
