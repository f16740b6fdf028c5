"""The models and the command that every test of it begins with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST, Run, runner, saved
from forked_command import forked_command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", CHANNELS_LAST)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return saved(tmp_path / "plain.onnx", CHANNELS_FIRST)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A program that is the command in a process with streams of its own, which has made its imports already."""
    with forked_command(Path(sys.executable), tmp_path_factory.mktemp("command"), os.environ) as folder:
        yield folder / "relayout"
