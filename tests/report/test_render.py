"""Reports are rendered in every format and read back from JSON."""

from __future__ import annotations

import json
import sys
from subprocess import run

import pytest
from pydantic import ValidationError

from relayout.report.formats import FORMATS
from relayout.report.render import render_text
from relayout.report.results import ModelResult, Results
from relayout.report.schema import (
    Account,
    Charge,
    Conversion,
    Entry,
    Finding,
    Numeric,
    OutputDifference,
    Price,
    Report,
    RequiredBy,
    SolverFacts,
    Totals,
    Verification,
)

BEFORE = Totals(nodes=12, transposes=4, bytes=8_000_000)
AFTER = Totals(nodes=9, transposes=1, bytes=2_070_000)
CONVERSION = Conversion(
    from_="NHWC",
    value="image",
    to="NCHW",
    kind="transpose",
    bytes=2_070_000,
    required_by=(RequiredBy(node="conv1", operand=0, layout="NCHW"),),
)
ERROR = Finding(
    rule="layout-requirement",
    node="conv[1]",
    operand=0,
    expected="NHWC",
    found="NCHW",
    message="the backend wants another layout",
)
NOTE = Finding(rule="function-missing", severity="note", node="custom\x00", message="a custom operator without a body")


def results_of(report: Report) -> Results:
    return Results((ModelResult("model.onnx", 0 if report.ok else 1, 0.5, report),))


def render_json(report: Report) -> str:
    return FORMATS["json"](results_of(report))


def report_with(*findings: Finding, **fields: object) -> Report:
    passed = all(finding.severity != "error" for finding in findings)
    facts = {"status": "optimal", "cost": 4, "bound": 4, "backend": "nhwc", "before": BEFORE, "after": AFTER}
    verification = Verification(passed=passed, findings=findings)
    return Report.model_validate({**facts, "verification": verification, **fields})


def test_of_many_assumed_sizes_the_names_of_the_model_are_shown() -> None:
    few, many = {"batch": 1, "unk__1": 64}, {**{f"unk__{n}": 64 for n in range(20)}, "batch": 1}
    assert "assumed sizes: batch=1, unk__1=64 (" in render_text(report_with(assumed=few))
    assert "assumed sizes: batch=1, unk__0=64, unk__1=64" in render_text(report_with(assumed=many))
    assert "unk__6=64 and 13 more (" in render_text(report_with(assumed=many))


def test_the_json_has_the_names_of_the_contract() -> None:
    report = report_with(
        conversions=(CONVERSION,),
        solver=SolverFacts(choices=3, kernel_choices=0, engine="reduction", seconds={"a": 0.5}),
    )
    written = json.loads(render_json(report))
    assert list(written) == [
        "schema_version",
        "status",
        "cost",
        "bound",
        "gap",
        "proof",
        "objective",
        "backend",
        "before",
        "after",
        "account",
        "assumed",
        "sizes",
        "boundary",
        "conversions",
        "transfers",
        "charges",
        "devices",
        "explanation",
        "solver",
        "verification",
        "warnings",
    ]
    conversion = ["value", "from", "to", "kind", "bytes", "passes", "padding", "nodes", "producer"]
    assert list(written["conversions"][0]) == [*conversion, "required_by", "saved", "reasons"]
    assert written["conversions"][0]["required_by"] == [{"node": "conv1", "operand": 0, "layout": "NCHW"}]


def test_a_report_that_was_read_back_equals_the_one_that_was_written() -> None:
    numeric = Numeric(
        status="compared",
        runtime="onnxruntime",
        samples=2,
        outputs=(
            OutputDifference(
                name="y", max_abs=float("inf"), max_rel=0.0, tolerance=1e-4, sensitivity=1.0, passed=False
            ),
        ),
    )
    verification = Verification(passed=False, findings=(ERROR, NOTE), numeric=numeric)
    report = report_with(conversions=(CONVERSION,), verification=verification)
    assert Report.model_validate_json(render_json(report)) == report


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Totals.model_validate({"nodes": 1, "transposes": 0, "bytes": 0, "byte": 0})


def test_a_report_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        BEFORE.nodes = 3  # type: ignore[misc]


@pytest.mark.parametrize(("cost", "bound", "gap"), [(4, 4, 0.0), (4, 3, 0.25), (0, 0, 0.0), (None, None, None)])
def test_the_gap_is_relative_to_the_cost(cost: int | None, bound: int | None, gap: float | None) -> None:
    assert report_with(cost=cost, bound=bound).gap == gap


@pytest.mark.parametrize(
    ("status", "findings", "ok"),
    [
        ("optimal", (), True),
        ("feasible", (NOTE,), True),
        ("verified", (ERROR,), False),
        ("infeasible", (), False),
        ("unknown", (), False),
    ],
)
def test_a_report_is_ok_with_a_legal_model_and_without_errors(
    status: str, findings: tuple[Finding, ...], ok: bool
) -> None:
    assert report_with(*findings, status=status).ok is ok


