"""The command ends with an exit status, messages on stderr, and cleanly after an interrupt."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from command_line import BIN, CHANNELS_FIRST, Run, process, transposes

from relayout.cli.exit_status import status_of
from relayout.cli.options import layouts_by_operator
from relayout.errors import InfeasibleError, InternalError, OutOfTimeError
from relayout.report.schema import Report

# Exit status: 0, 1, 2 and 4 of a process too


def test_done_is_0_and_the_table_goes_to_stderr(model: Path, tmp_path: Path) -> None:
    done = process("legalize", model, "-o", tmp_path / "legal.onnx")
    assert (done.returncode, done.stdout) == (0, "")
    assert "transposes" in done.stderr
    assert "input image" not in done.stdout
    assert transposes(tmp_path / "legal.onnx") == 2


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "relayout", "layout", "NHWC"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("layout  NHWC\n")


def test_findings_are_1_and_go_to_stdout(model: Path) -> None:
    done = process("verify", model, "--backend", "nhwc")
    assert done.returncode == 1
    assert re.search(r"\[layout-requirement\] .* at 2 places, conv1, operand 0; ", done.stdout)
    assert done.stdout.endswith("errors\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("legalize missing.onnx -o out.onnx", "No such file"),
        ("verify", "'MODEL|FOLDER...'"),
        ("legalize model.onnx -o out.onnx --backend nhcw", "did you mean nhwc or nchw?"),
        ("legalize model.onnx -o out.onnx --nonsense", "--nonsense"),
        ("legalise model.onnx", "Did you mean 'legalize'?"),
        ("", "Usage"),
    ],
)
def test_bad_input_and_usage_are_2_and_told_on_stderr(
    arguments: str, said: str, model: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(model.parent)
    done = run(*arguments.split())
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_infeasible_is_3_and_nothing_is_written(model: Path, tmp_path: Path, run: Run) -> None:
    done = run("legalize", model, "-o", tmp_path / "out.onnx", "--max-transposes", "1")
    assert done.status == 3
    assert "no legal model has at most 1 transpose" in done.err
    assert not (tmp_path / "out.onnx").exists()


def test_an_infeasible_problem_has_a_report_too(model: Path, tmp_path: Path, run: Run) -> None:
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
        layouts_by_operator(3)  # type: ignore[arg-type]
    except TypeError as error:
        return error
    raise AssertionError


def test_our_own_fault_is_5_and_asks_for_a_report_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(fault()) == 5
    said = capsys.readouterr().err
    assert "TypeError: 'int' object is not iterable" in said
    assert "relayout/cli/options.py:" in said
    assert "please report it" in said
    assert "Traceback" not in said


def test_a_debug_variable_shows_the_traceback(
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
        os.kill(os.getpid(), signal.{number})
        while True:
            {waiting}
import sys
from relayout.cli.exit_status import status_of
try:
    work()
except BaseException as error:
    sys.exit(status_of(error))
"""


