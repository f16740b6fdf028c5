"""The command: what it prints, what it writes, and how it ends, whatever it is given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relayout
from relayout.cli import main
from relayout.cli.arguments import dim_sizes, layouts_by_operator, named_layouts
from relayout.cli.failures import status_of
from relayout.errors import InfeasibleError, InternalError, OutOfTimeError, UsageError
from relayout.report import Report

BIN = Path(sys.executable).parent / "relayout"
HEAVY = ("ortools", "onnx", "onnx_ir", "onnxruntime", "numpy", "fastapi", "pydantic", "uvicorn", "sympy")

# Channels last around operators that ONNX defines channels first: six transposes, of which two are needed.
CHANNELS_LAST = """
<ir_version: 10, opset_import: ["" : 20]>
channels_last (float[1,8,8,4] image) => (float[1,4,4,4] features) <float[4,4,1,1] weight = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
}> {
    [in] a = Transpose <perm = [0, 3, 1, 2]> (image)
    [conv1] b = Conv (a, weight)
    c = Transpose <perm = [0, 2, 3, 1]> (b)
    d = Relu (c)
    e = Transpose <perm = [0, 3, 1, 2]> (d)
    [conv2] f = Conv (e, weight)
    g = Transpose <perm = [0, 2, 3, 1]> (f)
    h = Add (g, image)
    i = Transpose <perm = [0, 3, 1, 2]> (h)
    [pool] j = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (i)
    features = Transpose <perm = [0, 2, 3, 1]> (j)
}
"""
# As ONNX wants it: nothing to do for the backend onnx.
CHANNELS_FIRST = """
<ir_version: 10, opset_import: ["" : 20]>
channels_first (float[N,4,8,8] x) => (y) <float[4,4,1,1] w = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
}> {
    [conv] y = Conv (x, w)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", CHANNELS_LAST)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return saved(tmp_path / "plain.onnx", CHANNELS_FIRST)


def saved(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


class Said:
    """What one run of the command in this process said, and how it ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        assert "Traceback" not in err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def type_(*arguments: str | Path) -> Said:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Said(status, *capsys.readouterr())

    return type_


Run = Callable[..., Said]


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BIN, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr or "RELAYOUT_DEBUG" in environment
    return done


def transposes(path: Path) -> int:
    return sum(node.op_type == "Transpose" for node in onnx.load(path).graph.node)


def input_shape(path: Path) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]


# Start-up


@pytest.mark.parametrize("what", ["import relayout", "from relayout.cli import main; main(['--help'])"])
def test_the_package_and_the_help_import_nothing_heavy(what: str) -> None:
    code = f"{what}\nimport sys\nprint('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["loaded: []"], done.stderr


def test_legalizing_a_small_model_imports_neither_the_solver_nor_symbolic_algebra(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from relayout.cli import main
status = main(['legalize', {str(model)!r}, '-o', {str(tmp_path / "legal.onnx")!r}])
print(status, [name for name in ('ortools', 'pandas', 'fastapi', 'onnxruntime', 'sympy.core') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 []\n", done.stderr


def test_what_is_deferred_is_there_when_it_is_used() -> None:
    code = """
from relayout.cli.deferred import defer_slow_imports
defer_slow_imports()
defer_slow_imports()
import onnx_ir, sys
assert 'sympy.core' not in sys.modules
print(onnx_ir.SymbolicDim('N') * 2 + 1)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == "2*N + 1\n", done.stderr


# Public names


def test_the_public_names_are_these() -> None:
    assert relayout.__all__ == [
        "Backend",
        "BackendError",
        "Implementation",
        "InfeasibleError",
        "InputError",
        "InternalError",
        "Layout",
        "LayoutSyntaxError",
        "OutOfTimeError",
        "RelayoutError",
        "Reordering",
        "Report",
        "TensorType",
        "UsageError",
        "Verification",
        "explain",
        "legalize",
        "load_backend",
        "read_model",
        "verify",
        "write_model",
    ]


@pytest.mark.parametrize("name", relayout.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(relayout, name).__name__ == name
    assert name in dir(relayout)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'legalise'"):
        relayout.legalise  # noqa: B018


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = """
import relayout.legalize, relayout.verify
assert callable(relayout.legalize) and callable(relayout.verify)
from relayout import legalize, verify
assert callable(legalize) and callable(verify)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# Exit status, in a process of its own


def test_done_is_0_and_the_table_goes_to_stderr(model: Path, tmp_path: Path) -> None:
    done = process("legalize", model, "-o", tmp_path / "legal.onnx")
    assert (done.returncode, done.stdout) == (0, "")
    assert "transposes" in done.stderr
    assert "input image" not in done.stdout
    assert transposes(tmp_path / "legal.onnx") == 2


def test_findings_are_1_and_go_to_stdout(model: Path) -> None:
    done = process("verify", model, "--backend", "nhwc")
    assert done.returncode == 1
    assert "[layout-requirement] conv1, operand 0" in done.stdout
    assert done.stdout.endswith("errors\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("legalize missing.onnx -o out.onnx", "No such file"),
        ("legalize model.onnx", "'--output'"),
        ("legalize model.onnx -o out.onnx --backend nhcw", "did you mean nhwc or nchw?"),
        ("legalize model.onnx -o out.onnx --nonsense", "--nonsense"),
        ("legalise model.onnx", "Did you mean 'legalize'?"),
        ("", "Usage"),
    ],
)
def test_bad_input_and_usage_are_2_and_told_on_stderr(
    arguments: str, said: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    done = process(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_infeasible_is_3_and_nothing_is_written(model: Path, tmp_path: Path) -> None:
    done = process("legalize", model, "-o", tmp_path / "out.onnx", "--max-transposes", "1")
    assert done.returncode == 3
    assert "no legal model has 1 transposes or fewer" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_what_is_infeasible_has_a_report_too(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "out.onnx", "--max-transposes", "1", "--report", "-")
    report = Report.model_validate_json(said.out)
    assert (said.status, report.status, report.ok) == (3, "infeasible", False)
    assert report.before.transposes == report.after.transposes == 6


def test_conflicting_requirements_are_named(model: Path, tmp_path: Path, run: Run) -> None:
    backend = tmp_path / "strict.toml"
    backend.write_text('name = "strict"\n[[rule]]\nop = "MaxPool"\ndata = "NHWC[acme:box]"\n')
    said = run("legalize", model, "-o", tmp_path / "out.onnx", "--backend", backend)
    assert said.status == 3
    assert "pool" in said.err
    assert "NHWC[acme:box]" in said.err


def test_running_out_of_time_is_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(OutOfTimeError("no solution was found", hint="give it more time")) == 4
    assert "hint:     give it more time" in capsys.readouterr().err


def fault() -> Exception:
    try:
        dim_sizes(3)  # type: ignore[arg-type]
    except TypeError as error:
        return error
    raise AssertionError


def test_our_own_fault_is_5_and_asks_for_a_report_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(fault()) == 5
    said = capsys.readouterr().err
    assert "TypeError: 'int' object is not iterable" in said
    assert "relayout/cli/arguments.py:" in said
    assert "please report it" in said
    assert "Traceback" not in said


def test_the_traceback_is_there_for_who_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAYOUT_DEBUG", "1")
    assert status_of(fault()) == 5
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(InternalError("an invariant"), 5), (MemoryError(), 5), (InfeasibleError("no"), 3)]
)
def test_every_kind_of_failure_has_its_status(error: Exception, status: int) -> None:
    assert status_of(error) == status


INTERRUPTED = """
import os, signal, time
# A shell's background job ignores the signal, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from relayout.cli import main
from relayout.cli.progress import Bar
def work():
    with Bar(1) as bar:
        bar({step!r})
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            {waiting}
import sys
from relayout.cli.failures import status_of
try:
    work()
except BaseException as error:
    sys.exit(status_of(error))
"""


@pytest.mark.parametrize(("step", "waiting"), [("solve", "time.sleep(600)"), ("write", "pass")])
def test_an_interrupt_is_130_in_foreign_code_and_in_pythons(step: str, waiting: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(step=step, waiting=waiting)], capture_output=True, text=True
    )
    assert done.returncode == 130
    assert "relayout: interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def test_after_a_run_an_interrupt_is_pythons_own_again(model: Path, tmp_path: Path, run: Run) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run("legalize", model, "-o", tmp_path / "legal.onnx", "--engine", "cp-sat")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# Streams


def test_a_reader_who_has_seen_enough_is_no_failure(model: Path) -> None:
    for arguments in (["backends"], ["verify", model, "--backend", "nhwc"], ["legalize", model, "-o", "-"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([BIN, *arguments], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert done.returncode in (0, 1)
        assert "BrokenPipe" not in done.stderr


def test_names_that_a_terminal_cannot_show_or_would_obey_are_shown_as_codes(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(CHANNELS_FIRST)
    proto.graph.node[0].name = "\N{SNOWMAN}\x1b[2J"
    onnx.save(proto, tmp_path / "model.onnx")
    done = process("verify", tmp_path / "model.onnx", "--backend", "nhwc", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 1
    assert "\\u2603\\x1b[2J, operand 0" in done.stdout


def test_the_bar_appears_where_somebody_watches() -> None:
    pty = pytest.importorskip("pty")
    code = """
import threading
from relayout.cli import progress
progress.PATIENCE = 0
with progress.Bar(3) as bar:
    bar("reading the [model]")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    bar("solving it")
"""
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    shown = b"".join(chunks(ours)).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, b"")
    assert "reading the [model]" in shown
    assert "1/3" in shown


def chunks(descriptor: int) -> Iterator[bytes]:
    """What a terminal shows, to its end: Linux says EIO there."""
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            return
        if not chunk:
            return
        yield chunk


# legalize


def test_the_report_is_the_schemas(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--report", tmp_path / "report.json", "-q")
    assert (said.status, said.out, said.err) == (0, "", "")
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert (report.status, report.before.transposes, report.after.transposes) == ("optimal", 6, 2)
    assert report.cost == report.bound == report.after.bytes


def test_the_report_and_the_model_may_go_to_stdout(model: Path, tmp_path: Path, run: Run) -> None:
    report = run("legalize", model, "-o", tmp_path / "legal.onnx", "--report", "-")
    assert Report.model_validate_json(report.out).ok
    assert json.loads(run("legalize", model, "-o", "-").out)["version"] == 1
    assert run("legalize", model, "-o", "-", "--report", "-").status == 2


def test_the_conversions_that_remain_name_who_requires_them(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx")
    assert "conversions that remain" in said.err
    assert "conv1" in said.err


def test_check_runs_the_verifier_beside_the_source(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "o.onnx", "--backend", "nhwc", "--check", "--report", "-", "-q")
    verification = Report.model_validate_json(said.out).verification
    assert said.status == 0
    assert verification is not None
    assert verification.passed
    assert verification.numeric is not None


def test_inline_leaves_standard_operators_only_and_counts_their_transposes(
    model: Path, tmp_path: Path, run: Run
) -> None:
    said = run("legalize", model, "-o", tmp_path / "o.onnx", "--backend", "nhwc", "--inline", "--report", "-", "-q")
    assert {node.domain for node in onnx.load(tmp_path / "o.onnx").graph.node} <= {"", "ai.onnx"}
    after = Report.model_validate_json(said.out).after
    # The kernels' transposes are there too, and run on constants.
    assert (after.transposes, transposes(tmp_path / "o.onnx")) == (6, 8)


@pytest.mark.parametrize("suffixes", [(".onnx", ".json"), (".json", ".onnx"), (".json", ".json")])
def test_models_are_onnx_or_json_on_both_sides(
    suffixes: tuple[str, str], model: Path, tmp_path: Path, run: Run
) -> None:
    source, target = (tmp_path / f"{name}{suffix}" for name, suffix in zip(("in", "out"), suffixes, strict=True))
    relayout.write_model(relayout.read_model(model), source)
    assert run("legalize", source, "-o", target).status == 0
    assert run("verify", target, "--against", source).status == 0


def test_where_nothing_changes_the_file_is_the_source(plain: Path, tmp_path: Path, run: Run) -> None:
    assert run("legalize", plain, "-o", tmp_path / "legal.onnx").status == 0
    assert (tmp_path / "legal.onnx").read_bytes() == plain.read_bytes()


def test_what_is_legal_stays_as_it_is(model: Path, tmp_path: Path, run: Run) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    for source, target in ((model, first), (first, second)):
        assert run("legalize", source, "-o", target, "--backend", "nhwc").status == 0
    assert first.read_bytes() == second.read_bytes()


def test_a_model_may_be_replaced_by_its_legal_form(model: Path, run: Run) -> None:
    assert run("legalize", model, "-o", model).status == 0
    assert transposes(model) == 2
    before = model.read_bytes()
    assert run("legalize", model, "-o", model).status == 0
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("text", [CHANNELS_LAST, CHANNELS_FIRST], ids=["changed", "unchanged"])
@pytest.mark.parametrize("name", ["model.onnx", "other/legal.onnx"])
def test_weights_in_a_file_follow_the_model(text: str, name: str, tmp_path: Path, run: Run) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / name
    target.parent.mkdir(exist_ok=True)
    proto = onnx.parser.parse_model(text)
    onnx.save(proto, source, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert run("legalize", source, "-o", target).status == 0
    assert relayout.verify(target, against=proto).passed


def test_an_input_layout_moves_the_boundary(plain: Path, tmp_path: Path, run: Run) -> None:
    assert run("legalize", plain, "-o", tmp_path / "legal.onnx", "--input-layout", "x=NHWC").status == 0
    assert input_shape(tmp_path / "legal.onnx") == ["N", 8, 8, 4]
    assert transposes(tmp_path / "legal.onnx") == 1


def test_any_lets_the_solver_choose_the_boundary(model: Path, tmp_path: Path, run: Run) -> None:
    layouts = ("--input-layout", "image=any", "--output-layout", "features=any")
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", *layouts)
    assert input_shape(tmp_path / "legal.onnx") == [1, 4, 8, 8]
    assert "input image: NCHW, shape [1,4,8,8], the source's axes in the order 0,3,1,2\n" in said.err
    assert transposes(tmp_path / "legal.onnx") == 0


def test_an_input_and_an_output_that_are_named_together_lie_alike(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--input-layout", "image,features=any")
    assert "input image: NCHW, shape [1,4,8,8], the source's axes in the order 0,3,1,2, tied to features\n" in said.err
    assert "output features: NCHW, shape [1,4,4,4], the source's axes in the order 0,3,1,2, tied to image\n" in said.err
    assert transposes(tmp_path / "legal.onnx") == 0


def test_a_tie_with_what_is_not_there_is_2(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--input-layout", "image,nobody=any")
    assert said.status == 2
    assert "--input-layout image,nobody: the graph has no input or output of this name" in said.err
    assert "features, image" in said.err


def test_desired_layouts_choose_tvms_backend(model: Path, tmp_path: Path, run: Run) -> None:
    wanted = ("--desired-layout", "Conv=NHWC,OHWI", "--skip", "conv2")
    assert run("legalize", model, "-o", tmp_path / "legal.onnx", *wanted).status == 0
    graph = onnx.load(tmp_path / "legal.onnx").graph
    assert {node.name: node.domain for node in graph.node if node.op_type == "Conv"} == {
        "conv1": "relayout",
        "conv2": "",
    }


def test_options_reach_a_backend_that_is_named(model: Path, tmp_path: Path, run: Run) -> None:
    wishes = 'desired_layouts={"Conv": ["NHWC", "OHWI"]}'
    tvm = ("--backend", "convert-layout", "--backend-option", wishes, "--backend-option", 'skip=["conv2"]')
    legal = tmp_path / "legal.onnx"
    assert run("legalize", model, "-o", legal, *tvm).status == 0
    domains = {node.name: node.domain for node in onnx.load(legal).graph.node if node.op_type == "Conv"}
    assert domains == {"conv1": "relayout", "conv2": ""}
    assert run("verify", legal, *tvm).status == 0
    assert run("verify", model, *tvm).status == 1
    assert "held by    Conv 'conv2', input 0    NCHW" in run("explain", model, *tvm).out


def test_text_that_is_no_json_is_an_option_too(model: Path, tmp_path: Path, run: Run) -> None:
    oneflow = ("--backend", "auto-nhwc", "--backend-option")
    for device, kinds in (("cuda", {"relayout"}), ("cpu", {""})):
        assert run("legalize", model, "-o", tmp_path / "legal.onnx", *oneflow, f"device={device}").status == 0
        nodes = onnx.load(tmp_path / "legal.onnx").graph.node
        assert {node.domain for node in nodes if node.op_type == "Conv"} == kinds
    (tmp_path / "models").mkdir()
    model.rename(tmp_path / "models" / "model.onnx")
    assert run("batch", tmp_path / "models", "-o", tmp_path / "legal", *oneflow, "device=cpu").status == 0
    nodes = onnx.load(tmp_path / "legal" / "model.onnx").graph.node
    assert {node.domain for node in nodes} == {""}


def test_a_backends_options_are_listed_with_it(run: Run) -> None:
    said = run("backends", "tpu").out
    assert "--backend-option NAME=VALUE" in said
    assert "space_to_depth=true  (true or false)\n    whether" in said
    assert "max_batch=8  (a whole number)\n    for batches" in said
    assert "--backend-option" not in run("backends", "nhwc").out


def test_a_dims_size_is_what_its_bytes_are_priced_by(tmp_path: Path, run: Run) -> None:
    model = saved(tmp_path / "model.onnx", CHANNELS_LAST.replace("[1,", "[N,"))
    costs = []
    for size in ("N=1", "N=10"):
        said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--dim", size, "--report", "-")
        costs.append(Report.model_validate_json(said.out).cost)
    assert costs[1] == 10 * (costs[0] or 0) > 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--objective time", "bytes or transposes"),
        ("--time-limit -1", "must be positive"),
        ("--time-limit 0", "must be positive"),
        ("--time-limit nan", "must be positive"),
        ("--time-limit soon", "--time-limit"),
        ("--engine quick", "auto or cp-sat"),
        ("--max-transposes -1", "--max-transposes"),
        ("--input-layout image", "NAME=LAYOUT"),
        ("--input-layout =NHWC", "NAME=LAYOUT"),
        ("--input-layout image=N[a=HWC", "--input-layout image, layout, column 5"),
        ("--input-layout image=NHQC", "--input-layout image"),
        ("--input-layout image=NHC", "--input-layout image"),
        ("--input-layout picture=NHWC", "no input of this name"),
        ("--input-layout image=NHWC --input-layout image=NCHW", "given twice"),
        ("--output-layout image=NHWC", "no output of this name"),
        ("--dim N", "NAME=N"),
        ("--dim N=0", "1 or more"),
        ("--dim N=\N{SUPERSCRIPT TWO}", "1 or more"),
        ("--dim batch=4", "no symbolic dim of this name"),
        ("--backend nowhere.toml", "nowhere.toml"),
        ("--backend onnx --desired-layout Conv=NHWC", "does not take these options"),
        ("--desired-layout Conv", "OP=LAYOUT[,KERNEL]"),
        ("--desired-layout Conf=NHWC", "did you mean Conv?"),
        ("--desired-layout Conv=NHWQ", "NHWQ"),
        ("--desired-layout Conv=NHWC --skip conv3", "did you mean conv2 or conv1?"),
        ("--backend-option max_batch", "NAME=VALUE"),
        ("--backend-option max_batch=4", "no options"),
        ("--backend tpu --backend-option batch=4", "of max_batch, max_channels, space_to_depth"),
        ("--backend tpu --backend-option max-batch=4", "did you mean max_batch?"),
        ("--backend tpu --backend-option max_batch=many", "max_batch: the backend 'tpu' does not take this value"),
        ("--backend tpu --backend-option space_to_depth=1", "true or false"),
        ("--backend tpu --backend-option max_batch=1 --backend-option max_batch=2", "given twice"),
        ("--backend auto-nhwc --backend-option device=fpga", "cpu or cuda"),
        ("--backend x86-nchwc --backend-option block=4", "8 or 16"),
        ("--desired-layout Conv=NHWC --backend-option desired_layouts={}", "given twice"),
        ("--report .", "that is a folder"),
        ("--report nowhere/report.json", "no such folder"),
        ("--report out.onnx", "two results in one file"),
        ("-o out", "the suffix says the format"),
        ("-o out.txt", ".onnx or .json"),
        ("-o nowhere/out.onnx", "no such folder"),
        ("-o folder.onnx", "that is a folder"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(
    option: str, said: str, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("folder.onnx").mkdir()
    there = sorted(model.parent.rglob("*"))
    told = run("legalize", "model.onnx", "-o", "out.onnx", *option.split())
    assert (told.status, told.out) == (2, "")
    assert said in told.err
    assert sorted(model.parent.rglob("*")) == there


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.onnx", b""),
        ("text.onnx", b"this is no model"),
        ("graph.onnx", b'{"version": 1}'),
        ("truncated.onnx", half(onnx.parser.parse_model(CHANNELS_LAST).SerializeToString())),
        ("empty.json", b""),
        ("truncated.json", b'{"version": 1, "name": "x"'),
        ("list.json", b"[1, 2]"),
        ("number.json", b"17"),
        ("other.json", b'{"type": "FeatureCollection"}'),
        ("binary.json", bytes(range(256))),
        ("deep.json", b"[" * 100_000),
    ],
)
@pytest.mark.parametrize("command", ["legalize", "verify", "explain"])
def test_a_file_that_is_no_model_is_2_with_its_name(
    command: str, name: str, content: bytes, tmp_path: Path, run: Run
) -> None:
    (tmp_path / name).write_bytes(content)
    output = ("-o", tmp_path / "out.onnx") if command == "legalize" else ()
    said = run(command, tmp_path / name, *output)
    assert (said.status, said.out) == (2, "")
    assert name in said.err
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("what", ["folder.onnx", "missing.onnx", "missing/model.onnx", ".", "model.onnx/model.onnx"])
def test_what_is_no_file_is_2(what: str, model: Path, run: Run) -> None:
    (model.parent / "folder.onnx").mkdir()
    said = run("legalize", model.parent / what, "-o", model.parent / "out.onnx")
    assert said.status == 2
    assert not (model.parent / "out.onnx").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_2(model: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    assert run("legalize", model, "-o", folder / "out.onnx").status == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_make_it_fail_otherwise(tmp_path: Path, content: bytes) -> None:
    for suffix in (".onnx", ".json"):
        (tmp_path / f"model{suffix}").write_bytes(content)
        assert main(["explain", str(tmp_path / f"model{suffix}")]) in (0, 2)


# verify


def test_a_legal_model_passes(model: Path, tmp_path: Path, run: Run) -> None:
    run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", "nhwc")
    said = run("verify", tmp_path / "legal.onnx", "--backend", "nhwc", "--against", model)
    assert said.status == 0
    assert "features: differs by" in said.out
    assert said.out.endswith("verification for the backend nhwc passed\n")


def test_another_model_does_not_pass_against_the_source(model: Path, plain: Path, run: Run) -> None:
    said = run("verify", plain, "--against", model)
    assert said.status == 1
    assert "error: [" in said.out


@pytest.mark.parametrize(("backend", "status"), [("onnx", "verified"), ("nhwc", "failed")])
def test_the_table_and_the_report_say_whether_the_model_failed(
    backend: str, status: str, plain: Path, tmp_path: Path, run: Run
) -> None:
    said = run("verify", plain, "--backend", backend, "--report", tmp_path / "report.json")
    assert [line.split()[-2] for line in said.err.splitlines() if "| status" in line] == [status]
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).status == status


def test_the_findings_go_to_files_for_programs(model: Path, tmp_path: Path, run: Run) -> None:
    files = [tmp_path / name for name in ("report.json", "junit.xml", "log.sarif")]
    report, junit, sarif = files
    said = run("verify", model, "--backend", "nhwc", "--report", report, "--junit", junit, "--sarif", sarif)
    assert said.status == 1
    verification = Report.model_validate_json(report.read_text()).verification
    assert verification is not None
    found = len(verification.findings)
    assert said.out.count("error: [") == found
    assert ElementTree.parse(junit).getroot().attrib["failures"] == str(found)
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert len(results) == found


def test_a_report_on_stdout_has_stdout_to_itself(model: Path, run: Run) -> None:
    said = run("verify", model, "--backend", "nhwc", "--report", "-")
    assert not Report.model_validate_json(said.out).ok
    assert "conv1" in said.err


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("within.toml", "max_transposes = 6\n", 0),
        ("within.json", '{"max_transposes": 6, "max_bytes": 100000}', 0),
        ("count.toml", "max_transposes = 5\n", 1),
        ("bytes.toml", "max_bytes = 1\n", 1),
        ("word.toml", 'max_bytes = "few"\n', 2),
        ("bool.toml", "max_bytes = true\n", 2),
        ("negative.toml", "max_bytes = -1\n", 2),
        ("unknown.toml", "max_nodes = 5\n", 2),
        ("empty.toml", "", 2),
        ("list.json", "[]", 2),
        ("broken.toml", "max_bytes = \n", 2),
        ("binary.json", "\x00", 2),
    ],
)
def test_a_budget_is_kept_or_a_finding(name: str, text: str, status: int, model: Path, run: Run) -> None:
    budget = model.parent / name
    budget.write_text(text)
    said = run("verify", model, "--budget", budget)
    assert said.status == status
    assert ("[budget]" in said.out) == (status == 1)
    assert (name in said.err) == (status == 2)


def test_a_budget_that_is_not_there_is_2(model: Path, run: Run) -> None:
    assert run("verify", model, "--budget", model.parent / "none.toml").status == 2


# explain, backends, layout, version


def test_explain_says_who_gives_and_who_wants_each_value_and_its_bytes(model: Path, run: Run) -> None:
    said = run("explain", model)
    assert said.status == 0
    first = said.out.split("\n\n")[0].splitlines()
    assert first[0].startswith("1. image: ")
    assert first[0].endswith("transpose, 2048 bytes")
    assert first[1].split()[:3] == ["given", "by", "input"]
    assert [" ".join(line.split()[:2]) for line in first[2:5]] == ["wanted by", "wanted by", "held by"]
    assert any("input image" in line and "saves 1 transpose, 2048 bytes" in line for line in first[2:])
    assert said.out.endswith("2 conversions, 2560 bytes, for the backend onnx: optimal, no legal model has less\n")


def test_explain_tells_what_is_alike_once_and_sums_it_up_by_kind(tmp_path: Path, run: Run) -> None:
    blocks = "".join(
        f"""
        a{n} = Transpose <perm = [0, 3, 1, 2]> (image)
        [conv{n}] b{n} = Conv (a{n}, weight)
        [norm{n}] c{n} = Softmax <axis = 1> (b{n})
        y{n} = Transpose <perm = [0, 2, 3, 1]> (c{n})
        """
        for n in range(3)
    )
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    three (float[1,8,8,4] image) => (float[1,8,8,4] y0, float[1,8,8,4] y1, float[1,8,8,4] y2)
    <float[4,4,1,1] weight = {{
        1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
    }}> {{{blocks}}}
    """
    said = run("explain", saved(tmp_path / "three.onnx", text))
    assert "   and 2 alike: 3. c1, 4. c2\n" in said.out
    assert "   wanted by  output y0               NHWC\n" in said.out
    [row] = [line.split() for line in said.out.splitlines() if line.startswith("Conv, result 0")]
    assert row[3:] == ["NCHW", "3", "3", "saves", "3", "transposes,", "6144", "bytes"]


def test_explain_stops_at_its_limit_and_says_so(model: Path, run: Run) -> None:
    said = run("explain", model, "--limit", "1")
    assert said.status == 0
    assert "were not lifted, for --limit 1 was reached" in said.out


def test_explain_has_the_report_too_and_writes_no_model(model: Path, run: Run) -> None:
    said = run("explain", model, "--backend", "nhwc", "--report", model.parent / "report.json")
    assert "0 conversions" in said.out
    assert Report.model_validate_json((model.parent / "report.json").read_text()).cost == 0
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "report.json"]


def test_backends_lists_each_with_its_owner_and_what_it_is(run: Run) -> None:
    said = run("backends")
    assert said.status == 0
    rows = [line.split(maxsplit=3) for line in said.out.splitlines()]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {"canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"} <= {row[0] for row in rows}
    assert all(len(row) == 4 and row[1] for row in rows)


@pytest.mark.parametrize("name", ["canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"])
def test_backends_shows_what_one_wants(name: str, run: Run) -> None:
    said = run("backends", name)
    assert said.status == 0
    assert said.out.startswith(f"{name}: ")


def test_backends_shows_layouts_by_operator_and_rank(run: Run) -> None:
    blocks = run("backends", "nhwc").out.split("\n\n")
    assert "MaxPool\n  rank 3: NWC -> NWC, NWC\n  rank 4: NHWC -> NHWC, NHWC\n  rank 5: NDHWC -> NDHWC, NDHWC" in blocks
    (conv,) = [block for block in blocks if block.startswith("Conv, ")]
    assert "  rank 4: NHWC, HWIO -> NHWC\n" in conv


def test_a_backend_without_wishes_is_said_to_have_none(run: Run) -> None:
    assert run("backends", "onnx").out.endswith("\n\nAll operators are as ONNX defines them.\n")


def test_backends_shows_a_file_with_its_alternatives_and_their_costs(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\n[[rule]]\nop = "MaxPool"\n'
        '[[rule.implementation]]\ndata = "NHWC"\n[[rule.implementation]]\ndata = "NCHW"\ncost = 64\n'
    )
    said = run("backends", tmp_path / "mine.toml")
    assert said.out.startswith("mine: a table that extends onnx\n")
    assert "  rank 4: NHWC -> NHWC, NHWC or NCHW -> NCHW, NCHW (64 bytes more)\n" in said.out


def test_backends_shows_the_options_that_a_file_gives(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nextends = "auto-nhwc"\noptions = { device = "cpu" }\n')
    said = run("backends", tmp_path / "mine.toml")
    assert said.out.startswith('mine: a table that extends auto-nhwc with device="cpu"\n')


def test_a_backend_that_is_not_there_is_2(run: Run) -> None:
    assert "did you mean nhwc or nchw?" in run("backends", "nhcw").err


def test_layout_shows_dims_and_tvms_word(run: Run) -> None:
    said = run("layout", "N[a=32]C[acme:x]HWc[tile:16]")
    assert said.status == 0
    assert "rank    5" in said.out
    rows = [line.split() for line in said.out.splitlines()]
    assert ["0", "N", "32"] in rows
    assert ["1", "C", "1", "acme:x"] in rows
    assert ["4", "c", "1", "16"] in rows


def test_layout_reads_and_writes_tvms_words(run: Run) -> None:
    assert "TVM     NCHW16c" in run("layout", "NCHWc[tile:16]").out
    assert "layout  NCHWc[tile:16]" in run("layout", "--tvm", "NCHW16c").out


def test_layout_reads_tvms_and_xlas_words_as_they_stand(run: Run) -> None:
    assert "layout  NCHWc[tile:16]" in run("layout", "NCHW16c").out
    assert "XLA     {1,3,2,0} of NCHW" in run("layout", "NHWC").out
    said = run("layout", "{1,0}").out
    assert "layout  {1,0}" in said
    assert "XLA     {1,0}" in said
    assert "depends on the tensor's axes" in run("layout", "XY").out


@pytest.mark.parametrize(("text", "column"), [("N[a=3HWC", 6), ("NN", 2), ("N!", 2), ("-N", None)])
def test_a_wrong_layout_is_2_with_a_caret_under_the_fault(text: str, column: int | None, run: Run) -> None:
    said = run("layout", text)
    assert said.status == 2
    if column is not None:
        *_, shown, caret = said.err.rstrip("\n").split("\n")
        assert shown.strip() == text
        assert caret.index("^") - shown.index(text) == column - 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20))
def test_no_text_is_more_than_a_wrong_layout(text: str) -> None:
    assert main(["layout", "--", text]) in (0, 2)


def test_the_version_is_the_packages(run: Run) -> None:
    from importlib.metadata import version

    assert run("--version").out == f"relayout {version('relayout')}\n"


@pytest.mark.parametrize("command", ["legalize", "verify", "explain", "backends", "layout", "batch", "serve"])
def test_every_command_has_its_help(command: str, run: Run) -> None:
    said = run(command, "--help")
    assert said.status == 0
    assert f"Usage: relayout {command}" in said.out
    assert command in run("--help").out


# batch


def test_batch_goes_on_after_a_failure_and_ends_with_the_highest_status(model: Path, plain: Path, run: Run) -> None:
    folder, output = model.parent, model.parent / "legal"
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("no model")
    said = run("batch", folder, "-o", output, "--report", folder.parent / "reports.json")
    assert (said.status, said.out) == (2, "")
    assert sorted(path.name for path in output.iterdir()) == ["model.onnx", "plain.onnx"]
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


def test_batch_may_write_where_it_reads(model: Path, run: Run) -> None:
    assert run("batch", model.parent, "-o", model.parent).status == 0
    assert transposes(model) == 2


def test_batch_says_what_is_infeasible(model: Path, plain: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model.parent / "legal", "--max-transposes", "1")
    assert said.status == 3
    assert [path.name for path in (model.parent / "legal").iterdir()] == ["plain.onnx"]


def test_batch_needs_a_folder_with_models(tmp_path: Path, run: Run) -> None:
    assert run("batch", tmp_path / "nowhere", "-o", tmp_path / "out").status == 2
    assert run("batch", tmp_path, "-o", tmp_path / "out").status == 2
    assert list(tmp_path.iterdir()) == []


def test_batch_needs_a_folder_to_write_to(model: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model)
    assert said.status == 2
    assert "folder" in said.err


# Options of several words


def test_a_layouts_brackets_may_hold_what_parts_the_options() -> None:
    assert named_layouts("--input-layout", ["x=N[a=32]HWC"]) == {"x": "N[a=32]HWC"}
    assert layouts_by_operator(["Conv=N[m:a,b]HWC,OHWI"]) == {"Conv": ["N[m:a,b]HWC", "OHWI"]}


@given(st.lists(st.text(max_size=8), max_size=3))
def test_no_text_is_more_than_a_wrong_option(pairs: Sequence[str]) -> None:
    for read in (dim_sizes, layouts_by_operator, lambda pairs: named_layouts("--input-layout", pairs)):
        try:
            read(pairs)
        except UsageError as error:
            assert error.where  # noqa: PT017
        except relayout.LayoutSyntaxError as error:
            assert error.where.startswith("--input-layout")  # noqa: PT017