def test_the_table_puts_before_and_after_side_by_side() -> None:
    account = Account(transposes=Entry(count=1, bytes=2_070_000, cost=3), pads=Entry(count=1, bytes=10_000, cost=1))
    after = AFTER.model_copy(update={"pads": 1, "pad_bytes": 10_000})
    text = render_text(report_with(conversions=(CONVERSION,), bound=3, status="feasible", account=account, after=after))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert ["transposes", "4", "8.00", "1", "2.07", "3"] in rows
    assert ["pads", "0", "0.00", "1", "0.01", "1"] in rows
    assert ["total", "4", "8.00", "2", "2.08", "4"] in rows
    assert ["nodes", "12", "", "9", "", ""] in rows
    assert ["status", "", "", "feasible", "", ""] in rows
    assert ["bound", "", "", "", "", "3 (gap 25.00 %)"] in rows
    listed = text[text.index("conversions that remain") :].splitlines()
    assert listed[1] == "  2.07 MB  image: NHWC -> NCHW, transpose"
    assert listed[2].split() == ["required", "by", "conv1", "NCHW"]


def test_the_text_shows_findings_as_they_are_named_in_the_model() -> None:
    assert "error: [layout-requirement] conv[1], operand 0" in render_text(report_with(ERROR))
    assert "verification failed" in render_text(report_with(ERROR))
    assert "\x1b[" not in render_text(report_with(ERROR))


def test_nodes_that_break_one_rule_alike_are_one_line() -> None:
    many = [ERROR.model_copy(update={"node": f"conv{n}", "message": f"the kernel (w{n}) is wrong"}) for n in range(40)]
    lines = [line for line in render_text(report_with(*many)).splitlines() if line.startswith("error")]
    assert lines == [
        "error: [layout-requirement] the kernel is wrong (expected NHWC, found NCHW): at 40 places, conv0, operand 0; "
        "conv1, operand 0; conv2, operand 0; conv3, operand 0; conv4, operand 0 and 35 more"
    ]


def test_values_that_rounding_moves_are_one_line_whatever_it_measured() -> None:
    one = Finding(rule="rounding", severity="note", expected="at most 1e-4", found="1", message="this value differs")
    many = [one.model_copy(update={"node": f"v{n}", "found": str(n)}) for n in range(7)]
    lines = [line for line in render_text(report_with(*many)).splitlines() if line.startswith("note")]
    assert lines == ["note: [rounding] this value differs: at 7 places, v0; v1; v2; v3; v4 and 2 more"]
    [alone] = [line for line in render_text(report_with(many[3])).splitlines() if line.startswith("note")]
    assert alone == "note: [rounding] v3: this value differs (expected at most 1e-4, found 3)"


def test_the_verdict_says_whether_the_models_ran() -> None:
    compared = Verification(passed=True, findings=(NOTE,), numeric=Numeric(status="compared"))
    skipped = Verification(passed=True, findings=(NOTE,), numeric=Numeric(status="skipped", reason="too large"))
    assert render_text(report_with(verification=compared)).rstrip().endswith("verification passed")
    for each in (skipped, Verification(passed=True, findings=(NOTE,))):
        text = render_text(report_with(verification=each))
        assert text.rstrip().endswith("verification passed, without a run of the models")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_renders_every_report(name: str) -> None:
    assert FORMATS[name](results_of(report_with(ERROR, NOTE, conversions=(CONVERSION,))))
    assert FORMATS[name](results_of(report_with(status="infeasible", cost=None, bound=None, verification=None)))


def test_a_name_is_never_split_and_repeated_blocks_are_one_entry() -> None:
    long = "/encoder/" + "block/" * 40
    readers = [(RequiredBy(node=f"MatMul '{long}{n}'", operand=1, layout=""),) for n in range(12)]
    blocks = [
        CONVERSION.model_copy(update={"value": f"{long}{n}/x", "required_by": by}) for n, by in enumerate(readers)
    ]
    text = render_text(report_with(conversions=(*blocks, CONVERSION)))
    assert f"  24.84 MB  12 x  {long}*/x: NHWC -> NCHW, transpose\n" in text
    assert f"required by  MatMul '{long}*', input 1\n" in text
    # The dearest come first: twelve of one size are more than the one that the graph has before them.
    (least,) = [at for at, line in enumerate(text.splitlines()) if line.startswith("   2.07 MB")]
    assert text.splitlines()[least - 1].endswith("input 1")
    shown = render_text(report_with(conversions=(CONVERSION, *blocks)), top=1)
    assert f"conversions that remain\n  24.84 MB  12 x  {long}*/x" in shown
    assert "and 1 more: --top" in shown


