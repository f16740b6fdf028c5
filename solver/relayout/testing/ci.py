"""A pytest fixture for whoever exports models: `relayout_verify` runs `relayout verify`, and fails with its findings.

    def test_the_export_is_legal(relayout_verify):
        relayout_verify("model.onnx", "--backend", "nhwc", "--baseline", "relayout.json")

It is there by pytest's entry point as soon as relayout is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def relayout_verify() -> Callable[..., str]:
    """A function of the command's arguments. It returns what the command prints, and fails the test with it where the
    exit status is not 0."""

    def run(*arguments: str | os.PathLike[str]) -> str:
        __tracebackhide__ = True
        # A process of its own: the command takes the signal of Ctrl-C over.
        command = [sys.executable, "-m", "relayout", "verify", "--quiet", *(str(each) for each in arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(command[2:])} ended with {done.returncode}\n{done.stdout}", pytrace=False)
        return done.stdout

    return run
