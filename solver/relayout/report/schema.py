"""The report's schema, the stable part of the public contract.

The models are frozen and reject unknown fields, so a misspelt key is an error, and a report that is read back equals
the written one. Sizes are bytes, costs are integers in the objective's unit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import field
from msgspec.structs import force_setattr

from relayout.errors import UsageError
from relayout.report.record import AtLeast, Record, Unbounded

SCHEMA_VERSION: Literal[1] = 1
"""The version of the report's schema; a field that is removed or changes its meaning raises it."""

Status = Literal["optimal", "feasible", "infeasible", "unknown", "verified", "failed"]
ConversionKind = Literal["transpose", "pad", "reorder", "reshape", "folded"]
Part = Literal["operand", "result", "node", "boundary"]
Severity = Literal["error", "warning", "note"]


Count = Annotated[int, AtLeast(0)]


class Totals(Record, frozen=True, kw_only=True):
    """The totals of a graph: its nodes, and its conversions by kind with the bytes that they read and write.

    `transposes` are the Transposes that run on data, and `bytes` are theirs alone. `reorders` are the backend's own
    conversion operators, `pads` the Pads and Slices that a conversion added. `transposes_in_file` counts every
    Transpose that is stored: besides those on data, `transposes_of_constants`, which do not run, and
    `transposes_in_functions`, in the bodies of our functions, each of which defines an operator. A local function of
    the model's own is stored once and runs once a call. `transposes_of_units` of the transposes on data move only dims
    of extent 1, and no bytes.
    """

    nodes: Count
    transposes: Count
    bytes: Count
    reorders: Count = 0
    reorder_bytes: Count = 0
    pads: Count = 0
    pad_bytes: Count = 0
    transposes_in_file: Count = 0
    transposes_of_constants: Count = 0
    transposes_in_functions: Count = 0
    transposes_of_units: Count = 0

    @property
    def conversions(self) -> int:
        """All conversions: transposes, reorders and pads."""
        return self.transposes + self.reorders + self.pads

    @property
    def moved(self) -> int:
        """The bytes that all conversions read and write."""
        return self.bytes + self.reorder_bytes + self.pad_bytes


class Entry(Record, frozen=True, kw_only=True):
    """A part of the cost: how many, the bytes that they read and write, and their cost in the objective's unit.

    The cost is the bytes unless the backend states prices of its own, or the objective counts conversions.
    """

    count: Count = 0
    bytes: Count = 0
    cost: Count = 0


class Account(Record, frozen=True, kw_only=True):
    """The parts of the cost of a legal model, which add up to `cost`.

    `transposes` are passes over a tensor: a conversion between tiles that do not nest has two. `pads` are the zeros
    that a conversion adds or removes. `operators` are nodes that cost more than their best alternative: those that the
    backend charges for, and those that are decomposed into others. `transfers` are copies between devices.
    """

    transposes: Entry = Entry()
    reorders: Entry = Entry()
    pads: Entry = Entry()
    operators: Entry = Entry()
    transfers: Entry = Entry()

    @property
    def cost(self) -> int:
        """The sum of the parts."""
        return sum(getattr(self, name).cost for name in self.__struct_fields__)


class RequiredBy(Record, frozen=True, kw_only=True):
    """A consumer of a converted value: `node` requires `layout` of its input `operand` (counted from 0)."""

    node: str
    operand: Count
    layout: str


class Saving(Record, frozen=True, kw_only=True):
    """The difference of the optimum without some requirements: `cost`, in the objective's unit, and conversions.

    The cost is never negative. The number of transposes or bytes may be, if the other or the nodes then cost less.
    `exact`: both optima are proved; otherwise the saved cost may be higher.
    """

    cost: int
    transposes: int
    bytes: int
    exact: bool = True


class Reason(Record, frozen=True, kw_only=True):
    """A requirement behind a conversion, and the saving without it alone.

    `part` is the part of the graph without requirements then: the `operand` or `result` of number `operand`, all
    operands and results of the `node`, or a graph input or output (`boundary`). `by` is the origin of the requirement.
    """

    node: str
    part: Part
    operand: Count | None = None
    layout: str
    by: Literal["backend", "operator", "boundary"]
    saved: Saving


class SharedReason(Record, frozen=True, kw_only=True):
    """All reasons of one kind: the number of requirements and conversions, and the saving without all of them."""

    operator: str
    part: Part
    operand: Count | None = None
    layout: str
    requirements: Annotated[int, AtLeast(1)]
    conversions: Annotated[int, AtLeast(1)]
    saved: Saving


class Explanation(Record, frozen=True, kw_only=True):
    """The search for reasons: `solved` problems, each without a requirement or a set of them, at most `limit`, and
    `unsolved` further ones. `shared` has the reasons by kind, the largest saving first."""

    solved: Count
    limit: Count
    unsolved: Count
    shared: tuple[SharedReason, ...] = ()