def test_a_line_has_one_name_and_a_long_list_of_readers_is_counted() -> None:
    alike = [RequiredBy(node=f"MatMul '/up/{n}/to_k'", operand=0, layout="0,2,1") for n in range(9)]
    others = [RequiredBy(node=f"Conv '{name}'", operand=0, layout="NCHW") for name in "abcde"]
    conversion = CONVERSION.model_copy(update={"required_by": (*alike, *others)})
    text = render_text(report_with(conversions=(conversion,)))
    assert [" ".join(line.split()) for line in text.splitlines() if line.startswith(" ")] == [
        "2.07 MB image: NHWC -> NCHW, transpose",
        "required by 9 x MatMul '/up/*/to_k', input 0 0,2,1",
        *(f"required by Conv '{name}', input 0 NCHW" for name in "abc"),
        "and 2 more",
    ]


def test_factors_of_axes_are_explained_where_there_are_any() -> None:
    heads = CONVERSION.model_copy(update={"to": "2/32,1,2%32"})
    line = "axis 2 in blocks of 32: 2/32 counts the blocks, 2%32 the positions in a block\n"
    assert line in render_text(report_with(conversions=(heads,)))
    assert "in blocks of" not in render_text(report_with(conversions=(CONVERSION,)))


def test_no_line_of_the_text_ends_with_a_space() -> None:
    lines = render_text(report_with(ERROR, conversions=(CONVERSION,))).splitlines()
    assert [line for line in lines if line.endswith(" ")] == []


def test_a_cost_that_agrees_is_not_said_to_be_computed_in_part() -> None:
    def text(computed: int) -> str:
        price = Price(claimed=4, computed=computed, not_computed=("the cost of operators: noted",))
        return render_text(report_with(verification=Verification(passed=True, price=price)))

    assert "computed again: the cost 4; taken on trust: the cost of operators: noted\n" in text(4)
    assert "computed again: 3 of the cost 4; not computed: the cost of operators: noted\n" in text(3)


def test_the_cost_of_decomposed_operators_is_told_where_there_is_any() -> None:
    def text(noted: int | None) -> str:
        price = Price(claimed=4_000_000, computed=4_000_000, noted=noted)
        return render_text(report_with(verification=Verification(passed=True, price=price)))

    assert (
        "computed again: the cost 4000000; 1500000 of it for operators that are decomposed into others, as the "
        "model's metadata notes (`relayout.node_cost`)\n"
    ) in text(1_500_000)
    assert "computed again" not in text(0) + text(None)


def test_one_model_has_one_column_of_counts_and_no_cost() -> None:
    nothing = {"cost": None, "bound": None, "status": "verified"}
    counts = Totals(nodes=9, transposes=1, bytes=2_070_000, transposes_in_file=3, transposes_of_constants=2)
    lines = render_text(report_with(before=counts, after=counts, **nothing)).splitlines()
    assert lines[0] == "backend nhwc"
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["", "model", "MB"]
    assert lines[-1] == "model: 3 Transposes in the file: 1 at run time, 2 on constants alone"
    compared = render_text(report_with(**nothing)).splitlines()
    assert [cell.strip() for cell in compared[2].strip("|").split("|")] == ["", "source", "MB", "legal", "MB"]


def test_rich_is_imported_only_to_draw_tables() -> None:
    program = "import sys, relayout.report.render; sys.exit('rich' in sys.modules)"
    assert run([sys.executable, "-c", program], check=False).returncode == 0


def test_dear_operators_are_rows_by_cost_and_repeated_blocks_are_one() -> None:
    charges = [
        Charge(node="Pool 'p'", layout="NCHW", bytes=1, cost=1_000_000),
        *(Charge(node=f"Norm 'n{n}'", layout="NHWC", kind="decomposition", bytes=1, cost=2_000_000) for n in range(3)),
    ]
    text = render_text(report_with(charges=tuple(charges)))
    assert text[text.index("operators that") :].splitlines()[:3] == [
        "operators that have a cost",
        "  6.00 MB  3 x  Norm 'n*' in NHWC: decomposed into others",
        "  1.00 MB       Pool 'p' in NCHW",
    ]


def test_the_text_counts_the_transposes_that_do_not_run() -> None:
    before = Totals(nodes=3, transposes=0, bytes=0, transposes_in_file=1, transposes_of_constants=1)
    after = Totals(nodes=4, transposes=1, bytes=48, transposes_in_file=3, transposes_in_functions=2)
    text = render_text(report_with(before=before, after=after))
    assert "source: 1 Transpose in the file: 0 at run time, 1 on constants alone\n" in text
    assert (
        "legal model: 3 Transposes in the file: 1 at run time, 2 in bodies that define operators of relayout\n" in text
    )
