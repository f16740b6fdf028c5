"""The verb `verify`, with its budget and baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relayout.cli.exit_status import DONE, FINDINGS, describe, show_traceback
from relayout.cli.job import STDIN, backend_of, check_dims_of_folder, read_file, source_at
from relayout.cli.model_files import arrays_in, model_files
from relayout.cli.options import InputsFiles, Quiet, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, report_formats, write_reports
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, print_status
from relayout.errors import InputError, UsageError
from relayout.report.text_table import aligned, how_many

if TYPE_CHECKING:
    from relayout.backend.interface import Backend
    from relayout.report.results import ModelResult, Results
    from relayout.report.schema import Report

# read, verify
STEPS = 2
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|FOLDER...", help="Models, or folders with .onnx files at any depth.", show_default=False
    ),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="The JSON report of an earlier run: only what is worse than there is an error.",
        show_default=False,
    ),
]
Original = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="ORIGINAL",
        help="Compare the boundary with the original's, run both on random inputs, and compare the results. For many "
        "models a folder with the originals at the same paths.",
        show_default=False,
    ),
]
BudgetFile = Annotated[
    Path | None,
    typer.Option(
        "--budget",
        metavar="FILE",
        help="A .toml or .json file with max_transposes, max_conversions and max_bytes; the options of these names "
        "come first. Exceeding a limit is a finding.",
        show_default=False,
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="The certificate that legalize wrote with the model: derive the bound again, from the file alone.",
        show_default=False,
    ),
]


@with_options("verify")
def verify(
    models: Models,
    request: Request,
    against: Original = None,
    baseline: BaselineFile = None,
    report: ReportFiles = [],
    format: ReportFormat = None,
    budget: BudgetFile = None,
    certificate: CertificateFile = None,
    inputs: InputsFiles = [],
    quiet: Quiet = False,
) -> int:
    """List the violations of a backend's contract in models.

    The exit status is 1 if there is one."""
    # Report a wrong name before a model is read.
    backend = backend_of(request) if request.backend is not None else None
    reports = report_formats(report, format)
    found = model_files(models)
    files = list(found)
    originals = _originals([*found.values()], against)
    if [*files, *originals].count(STDIN) > 1:
        raise UsageError("two models from stdin", where="-", expected="- once", found="the model and the original")
    reads = [*files, *originals, budget, baseline, certificate, *inputs]
    check_files([("--report", path) for path in report or reports], reads=reads)
    if certificate is not None and len(files) > 1:
        raise UsageError("one certificate for many models", where=f"--certificate {certificate}", expected="one model")
    if inputs and len(files) > 1:
        raise UsageError("inputs for many models", where=f"--inputs {inputs[0]}", expected="one model")
    given = [arrays_in(path) for path in inputs]
    limits = read_budget(budget) if budget is not None else {}
    limits |= {name: value for name, value in asdict(request.options).items() if value is not None}
    earlier = read_earlier(baseline, files) if baseline is not None else None
    from relayout.report.results import Results

    is_list = len(models) > 1 or models[0].is_dir()
    done = []
    known_dims: set[str] = set()
    with Bar(STEPS * len(files)) as bar:
        for model, original in zip(files, originals, strict=True):
            task = _Task(model, original, request, backend, limits, earlier, certificate, given, is_list)
            result, dims = _result(task, bar)
            done.append(result)
            known_dims |= dims
    results = Results(tuple(done), is_list)
    write_reports(reports, results)
    # A model without an answer has no table, and text on stdout has it already.
    if not quiet and reports.get(STDOUT) != "text" and (tables := _tables(results)):
        print_status(tables)
    show = print_status if STDOUT in reports else print_result
    for each in done:
        if each.report is not None:
            show("\n".join(f"{each.model}: {line}" if is_list else line for line in finding_lines(each.report)))
        if each.error:
            print_status(f"relayout: error: {each.error}")
    if is_list and all(each.report is not None for each in done):
        # A model without an answer may have the dim.
        check_dims_of_folder(request.options.dims, known_dims)
    return max(each.status for each in done)


@dataclass(frozen=True, slots=True)
class _Task:
    """One model to verify. Without a backend, the recorded one applies. A size for a dim that the model lacks is an
    error; for one model of a list, it is left out."""

    model: Path
    original: Path | None
    request: Request
    backend: Backend | None
    limits: Mapping[str, Any]
    earlier: Mapping[Path, Report] | None
    certificate: Path | None
    inputs: Sequence[Mapping[str, Any]]
    is_of_list: bool


def _result(task: _Task, bar: Bar) -> tuple[ModelResult, frozenset[str]]:
    """The report of one model, or the error, which does not stop the others; and its symbolic dims, if sizes of dims
    are given for a list of models."""
    from relayout.report.results import ModelResult

    name, start = task.model.as_posix(), perf_counter()
    try:
        report, dims = _verified(task, bar)
    except Exception as error:
        show_traceback(error)
        status, message = describe(error)
        # Most errors already name the file.
        named = f"{name}: {message}" if task.is_of_list and name not in message else message
        return ModelResult(name, status, perf_counter() - start, error=named), frozenset()
    return ModelResult(name, DONE if report.ok else FINDINGS, perf_counter() - start, report), dims


def _verified(task: _Task, bar: Bar) -> tuple[Report, frozenset[str]]:
    from relayout.backend.calls import conversion_operators_of
    from relayout.model.dims.given_sizes import dim_names, sizes_in
    from relayout.report.baseline import against_baseline
    from relayout.report.budget import within_budget
    from relayout.report.schema import Report
    from relayout.report.totals import totals
    from relayout.verification.counterparts import Original as ReadOriginal
    from relayout.verification.verifier import verify

    options = task.request.options
    bar("read")
    source = source_at(task.model)
    subject = read_file(task.model, source, convert_opset=task.request.convert_opset)
    backend = task.backend or backend_of(task.request, subject)
    # The files themselves: the verifier also runs them as they are, without relayout's reader.
    original = source_at(task.original) if task.original is not None else None
    operators = conversion_operators_of(backend)
    models = [subject] if task.original is None else [subject, read_file(task.original, original)]
    dims = sizes_in(options.dims, *models) if task.is_of_list else options.dims or {}
    known_dims = dim_names(*models) if task.is_of_list and options.dims else frozenset[str]()
    after, before = totals(subject, dims, operators), totals(models[-1], dims, operators)
    bar("verify")
    against = ReadOriginal(original, models[-1]) if original is not None else None
    verification = verify(
        source,
        backend,
        against,
        samples=options.samples,
        dims=dims,
        inputs=task.inputs,
        static=options.static,
        certificate=task.certificate,
    )
    report = Report(status="failed", backend=backend.name, before=before, after=after, verification=verification)
    if task.earlier is not None:
        report = against_baseline(report, task.earlier.get(task.model))
    report = within_budget(report, task.limits)
    passed = report.verification is not None and report.verification.passed
    return report.model_copy(update={"status": "verified" if passed else "failed"}), known_dims


def _originals(below: Sequence[Path], against: Path | None) -> list[Path | None]:
    """The original of each model: the file, or the folder's file at the model's path below its own folder. Raises
    UsageError."""
    if against is None:
        return [None] * len(below)
    if against.is_dir():
        return [against / path for path in below]
    if len(below) > 1:
        raise UsageError(
            "one original for many models",
            where=f"--against {against}",
            expected="the folder of the originals, at the paths of the models",
            found="a file",
        )
    return [against]


def read_earlier(path: Path, files: Sequence[Path]) -> dict[Path, Report]:
    """The reports of the baseline for these models. Raises InputError, UsageError."""
    from relayout.report.baseline import read_baseline

    where = f"--baseline {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "the baseline cannot be read",
            where=where,
            expected="a report of an earlier run",
            found=error.strerror or str(error),
            hint=f"write it: relayout verify ... --report {path}",
        ) from error
    except ValueError as error:
        raise InputError("not a report", where=where, expected="JSON", found="bytes that are no UTF-8") from error
    found = read_baseline(text, where)
    if None in found:
        if len(files) > 1:
            raise UsageError(
                "a baseline of one model for many",
                where=where,
                expected="the report of a run over these models",
                found="the report of one",
            )
        return {files[0]: found[None]}
    by_path = {Path(model): earlier for model, earlier in found.items() if model is not None}
    for gone in sorted(by_path.keys() - {*files}):
        print_status(f"relayout: warning: the baseline has {gone}, which is not among the models")
    return by_path


def _tables(results: Results) -> str:
    """The counts of the one model, or a row a model."""
    from relayout.report.render import render_text

    if results.is_list:
        return "\n".join(aligned(results.table(), right={2, 3, 4}))
    report = results.models[0].report
    return "" if report is None else render_text(report.model_copy(update={"verification": None}))


def read_budget(path: Path) -> dict[str, int]:
    """The limits in a .toml or .json file, by option. Raises InputError, UsageError."""
    import tomllib

    from relayout.model.graph_json.json_text import parse_json
    from relayout.report.budget import LIMITS

    where = f"--budget {path}"
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
    except OSError as error:
        raise UsageError("the budget cannot be read", where=where, found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        expected = "TOML" if path.suffix == ".toml" else "JSON"
        raise InputError("not a budget", where=where, expected=expected, found=str(error)[:200]) from error
    known = " or ".join(LIMITS)
    if not isinstance(table, dict) or not table:
        expected, found = f"a table with {known}", "nothing" if table == {} else type(table).__name__
        raise InputError("not a budget", where=where, expected=expected, found=found)
    for key, value in table.items():
        if key not in LIMITS:
            raise InputError("not a budget", where=where, expected=known, found=str(key))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            expected = "a whole number, 0 or more"
            raise InputError("not a limit", where=f"{where}, {key}", expected=expected, found=repr(value)[:100])
    return table


def finding_lines(report: Report) -> Iterator[str]:
    """One line per cause of findings, then the comparison and the verdict."""
    from relayout.report.render import cause_lines, difference_line, price_line

    verification = report.verification
    assert verification is not None
    yield from cause_lines(verification.findings)
    numeric = verification.numeric
    if numeric is not None and numeric.status == "skipped":
        yield f"not compared: {numeric.reason}"
    for limit in numeric.untried if numeric is not None else ():
        yield f"not tried: {limit}"
    yield from map(difference_line, numeric.outputs if numeric is not None else ())
    if unknown := price_line(verification.price):
        yield unknown
    errors = sum(finding.severity == "error" for finding in verification.findings)
    verdict = "passed" if verification.passed else f"failed: {how_many(errors, 'error')}"
    yield f"verification for the backend {report.backend} {verdict}"
