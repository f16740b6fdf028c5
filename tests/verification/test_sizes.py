"""A report is checked with the sizes that it states for dims whose extents are not known before the run."""

from __future__ import annotations

import pytest
from onnx import parser

import relayout
from relayout.report.schema import Finding, Report

OPEN = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[n,3,h,w] x, float[8,3,3,3] k) => (float[n,c,p,q] y) { a = Conv (x, k)  y = Relu (a) }"""
)
FORCED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[b,3] x, float[1,b,h,5] z) => (float[1,1,180] y, float[p,q,r,s] u)
    <int64[3] k = {1,1,180}, float[1,6,1,1] c = {1,2,3,4,5,6}> {
       t = Transpose <perm = [0,2,1,3]> (z)  v = Sub (t, c)  f = Flatten (v)  y = Reshape (f, k)
       w = Transpose <perm = [0,3,2,1]> (v)  u = Neg (w) }"""
)
FORCED_UNNAMED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[1,2,?] x) => (float[1,?] m, float[1,2,1,1,2] y) <int64[5] s = {1,1,1,2,2}> {
       m = ReduceMin <axes = [1], keepdims = 0> (x)  v = Reshape (x, s)  y = Transpose <perm = [1,4,2,0,3]> (v) }"""
)
UNPOOLED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 22]>
    g (float[1,2,2,2] x) => (float[?,?,?,?] y) <int64[4] s = {1,2,4,4}> {
       p, i = MaxPool <kernel_shape = [2,2]> (x)
       u = MaxUnpool <kernel_shape = [2,2], strides = [2,2]> (p, i, s)  y = Dropout (u) }"""
)
UNNAMED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[4,3,?,3] x) => (float[3,4,3,2,2] y) <int64[5] s = {3,4,3,2,2}> {
       t = Transpose (x)  r = Relu (t)  v = Reshape (r, s)  y = Transpose <perm = [0,1,2,4,3]> (v) }"""
)


def findings(model: object, report: Report, **options: object) -> list[Finding]:
    return [*relayout.verify(model, "nhwc", report=report, **options).findings]


@pytest.mark.parametrize("dims", [{}, {"n": 8}, {"n": 2, "h": 100, "w": 30}])
def test_a_report_is_counted_with_its_own_sizes(dims: dict[str, int]) -> None:
    legal, report = relayout.legalize(OPEN, "nhwc", dims=dims)
    assert dims.items() <= report.sizes.items()
    for given in ({}, {"n": 3}):  # these are the sizes of runs
        assert findings(legal, report, against=OPEN, run=False, dims=given) == []


def test_another_size_than_the_totals_have_is_found() -> None:
    legal, report = relayout.legalize(OPEN, "nhwc", dims={"n": 8})
    other = report.model_copy(update={"sizes": {**report.sizes, "n": 4}})
    assert ("cost-accounting", "error") in [(each.rule, each.severity) for each in findings(legal, other)]


def test_a_size_that_is_assumed_is_one_that_is_counted_with() -> None:
    legal, report = relayout.legalize(OPEN, "nhwc", dims={"n": 8})
    other = report.model_copy(update={"assumed": {**report.assumed, "h": report.sizes["h"] + 1}})
    assert ("cost-accounting", "error") in [(each.rule, each.severity) for each in findings(legal, other)]


@pytest.mark.parametrize(("name", "size"), [("h - 2", 7), ("n", -1)])
def test_a_size_is_a_number_and_that_of_its_formula(name: str, size: int) -> None:
    legal, report = relayout.legalize(OPEN, "nhwc")
    other = report.model_copy(update={"sizes": {**report.sizes, name: size}})
    assert f"the report counts with another size of {name}" in [each.message for each in findings(legal, other)]


def test_a_size_with_which_the_model_does_not_run_is_said() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        g (float[2,n,4] x) => (float[4,2,6] y) <int64[3] s = {4,2,6}> {
           t = Transpose <perm = [2,0,1]> (x)  y = Reshape (t, s) }"""
    )
    legal, report = relayout.legalize(model, "nhwc", dims={"n": 7})
    assert report.sizes == {"n": 7}
    (finding,) = findings(model, report)
    assert (finding.severity, finding.found) == ("warning", "7")
    assert finding.expected == "6, the only size with which the model runs"
    assert relayout.verify(legal, "nhwc", report=report).passed


@pytest.mark.parametrize("model", [FORCED, FORCED_UNNAMED, UNNAMED, UNPOOLED])
def test_a_legal_model_that_is_read_again_shows_no_other_sizes(model: object) -> None:
    legal, report = relayout.legalize(model, "nhwc")
    assert report.cost
    assert findings(legal, report, against=model, run=False) == []
    assert relayout.verify(legal, "nhwc").findings == ()


def test_a_dim_that_inference_leaves_open_counts_as_it_does_in_the_legal_model() -> None:
    """A Squeeze of each axis of extent 1: which they are is not known."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        g (float[n,2,t,1] x) => (float[?,?,?] y, float[?,?,?] z) { r = Relu (x)  y = Squeeze (r)  z = Neg (y) }"""
    )
    way = {"inputs": ["{0,1,2}"], "results": ["*"]}
    table = {"name": "turned", "rule": [{"op": "Neg", "implementation": [way]}]}
    legal, report = relayout.legalize(model, table)
    assert report.after.transposes == 2
    assert relayout.verify(legal, table, against=model, report=report, run=False).findings == ()
