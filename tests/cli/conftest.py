"""The models and the command that every test of it begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST, Run, runner, saved


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", CHANNELS_LAST)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return saved(tmp_path / "plain.onnx", CHANNELS_FIRST)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)