@pytest.mark.parametrize(("step", "waiting"), [("solve", "time.sleep(600)"), ("write", "pass")])
def test_an_interrupt_is_130_in_foreign_code_and_in_pythons(step: str, waiting: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(number="SIGINT", step=step, waiting=waiting)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130
    assert "relayout: interrupted" in done.stderr
    assert "Traceback" not in done.stderr


ELSEWHERE = """
import os, signal, socket
signal.signal(signal.SIGINT, signal.default_int_handler)
from relayout.cli.exit_status import status_of
from relayout.cli.progress import Bar
def work():
    with Bar(1, {limit}) as bar, bar.elsewhere(lambda: os.write(1, b"stopped")):
        {begin}
        os.kill(os.getpid(), {number})
        # As the client waits for the next event.
        ours, theirs = socket.socketpair()
        ours.recv(1)
import sys
try:
    work()
except BaseException as error:
    sys.exit(status_of(error))
"""


@pytest.mark.parametrize(
    ("limit", "number", "status"),
    [("None", "signal.SIGINT", 130), ("None", "signal.SIGTERM", 143), ("0.1", "0", 4)],
    ids=["Ctrl-C", "SIGTERM", "the limit"],
)
@pytest.mark.parametrize("begin", ["pass", "bar('solve')", "bar('check')"])
def test_work_elsewhere_is_stopped_with_the_process(limit: str, number: str, status: int, begin: str) -> None:
    code = ELSEWHERE.format(limit=limit, number=number, begin=begin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "stopped"), done.stderr
    assert "Traceback" not in done.stderr


WRITES = """import pathlib, relayout.model.onnx_file
            with relayout.model.onnx_file.replace_file(pathlib.Path("legal.onnx")):
                {kill}
                while True: pass"""


def test_a_file_that_is_being_written_is_removed_at_the_end_of_the_process(tmp_path: Path) -> None:
    code = INTERRUPTED.format(number="SIGCONT", step="write", waiting=WRITES.format(kill="os.kill(os.getpid(), 15)"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "")
    assert list(tmp_path.iterdir()) == []


def test_after_a_run_an_interrupt_is_pythons_own_again(model: Path, tmp_path: Path, run: Run) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run("legalize", model, "-o", tmp_path / "legal.onnx", "--engine", "cp-sat")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# Streams


def test_a_closed_pipe_is_no_failure(model: Path, command: Path) -> None:
    for arguments in (["backends"], ["verify", model, "--backend", "nhwc"], ["legalize", model, "-o", "-"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([command, *arguments], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert done.returncode in (0, 1)
        assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [
        ("legalize model.onnx -o out.onnx", "2>&-", 0),
        ("legalize - -o out.onnx", "<&-", 2),
        ("legalize model.onnx -o out.onnx", "0<&- 1>&- 2>&-", 0),
        ("layout NHWC", ">&-", 2),
    ],
)
def test_a_closed_stream_is_no_bug(arguments: str, closed: str, status: int, model: Path) -> None:
    script = f'"$0" {arguments} {closed}'
    done = subprocess.run(["sh", "-c", script, BIN], capture_output=True, text=True, cwd=model.parent)
    assert done.returncode == status, done.stderr
    assert "-o" not in arguments or status or transposes(model.parent / "out.onnx") == 2


def test_a_model_comes_from_a_pipe_and_goes_into_one(
    model: Path, command: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"'{command}' legalize - -b nhwc -o - -q | '{command}' verify - -b nhwc --against '{model}' -q"
    piped = ["bash", "-o", "pipefail", "-c", script]
    done = subprocess.run(piped, input=model.read_bytes(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"passed\n")
    graph = subprocess.run([command, "legalize", model, "-o", "-.json", "-q"], capture_output=True).stdout
    for given, status, said in ((graph, 0, "2 transposes of data"), (b"", 2, "")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        seen = run("inspect", "-")
        assert seen.status == status
        assert said in seen.out


TALKATIVE = """from relayout import Backend

print("imported")


class Talkative(Backend):
    name = "talkative"

    def implementations(self, node):
        print("asked")
        return super().implementations(node)
"""


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    "arguments",
    [
        "legalize model.onnx --backend talkative.py -o -",
        "legalize model.onnx --backend talkative.py --report -",
        "verify model.onnx --backend talkative.py --report -",
        "explain model.onnx --backend talkative.py --format json",
        "batch . --backend talkative.py -o out --report - --jobs 1",
        "batch . --backend talkative.py -o out --report - --jobs 2",
        "backends check talkative.py --graphs LRN --format json",
        "backends talkative.py --format json",
    ],
)
def test_what_a_backend_prints_is_not_among_the_results(arguments: str, model: Path, command: Path) -> None:
    (model.parent / "talkative.py").write_text(TALKATIVE)
    done = subprocess.run([command, *arguments.split()], cwd=model.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    assert "asked" in done.stderr


@pytest.mark.usefixtures("plain")
def test_what_native_code_prints_is_not_among_the_results(tmp_path: Path, command: Path) -> None:
    # onnx's checker prints a warning about this operator to file descriptor 1.
    scaled = onnx.parser.parse_model("""
        <ir_version: 3, opset_import: ["" : 8]>
        scaled (float[1, 2, 3, 3] x) => (float[1, 2, 3, 3] y) { y = ImageScaler <bias = [0.5, 0.5]> (x) }
    """)
    onnx.save(scaled, tmp_path / "model.onnx")
    legalize = [command, "legalize", "model.onnx", "-b", "onnx", "-o", "-"]
    done = subprocess.run(legalize, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"experimental ops: ImageScaler" in done.stderr
    assert len(json.loads(done.stdout)["nodes"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("option", [[], ["--report", "/dev/full"], ["--format", "junit"]])
def test_a_full_disk_is_2_and_no_bug(option: list[str], model: Path, command: Path) -> None:
    with open("/dev/full", "w") as full:
        verify = [command, "verify", model, "-b", "onnx", *option]
        done = subprocess.run(verify, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", ["--help", "--version", "legalize --help", ""])
def test_help_on_a_full_disk_is_2(arguments: str, command: Path) -> None:
    # Without arguments: the completion script, as --show-completion prints it for the shell that it finds.
    asked = {} if arguments else {"_RELAYOUT_COMPLETE": "source_bash"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [command, *arguments.split()], stdout=full, stderr=subprocess.PIPE, text=True, env=os.environ | asked
        )
    said = "relayout: error: the system refused\n  found:    No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", ["legalize missing.json", "", "--nonsense"])
def test_an_error_that_cannot_be_printed_keeps_its_status(arguments: str, command: Path) -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([command, *arguments.split()], stderr=full).returncode == 2


def test_help_whose_reader_has_left_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run([BIN, "--help"], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_the_operating_system_is_2_and_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(PermissionError(13, "Permission denied", "models")) == 2
    assert capsys.readouterr().err == "relayout: error: models: the system refused\n  found:    Permission denied\n"


def test_the_time_limit_holds_for_the_whole_run(model: Path, tmp_path: Path, run: Run) -> None:
    report = tmp_path / "report.json"
    done = process("legalize", model, "-o", tmp_path / "legal.onnx", "--time-limit", "0.001", "--report", report)
    assert done.returncode == 4
    assert "the time was up in the step" in done.stderr
    told = json.loads(report.read_text())
    assert (told["status"], "the time was up" in told["warnings"][0]) == ("unknown", True)
    assert "  expected: time for every step: the limit shortens the search alone\n" in done.stderr
    assert not (tmp_path / "legal.onnx").exists()
    assert run("legalize", model, "-o", tmp_path / "legal.onnx", "--time-limit", "60").status == 0
    endless = process("legalize", model, "--time-limit", "inf", "--quiet", "--engine", "cp-sat")
    assert (endless.returncode, endless.stderr) == (0, "")


def test_the_seconds_of_each_step_are_told_when_the_time_is_up() -> None:
    code = """
import threading
from relayout.cli.progress import Bar
with Bar(2, 0.2) as bar:
    bar("read")
    bar("solve")
    threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert re.search(
        r"the time was up in the step 'solve'\n.*\n  found:    read \d\.\d s, solve \d\.\d s\n", done.stderr
    )


def test_a_packed_model_is_named_as_such(model: Path, tmp_path: Path, run: Run) -> None:
    packed = tmp_path / "model.onnx.gz"
    packed.write_bytes(gzip.compress(model.read_bytes()))
    said = run("inspect", packed)
    assert said.status == 2
    assert "gzip" in said.err
    assert "gunzip" in said.err


def test_a_shell_completes_verbs_and_backends() -> None:
    for words, expected in (("relayout le", "legalize"), ("relayout verify m.onnx -b x86", "x86-nchwc")):
        count = str(len(words.split()) - 1)
        done = process(_RELAYOUT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count)
        assert done.stdout.split() == [expected]


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(CHANNELS_FIRST)
    proto.graph.node[0].name = "\N{SNOWMAN}\x1b[2J"
    onnx.save(proto, tmp_path / "model.onnx")
    done = process("verify", tmp_path / "model.onnx", "--backend", "nhwc", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 1
    assert "\\u2603\\x1b[2J, operand 0" in done.stdout


def test_the_progress_bar_appears_in_a_terminal() -> None:
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
    bar.improved(12345, 6789)
"""
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    shown = b"".join(chunks(ours)).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, b"")
    assert "reading the [model]" in shown
    assert "1/3" in shown
    assert "solving it: cost 12,345, bound 6,789" in shown


def chunks(descriptor: int) -> Iterator[bytes]:
    """The text that a terminal shows, to its end: Linux says EIO there."""
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            return
        if not chunk:
            return
        yield chunk
