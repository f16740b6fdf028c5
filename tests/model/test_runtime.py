"""onnxruntime as relayout runs it writes nothing about a user's model outside the requested files."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CHANNELS_LAST, process, saved

pytest.importorskip("onnxruntime")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, with no word to onnxruntime on where to write or whether."""
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def test_a_check_writes_nothing_into_the_home_folder(home: Path, tmp_path: Path) -> None:
    source = saved(tmp_path / "source.onnx", CHANNELS_LAST)
    legal = tmp_path / "legal.onnx"
    done = process("legalize", source, "-o", legal, "--check")
    assert "differs by" in done.stdout + done.stderr
    assert sorted(home.rglob("*")) == []
    done = process("verify", legal, "--against", source)
    assert "differs by" in done.stdout + done.stderr
    assert sorted(home.rglob("*")) == []


def test_the_probe_for_the_size_of_a_block_writes_nothing_into_the_home_folder(home: Path, tmp_path: Path) -> None:
    source = saved(tmp_path / "source.onnx", CHANNELS_LAST)
    done = process("legalize", source, "-o", tmp_path / "legal.onnx", "--backend", "x86-nchwc")
    assert done.returncode == 0, done.stderr
    assert sorted(home.rglob("*")) == []
