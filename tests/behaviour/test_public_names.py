"""The public names of `relayout`, which `test_project` lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

import relayout


@pytest.mark.parametrize("name", relayout.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(relayout, name).__name__ == name
    assert name in dir(relayout)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'legalise'"):
        relayout.legalise  # noqa: B018


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = """
import relayout.legalization, relayout.verification
assert callable(relayout.legalize) and callable(relayout.verify)
from relayout import legalize, verify
assert callable(legalize) and callable(verify)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
