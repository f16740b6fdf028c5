"""`relayout batch` over a folder with one process and with several, in turn: wall seconds of each run.

python benchmarks/batch.py FOLDER [--backend nhwc] [--jobs 2] [--repeat 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter


def seconds(folder: Path, backend: str, jobs: int) -> float:
    """The wall time of one batch, in an empty folder of results."""
    program = Path(sys.executable).parent / "relayout"
    command = [str(program), "batch", str(folder), "-b", backend, "--jobs", str(jobs)]
    with tempfile.TemporaryDirectory() as results:
        started = perf_counter()
        done = subprocess.run([*command, "-o", results], capture_output=True, text=True)
        spent = perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="nhwc")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    runs = [[seconds(given.folder, given.backend, jobs) for jobs in (1, given.jobs)] for _ in range(given.repeat)]
    one, several = (min(times) for times in zip(*runs, strict=True))
    print(f"{len(list(given.folder.glob('*.onnx')))} models: {one:.2f} s with 1 process, {several:.2f} s with "
          f"{given.jobs}: {one / several:.2f} times as fast (least of {given.repeat})")  # fmt: skip


if __name__ == "__main__":
    main()
