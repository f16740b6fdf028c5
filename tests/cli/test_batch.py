"""`relayout batch`: a folder of models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST, Run, saved, transposes

from relayout.cli.batch_pools import processes
from relayout.cli.batch_work import JOURNAL, Item
from relayout.cli.options import Request
from relayout.cli.processors import processors
from relayout.options import Options
from relayout.report.schema import Report


def test_batch_goes_on_after_a_failure_and_ends_with_the_highest_status(model: Path, plain: Path, run: Run) -> None:
    folder, output = model.parent, model.parent / "legal"
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("no model")
    said = run("batch", folder, "-o", output, "--report", folder.parent / "reports.json")
    assert (said.status, said.out) == (2, "")
    # The journal stays for `--resume`.
    assert sorted(path.name for path in output.iterdir()) == [".relayout-batch.jsonl", "model.onnx", "plain.onnx"]
    assert transposes(output / "model.onnx") == 2
    assert "6 -> 2" in said.err
    assert "error: broken.json" in said.err
    records = json.loads((folder.parent / "reports.json").read_text())
    assert [(record["model"], record["exit_status"]) for record in records] == [
        ("broken.json", 2),
        ("model.onnx", 0),
        ("plain.onnx", 0),
    ]
    assert Report.model_validate(records[1]["report"]).ok


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_link_to_nothing_is_a_model_that_fails(jobs: str, model: Path, plain: Path, run: Run) -> None:
    lost = plain.rename(model.parent / "lost.onnx")
    broken = model.parent / "broken.json"
    broken.write_text("{")
    assert run("batch", model.parent, "-o", model.parent / "legal", "-j", jobs).status == 2
    lost.unlink()
    lost.symlink_to("nowhere.onnx")
    # Also one of which an earlier run knows.
    for resume in (["--resume"], []):
        said = run("batch", model.parent, "-o", model.parent / "legal", "-j", jobs, *resume)
        assert (said.status, "error: lost.onnx" in said.err, "error: broken.json" in said.err) == (2, True, True)
        assert (model.parent / "legal" / "model.onnx").exists()


def test_batch_may_write_where_it_reads(model: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model.parent)
    assert said.status == 0
    assert "the legal models take the places of their sources" in said.err
    assert transposes(model) == 2


def test_batch_reports_infeasible_models(model: Path, plain: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model.parent / "legal", "--max-transposes", "1")
    assert said.status == 3
    assert [path.name for path in (model.parent / "legal").glob("*.onnx")] == ["plain.onnx"]


def test_a_batch_writes_its_report_in_json_alone(model: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model.parent / "legal", "--report", model.parent / "report.xml")
    assert said.status == 2
    assert "expected: .json" in said.err
    assert not (model.parent / "legal").exists()


def test_batch_needs_a_folder_with_models(tmp_path: Path, run: Run) -> None:
    assert run("batch", tmp_path / "nowhere", "-o", tmp_path / "out").status == 2
    assert run("batch", tmp_path, "-o", tmp_path / "out").status == 2
    assert list(tmp_path.iterdir()) == []


def test_batch_of_one_file_names_the_verb_for_it(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("batch", model, "-o", tmp_path / "out")
    assert said.status == 2
    assert "found:    a file" in said.err
    assert "relayout legalize" in said.err


def test_batch_needs_a_folder_to_write_to(model: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model)
    assert said.status == 2
    assert "folder" in said.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five models: four legal ones, and one whose only node is named `deadly`."""
    made = tmp_path / "models"
    made.mkdir()
    for number in range(4):
        saved(made / f"{number}.onnx", CHANNELS_LAST if number % 2 else CHANNELS_FIRST)
    saved(made / "deadly.onnx", CHANNELS_FIRST.replace("[conv]", "[deadly]"))
    return made


