"""Transposes, and the megabytes that they move, left by relayout and by others, model by model, as a Markdown table.

    python benchmarks/peers.py [--models FOLDER] [--limit SECONDS]

Without a folder of .onnx files it takes the generated networks of `networks.py`. A peer that is not installed, fails on
a model or does not end in time is shown as such. Relayout's results are also run beside the originals in onnxruntime,
optimisations off. Exit status 1: relayout is above a peer somewhere, is not proved optimal, or computes another thing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measuring import Run, machine, run

TOOL = str(Path(__file__).with_name("optimizers.py"))
PEERS = ("onnxruntime", "onnxsim", "onnxslim")
# Sums in another order: a layout changes which way a kernel adds.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Left:
    """What a file spends on layouts."""

    transposes: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.transposes} ({self.bytes / 1e6:.2f})"


@dataclass(slots=True)
class Row:
    """One model: what is left in the source and by each tool; a str says why there is no number."""

    name: str
    source: Left | str
    ours: Left | str = ""
    proof: str = ""
    difference: float | None = None
    peers: dict[str, Left | str] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        if not isinstance(self.ours, Left):
            return [f"relayout: {self.ours}"]
        found = [] if self.proof == "optimal" else [f"not proved optimal: {self.proof}"]
        if self.difference is None or not self.difference <= TOLERANCE:
            found.append(f"outputs differ: {self.difference}")
        for peer, left in self.peers.items():
            if isinstance(left, Left) and self.ours.transposes > left.transposes:
                found.append(f"more transposes than {peer}")
            if isinstance(left, Left) and self.ours.bytes > left.bytes:
                found.append(f"more bytes than {peer}")
        return found


def compare(path: Path, folder: Path, peers: Sequence[str], limit: float) -> Row:
    """Every tool on one model, each in a process of its own; what they write goes to `folder`."""
    row = Row(path.stem, _count(path, limit))
    target = folder / "relayout.onnx"
    made = _tool("relayout", path, target, limit)
    if made.status:
        row.ours = made.fault
    else:
        row.ours = _count(target, limit)
        facts = json.loads(made.output)
        proved = facts["status"] == "optimal" and facts["cost"] == facts["bound"]
        row.proof = "optimal" if proved else f"{facts['status']}, bound {facts['bound']} of {facts['cost']}"
        checked = _tool("equal", path, target, limit)
        row.difference = None if checked.status else json.loads(checked.output)["difference"]
        if checked.status:
            print(f"{path.stem}: {checked.fault}", file=sys.stderr)
    for peer in peers:
        target = folder / f"{peer}.onnx"
        made = _tool(peer, path, target, limit)
        counted: Left | str = made.fault if made.status else _count(target, limit)
        row.peers[peer] = counted
    for left in folder.iterdir():
        left.unlink()
    return row


def _tool(tool: str, source: Path, target: Path, limit: float) -> Run:
    return run([sys.executable, TOOL, tool, str(source), str(target)], limit=limit)


def _count(path: Path, limit: float) -> Left | str:
    counted = run([sys.executable, TOOL, "count", str(path)], limit=limit)
    if counted.status:
        return counted.fault
    facts: dict[str, int] = json.loads(counted.output)
    return Left(facts["transposes"], facts["bytes"])


def installed(peers: Sequence[str]) -> list[str]:
    """Those of the peers that can be imported; a note on stderr for each other one."""
    found = []
    for peer in peers:
        if run([sys.executable, "-c", f"import {peer}"], limit=120).status == 0:
            found.append(peer)
        else:
            print(f"{peer} is not installed and is left out", file=sys.stderr)
    return found


def table(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[str]:
    """The table's lines: bold where relayout leaves less than every peer that gave a result."""
    yield "| model | source | relayout | " + " | ".join(peers) + " | difference | |"
    yield "|---" * (len(peers) + 5) + "|"
    for row in rows:
        results = [left for left in row.peers.values() if isinstance(left, Left)]
        ours = str(row.ours)
        if isinstance(row.ours, Left) and results and all(_below(row.ours, left) for left in results):
            ours = f"**{ours}**"
        cells = [row.name, str(row.source), ours]
        cells += [str(left) if isinstance(left, Left) else f"failed: {left}" for left in row.peers.values()]
        cells.append("" if row.difference is None else f"{row.difference:.0e}")
        cells.append("; ".join(row.faults))
        yield "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _below(ours: Left, theirs: Left) -> bool:
    return (ours.transposes, ours.bytes) != (theirs.transposes, theirs.bytes) and (
        ours.transposes <= theirs.transposes and ours.bytes <= theirs.bytes
    )


def models(folder: Path | None, into: Path) -> list[Path]:
    """The folder's models, or the generated ones, written to `into`."""
    if folder is not None:
        return sorted(folder.glob("*.onnx"))
    made = run([sys.executable, str(Path(__file__).with_name("networks.py")), str(into)])
    if made.status:
        raise SystemExit(made.errors)
    return sorted(into.glob("*.onnx"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Transposes (MB) left by relayout and its peers.")
    parser.add_argument("--models", type=Path, help="a folder of .onnx files; else generated networks")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one tool on one model")
    options = parser.parse_args(arguments)
    peers = installed(PEERS)
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as work:
        found = models(options.models, Path(made))
        if not found:
            raise SystemExit(f"no .onnx file in {options.models}")
        rows = []
        for path in found:
            print(path.stem, file=sys.stderr, flush=True)
            rows.append(compare(path, Path(work), peers, options.limit))
    print(f"Transposes on data (MB that they read and write). {machine('onnx', *PEERS)}.\n")
    print("\n".join(table(rows, peers)))
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