class Conversion(Record, frozen=True, kw_only=True):
    """One change of a value's format in the legal model, with the value's producer and the consumers that require it.

    `kind` is a `transpose`, with Reshapes and a Pad where the format needs them; a `pad`, which only pads or crops; the
    backend's own operator (`reorder`); a `reshape`; or `folded` into a constant. `passes` is the number of Transposes,
    two where tiles do not nest. The totals count the bytes of transposes only: `padding` is the part of `bytes` that
    pads and crops move. `nodes` are those of the legal model that it became, each by its first result; None in a report
    of an earlier version. In an explanation, `saved` is the saving without the requirements in `required_by`, and
    `reasons` are the single requirements behind the conversion, the largest saving first.
    """

    value: str
    from_: str
    to: str
    kind: ConversionKind
    bytes: Count
    passes: Annotated[int, AtLeast(1)] = 1
    padding: Count = 0
    nodes: tuple[str, ...] | None = None
    producer: str | None = None
    required_by: tuple[RequiredBy, ...] = ()
    saved: Saving | None = None
    reasons: tuple[Reason, ...] = ()


class BoundaryValue(Record, frozen=True, kw_only=True):
    """The format of an input or output of the legal model.

    `order` is the axes of the source's value, outermost first: numpy.transpose(value, order) is the input to feed.
    None: as in the source. Where axes are tiled, `transform` has the steps from the source's value (see
    `relayout.layout.relaid_constant`), and `back`, for an output, those to it. `layout` is the format by axis names, if
    the axes have names. `shape` is the legal model's. `wanted` is the requested layout, `any`, or None. `coupled_with`
    are the inputs and outputs that have the same order.
    """

    name: str
    side: Literal["input", "output"]
    shape: tuple[int | str | None, ...] | None = None
    order: tuple[int, ...] | None = None
    transform: tuple[dict[str, Any], ...] = ()
    back: tuple[dict[str, Any], ...] = ()
    layout: str | None = None
    wanted: str | None = None
    coupled_with: tuple[str, ...] = ()


class Transfer(Record, frozen=True, kw_only=True):
    """A copy of a value from one device to another, with its layout, bytes, cost, and consumers there."""

    value: str
    from_: str
    to: str
    layout: str
    bytes: Count
    cost: Count
    producer: str | None = None
    required_by: tuple[RequiredBy, ...] = ()


ChargeKind = Literal["operator", "decomposition", "reorder", "pad"]


class Charge(Record, frozen=True, kw_only=True):
    """A node that has a cost, with the `layout` of its first operand, "" without one; the cost is in bytes of memory
    traffic.

    An `operator` costs more than its best alternative, and so does a `decomposition`, which is replaced by several
    operators of ONNX, as it does not take this layout. A `reorder` or `pad` is a conversion that the source has
    already: it reads and writes `bytes`. The bytes of the other kinds are their cost. `nodes` are those of the legal
    model that it became, as for a `Conversion`.
    """

    node: str
    layout: str
    kind: ChargeKind = "operator"
    bytes: Count
    cost: Count
    nodes: tuple[str, ...] | None = None


class DevicePlacement(Record, frozen=True, kw_only=True):
    """One device with its backend, and the source's nodes that run there, by name or else by their first result."""

    device: str
    backend: str
    nodes: tuple[str, ...] = ()


class SolverFacts(Record, frozen=True, kw_only=True):
    """The size of the problem, the choices that remain after exact reduction, the engine, and the seconds by stage."""

    choices: Count
    kernel_choices: Count
    engine: str
    seconds: dict[str, float] = field(default_factory=dict)


class Finding(Record, frozen=True, kw_only=True):
    """One finding of the verifier: the violated rule, its location, and the expected and the found value.

    `operand` counts from 0 and is None for a finding on a node, a value or the whole model.
    """

    rule: str
    severity: Severity = "error"
    node: str | None = None
    operand: int | None = None
    expected: str | None = None
    found: str | None = None
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: [{self.rule}] {self.place}: {self.message}{self.sides}"

    @property
    def place(self) -> str:
        """The node, or `model`, and the operand."""
        node = self.node or "model"
        return node if self.operand is None else f"{node}, operand {self.operand}"

    @property
    def sides(self) -> str:
        """The expected and the found value behind a message, in brackets; empty without both."""
        sides = [f"{label} {side}" for label, side in (("expected", self.expected), ("found", self.found)) if side]
        return f" ({', '.join(sides)})" if sides else ""


_Distance = Annotated[float, Unbounded()]


class OutputDifference(Record, frozen=True, kw_only=True):
    """One output of two models on the same inputs.

    `max_abs` is the largest absolute difference, `max_rel` the same relative to the output's own scale, `tolerance` the
    maximum of `max_rel` for this element type, in the sample that comes nearest to it. `sensitivity` is the change of
    the original's output, on the same scale, for other random inputs: if it is 0, comparing this output proves nothing.

    `in_slice` is the largest difference in a slice along an axis, relative to that slice alone, where it is more than
    rounding is expected to make: a channel of small numbers beside large ones. 0: there is none.

    If `max_rel` exceeds `tolerance`, or a slice differs, both models are run in float64, and the difference there
    decides (`in_float64`, with its own maximum). None: it was not needed, or could not be run. A difference is infinite
    where one of two elements is infinite, NaN, or missing.
    """

    name: str
    max_abs: _Distance
    max_rel: _Distance
    tolerance: _Distance
    sensitivity: _Distance
    passed: bool
    in_slice: _Distance = 0.0
    in_float64: _Distance | None = None
    tolerance_in_float64: _Distance | None = None