def test_several_processes_write_what_one_writes(folder: Path, tmp_path: Path, run: Run) -> None:
    for jobs in ("1", "2"):
        said = run("batch", folder, "-o", tmp_path / jobs, "-j", jobs, "--report", tmp_path / f"{jobs}.report")
        assert said.status == 0, said.err
    reports = [json.loads((tmp_path / f"{jobs}.report").read_text()) for jobs in ("1", "2")]
    for record in (*reports[0], *reports[1]):
        record["report"].pop("solver")
    assert reports[0] == reports[1]
    for path in folder.iterdir():
        assert (tmp_path / "1" / path.name).read_bytes() == (tmp_path / "2" / path.name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == sorted(path.name for path in folder.iterdir())


def items(folder: Path, target: Path) -> list[Item]:
    target.mkdir()
    request = Request("dying_backend:Dying", Options())
    return [Item(path, target / path.name, request) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_attribute_that_is_no_text_is_kept_and_no_process_calls_it_invalid(
    jobs: str, tmp_path: Path, command: Path
) -> None:
    """Such as the engine of an accelerator. onnx_ir logs warnings about it in each process."""
    node = onnx.helper.make_node("Engine", ["x"], ["y"], domain="acme")
    node.attribute.append(onnx.AttributeProto(name="data", type="STRING", s=b"\xff\xfe"))
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    opsets = [onnx.helper.make_opsetid(*each) for each in (("", 20), ("acme", 1))]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets)
    (tmp_path / "models").mkdir()
    for name in ("one.onnx", "two.onnx"):
        onnx.save(model, tmp_path / "models" / name)
    arguments = ["batch", tmp_path / "models", "-o", tmp_path / "legal", "--jobs", jobs]
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 3, done.stderr
    assert onnx.load(tmp_path / "legal" / "two.onnx").graph.node == model.graph.node


def test_a_process_that_dies_fails_its_own_model_alone(folder: Path, tmp_path: Path) -> None:
    done = {each.name: each for each in processes(items(folder, tmp_path / "legal"), 2)}
    assert done.pop("deadly.onnx").message.startswith("its process was ended by SIGKILL")
    assert [each.status for each in done.values()] == [0, 0, 0, 0]


INTERRUPTED_IMPORT = """
import importlib.abc, importlib.util, signal, sys

class Interrupted(importlib.abc.Loader, importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "pebble" else None

    def exec_module(self, module):
        module.ProcessExpired = module.ProcessPool = None
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("as some modules do")

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
from relayout.cli.batch_pools import processes
try:
    next(processes([], 2))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_during_the_imports_is_one() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "interrupted\n"


@pytest.mark.parametrize(
    ("begun", "sent", "ends"),
    [
        (".relayout-batch.jsonl", signal.SIGINT, (130, "relayout: interrupted\n")),
        ("*.onnx", signal.SIGINT, (130, "relayout: interrupted\n")),
        ("*.onnx", signal.SIGTERM, (143, "")),
    ],
    ids=["Ctrl-C before the workers", "Ctrl-C while they work", "SIGTERM while they work"],
)
def test_an_interrupt_of_all_processes_is_one_line(
    begun: str, sent: signal.Signals, ends: tuple[int, str], folder: Path, tmp_path: Path
) -> None:
    """A terminal sends it to the command, to the process that workers are forked from, and to the workers. After
    SIGTERM, Python reports no semaphores that nobody has removed."""
    for number in range(4, 40):
        saved(folder / f"{number}.onnx", CHANNELS_LAST)
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import relayout.cli as c; c.run()"
    command = [sys.executable, "-c", code, "batch", folder, "-b", "nhwc", "-j", "2", "-o", tmp_path / "legal"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while process.poll() is None and not [*(tmp_path / "legal").glob(begun)]:
            time.sleep(0.01)
        os.killpg(process.pid, sent)
        try:
            _, said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert (process.returncode, said) == ends


def test_the_default_is_a_process_for_each_processor_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr("relayout.cli.processors._QUOTA", quota)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delattr("os.sched_getaffinity")
    assert processors() == 8
    for text, count in (("150000 100000", 2), ("max 100000", 8), ("1000 100000", 1), ("3200000 100000", 8)):
        quota.write_text(text)
        assert processors() == count


def test_an_interrupted_run_is_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "legal"
    (folder / "4.onnx").write_bytes(b"no model")
    assert run("batch", folder, "-o", output, "-j", "1").status == 2
    assert (output / ".relayout-batch.jsonl").exists()
    first = {path.name: path.stat().st_mtime_ns for path in output.glob("*.onnx")}
    assert len(first) == 5
    saved(folder / "4.onnx", CHANNELS_FIRST)
    saved(folder / "0.onnx", CHANNELS_LAST)
    # A process that is killed leaves the file that it writes.
    left, other = output / f".4.onnx.{'0a' * 8}.tmp", output / f".other.onnx.{'0a' * 8}.tmp"
    left.write_bytes(b"")
    other.write_bytes(b"")
    assert run("batch", folder, "-o", output, "-j", "1", "--resume", "--report", tmp_path / "r").status == 0
    again = {path.name for path in output.glob("*.onnx") if path.stat().st_mtime_ns != first.get(path.name)}
    assert again == {"0.onnx", "4.onnx"}
    assert [record["model"] for record in json.loads((tmp_path / "r").read_text())] == [
        *(f"{number}.onnx" for number in range(5)),
        "deadly.onnx",
    ]
    assert not (output / ".relayout-batch.jsonl").exists()
    assert (left.exists(), other.exists()) == (False, True)


def test_another_backend_or_a_lost_file_is_not_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "legal"
    (folder / "x.onnx").write_bytes(b"no model")
    for backend, lost in (("onnx", None), ("nhwc", None), ("nhwc", "2.onnx")):
        before = {path.name: path.stat().st_mtime_ns for path in output.glob("*.onnx")} if output.exists() else {}
        if lost:
            (output / lost).unlink()
        run("batch", folder, "-o", output, "-j", "1", "--resume", "-b", backend)
        changed = {path.name for path in output.glob("*.onnx") if path.stat().st_mtime_ns != before.get(path.name)}
        assert len(changed) == (1 if lost else 5)


def test_a_backend_whose_code_changed_is_not_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    code = tmp_path / "acme.py"
    code.write_text("from relayout.backend import Backend\nclass Acme(Backend):\n    name = 'acme'\n")
    (folder / "x.onnx").write_bytes(b"no model")
    arguments = ("batch", folder, "-o", tmp_path / "legal", "-j", "1", "--resume", "-b", f"{code}:Acme")
    times = []
    for added in ("", "", "    # other requirements\n"):
        code.write_text(code.read_text() + added)
        run(*arguments)
        times.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "legal").glob("*.onnx")})
    assert times[0] == times[1]
    assert not times[1].items() & times[2].items()


def test_a_scheduler_that_does_not_answer_is_an_error(folder: Path, tmp_path: Path, run: Run) -> None:
    said = run("batch", folder, "-o", tmp_path / "legal", "--scheduler", "nonsense://here")
    assert said.status == 2
    assert "scheduler" in said.err
    assert run("batch", folder, "-o", tmp_path / "legal", "--scheduler", "tcp://x:1", "-j", "2").status == 2


def test_a_journal_that_cannot_be_written_is_named(model: Path, run: Run) -> None:
    output = model.parent / "legal"
    output.mkdir()
    (output / ".relayout-batch.jsonl").symlink_to("/dev/full")
    said = run("batch", model.parent, "-o", output, "--jobs", "1")
    assert said.status == 2
    assert said.err.startswith(f"relayout: error: {output}/.relayout-batch.jsonl: the system refused\n")


@pytest.mark.parametrize("verb", ["batch", "verify"])
def test_a_size_counts_in_the_models_of_a_folder_that_have_the_dim(verb: str, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    saved(folder / "closed.onnx", CHANNELS_FIRST.replace("[N,", "[2,"))
    saved(folder / "open.onnx", CHANNELS_FIRST)
    output = ["-o", tmp_path / "legal"] if verb == "batch" else []
    report = tmp_path / "report.json"
    said = run(verb, folder, "--backend", "onnx", "--dim", "N=3", "--report", report, *output)
    assert said.status == 0, said.err
    assert [record["exit_status"] for record in json.loads(report.read_text())] == [0, 0]


@pytest.mark.parametrize("verb", ["batch", "verify"])
def test_a_size_of_a_dim_that_no_model_of_a_folder_has_is_an_error(verb: str, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    saved(folder / "open.onnx", CHANNELS_FIRST)
    output = ["-o", tmp_path / "legal"] if verb == "batch" else []
    report = tmp_path / "report.json"
    said = run(verb, folder, "--backend", "onnx", "--dim", "N=3", "--dim", "M=3", "--report", report, *output)
    assert said.status == 2
    assert "error: --dim M: no model has a symbolic dim of this name" in said.err
    assert "  expected: N\n" in said.err
    assert "hint" not in said.err
    said = run(verb, folder, "--backend", "onnx", "--dim", "n=3", "--report", report, *output)
    assert "  hint:     did you mean N?" in said.err
    assert [record["exit_status"] for record in json.loads(report.read_text())] == [0]
    # A model that cannot be read may have it.
    (folder / "broken.onnx").write_bytes(b"no model")
    said = run(verb, folder, "--backend", "onnx", "--dim", "M=3", "--report", report, *output)
    assert "error: --dim M" not in said.err


@pytest.mark.parametrize("is_earlier", [False, True], ids=["this version", "an earlier version"])
def test_a_resumed_run_knows_the_dims_of_what_was_done(is_earlier: bool, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    saved(folder / "open.onnx", CHANNELS_FIRST)
    broken = folder / "broken.onnx"
    broken.write_bytes(b"no model")
    arguments = ["batch", folder, "-o", tmp_path / "legal", "--dim", "N=3"]
    assert run(*arguments).status == 2
    journal = tmp_path / "legal" / JOURNAL
    if is_earlier:
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        for line in lines:
            del line["dims"]
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    saved(broken, CHANNELS_FIRST.replace("[N,", "[2,"))
    assert run(*arguments, "--resume").status == 0
