"""Packages as an installer leaves them in a folder of `sys.path`."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, distribution: str, entry_points: str, modules: dict[str, str] | None = None) -> None:
    """The files that an installer writes: a distribution's metadata, and its modules."""
    metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[relayout.backends]\n{entry_points}\n")
    for name, text in (modules or {}).items():
        (folder / f"{name}.py").write_text(text)
