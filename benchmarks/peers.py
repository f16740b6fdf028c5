"""Compare relayout with other optimisers: transposes and megabytes left per model, as a Markdown table.

    python benchmarks/peers.py [--models FOLDER] [--peers NAME ...] [--limit SECONDS]

Without a folder of .onnx files it takes the generated networks of `networks.py`. The table marks peers that are not
installed, fail on a model or run out of time. relayout runs once for each objective. Its results are compared with the
originals in onnxruntime without optimisations. The exit status is 1 if relayout leaves more of its objective than a
peer, is not proved optimal, or computes other numbers, or if outputs do not depend on the inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import Run, machine, run

TOOL = str(Path(__file__).with_name("optimizers.py"))
PEERS = ("onnxruntime", "onnxsim", "onnxslim")
OBJECTIVES = ("bytes", "transposes")
# A layout may change the order in which a kernel sums.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Left:
    """The transposes of a file, and the bytes that they move."""

    transposes: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.transposes} ({self.bytes / 1e6:.2f})"


@dataclass(slots=True)
class Ours:
    """relayout's result for one objective. A str is the reason for a missing number.

    `difference` is that of its outputs from the source's. `moves` is the change of the source's outputs between two
    draws of the inputs.
    """

    objective: str
    left: Left | str
    proof: str = ""
    difference: float | None = None
    moves: float | None = None

    def faults(self, peers: Mapping[str, Left | str]) -> Iterator[str]:
        if not isinstance(self.left, Left):
            yield f"relayout: {self.left}"
            return
        if self.proof != "optimal":
            yield f"not proved optimal: {self.proof}"
        if self.difference is None or not self.difference <= TOLERANCE:
            yield f"outputs differ: {self.difference}"
        if not self.moves:
            yield "outputs do not move with the inputs"
        mine = getattr(self.left, self.objective)
        for peer, left in peers.items():
            if isinstance(left, Left) and mine > getattr(left, self.objective):
                yield f"more {self.objective} than {peer}"


@dataclass(slots=True)
class Row:
    """One model: the totals of the source, of relayout with each objective, and of each peer."""

    name: str
    source: Left | str
    ours: list[Ours]
    peers: dict[str, Left | str]

    @property
    def faults(self) -> list[str]:
        return [f"{ours.objective}: {fault}" for ours in self.ours for fault in ours.faults(self.peers)]


def compare(path: Path, folder: Path, peers: Sequence[str], limit: float) -> Row:
    """Run every tool on one model, each in its own process. The results go to `folder`."""
    row = Row(path.stem, _count(path, limit), [], {})
    for objective in OBJECTIVES:
        row.ours.append(_legalized(path, folder, objective, row.ours, limit))
    for peer in peers:
        target = folder / f"{peer}.onnx"
        made = _tool(peer, path, target, limit)
        counted: Left | str = made.fault if made.status else _count(target, limit)
        row.peers[peer] = counted
    for left in folder.iterdir():
        left.unlink()
    return row


def _legalized(path: Path, folder: Path, objective: str, done: Sequence[Ours], limit: float) -> Ours:
    """relayout's result for one objective. If the model equals that of another objective, it is not run again."""
    target = folder / f"{objective}.onnx"
    made = _tool(f"relayout-{objective}", path, target, limit)
    if made.status:
        return Ours(objective, made.fault)
    facts = json.loads(made.output)
    proved = facts["status"] == "optimal" and facts["cost"] == facts["bound"]
    proof = "optimal" if proved else f"{facts['status']}, bound {facts['bound']} of {facts['cost']}"
    for other in done:
        if target.read_bytes() == (folder / f"{other.objective}.onnx").read_bytes():
            return replace(other, objective=objective, proof=proof)
    ours = Ours(objective, _count(target, limit), proof)
    checked = _tool("equal", path, target, limit)
    if checked.status:
        print(f"{path.stem}: {checked.fault}", file=sys.stderr)
        return ours
    return replace(ours, **json.loads(checked.output))


def _tool(tool: str, source: Path, target: Path, limit: float) -> Run:
    return run([sys.executable, TOOL, tool, str(source), str(target)], limit=limit)


def _count(path: Path, limit: float) -> Left | str:
    counted = run([sys.executable, TOOL, "count", str(path)], limit=limit)
    if counted.status:
        return counted.fault
    facts: dict[str, int] = json.loads(counted.output)
    return Left(facts["transposes"], facts["bytes"])


def installed(peers: Sequence[str]) -> list[str]:
    """The peers that can be imported. Each missing one is noted on stderr."""
    found = []
    for peer in peers:
        if run([sys.executable, "-c", f"import {peer}"], limit=120).status == 0:
            found.append(peer)
        else:
            print(f"{peer} is not installed and is left out", file=sys.stderr)
    return found


def table(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[str]:
    """The lines of the table. Bold: relayout leaves less of its objective than every peer with a result."""
    relayout = [f"relayout, {objective}" for objective in OBJECTIVES]
    yield "| " + " | ".join(["model", "source", *peers, *relayout, "proof", "difference", "moves", ""]) + " |"
    yield "|---" * (len(peers) + len(relayout) + 6) + "|"
    for row in rows:
        cells = [row.name, str(row.source)]
        cells += [str(left) if isinstance(left, Left) else f"failed: {left}" for left in row.peers.values()]
        cells += [_shown(ours, row.peers) for ours in row.ours]
        cells.append(", ".join(dict.fromkeys(ours.proof for ours in row.ours)))
        cells.append(_number([ours.difference for ours in row.ours], max))
        cells.append(_number([ours.moves for ours in row.ours], min))
        cells.append("; ".join(row.faults))
        yield "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _shown(ours: Ours, peers: Mapping[str, Left | str]) -> str:
    results = [getattr(left, ours.objective) for left in peers.values() if isinstance(left, Left)]
    if isinstance(ours.left, Left) and results and getattr(ours.left, ours.objective) < min(results):
        return f"**{ours.left}**"
    return str(ours.left)


def _number(numbers: Sequence[float | None], of: Callable[[Sequence[float]], float]) -> str:
    known = [number for number in numbers if number is not None]
    return f"{of(known):.0e}" if len(known) == len(numbers) else ""


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
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="beside these only")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one tool on one model")
    options = parser.parse_args(arguments)
    peers = installed(options.peers)
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