class NotCompared(Record, frozen=True, kw_only=True):
    """An output that no run says anything about, and why."""

    name: str
    reason: str


class Numeric(Record, frozen=True, kw_only=True):
    """The comparison on random inputs, or the reason why there was none.

    `status` is `skipped` where no value was compared; `not_compared` has the outputs that were not, each with the
    reason. `kept` has those that no runtime computes, and that the model computes as the original does: by the same
    operators, from values that were compared. `untried` says what the runs could not vary, such as a dim that the
    original takes one size of. `float64` is the verdict in float64 on a difference beyond the tolerance, or the reason
    why there is none; None without such a difference. `pieces` is the number of values that were compared one by one,
    each computed from those before it; None where the models ran as a whole.
    """

    status: Literal["compared", "skipped"]
    reason: str | None = None
    runtime: str | None = None
    samples: int = 0
    seed: int = 0
    outputs: tuple[OutputDifference, ...] = ()
    kept: tuple[str, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    untried: tuple[str, ...] = ()
    float64: str | None = None
    pieces: int | None = None


class Price(Record, frozen=True, kw_only=True):
    """The cost of the legal model as the verifier computes it again, in the objective's unit.

    `claimed` is the report's cost, or without a report the one that the model records. `computed` is the sum that the
    model and the backend's answers give; `not_computed` says what it lacks, and why. `noted` are the bytes of it for
    operators that are decomposed into others: only the model's metadata states them. None: there is no such operator.
    """

    claimed: int
    computed: int
    noted: int | None = None
    not_computed: tuple[str, ...] = ()


class Verification(Record, frozen=True, kw_only=True):
    """All findings; `passed`: none of them is an error. `price` is None where no cost is claimed."""

    passed: bool
    findings: tuple[Finding, ...] = ()
    numeric: Numeric | None = None
    price: Price | None = None

    def __str__(self) -> str:
        return "\n".join(["passed" if self.passed else "failed", *map(str, self.findings)])


class Report(Record, frozen=True, kw_only=True):
    """The report of a run. `cost` and `bound` are None without a solution, and so are `account`, the parts of the cost,
    and `proof`, the sentence that says what the bound proves.

    `status` is `verified` or `failed` if a model was only verified; `optimal` is over the formats in reach (see
    `proof`). `before` and `after` are counted in the graphs. `sizes` has the size with which each dim is counted whose
    extent is not known before the run, by its name in the models; `assumed` has those of them that neither the caller
    nor the graph gives. `charges` are the nodes that have a cost.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Status
    cost: int | None = None
    bound: int | None = None
    gap: float | None = None
    proof: str | None = None
    objective: str = "bytes"
    backend: str
    before: Totals
    after: Totals
    account: Account | None = None
    assumed: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    boundary: tuple[BoundaryValue, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    charges: tuple[Charge, ...] = ()
    devices: tuple[DevicePlacement, ...] = ()
    explanation: Explanation | None = None
    solver: SolverFacts | None = None
    verification: Verification | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gap is None and self.cost is not None and self.bound is not None:
            force_setattr(self, "gap", (self.cost - self.bound) / self.cost if self.cost else 0.0)

    def __str__(self) -> str:
        """One line; `relayout.render_text` gives the tables that the command prints."""
        parts = [
            f"{name} {source} -> {legal}"
            for name, source, legal in (
                ("transposes", self.before.transposes, self.after.transposes),
                ("reorders", self.before.reorders, self.after.reorders),
                ("MB moved", *(f"{each.moved / 1e6:.2f}" for each in (self.before, self.after))),
                ("nodes", self.before.nodes, self.after.nodes),
            )
            if name != "reorders" or source or legal
        ]
        verdict = "" if self.verification is None else f"; verification {str(self.verification).partition(chr(10))[0]}"
        return f"{self.status} for {self.backend}: {', '.join(parts)}{verdict}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the verifier; none where it was not asked."""
        return () if self.verification is None else self.verification.findings

    def with_findings(self, findings: tuple[Finding, ...]) -> Report:
        """This report with these findings of the verifier, which has passed if none of them is an error."""
        passed = all(finding.severity != "error" for finding in findings)
        known = self.verification or Verification(passed=passed)
        return self.model_copy(
            update={"verification": known.model_copy(update={"passed": passed, "findings": findings})}
        )

    @property
    def ok(self) -> bool:
        """Whether there is a legal model (or one was verified) and no finding is an error."""
        found = self.status in ("optimal", "feasible", "verified")
        return found and (self.verification is None or self.verification.passed)


def check_report_type(given: object) -> None:
    """Raise UsageError, with the way from a file to a report, for an object of another type than `Report`."""
    if not isinstance(given, Report):
        raise UsageError(
            "not a report",
            where="report",
            expected="a relayout.Report, as legalize and explain return",
            found=type(given).__name__,
            hint="relayout.Report.model_validate_json reads the text of a JSON report",
        )
