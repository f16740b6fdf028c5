"""The difference of two models: operators, conversions, and layouts of the values that both have."""

from __future__ import annotations

from relayout.report.inspection.schema import (
    Difference,
    Inspection,
    LayoutChange,
    OperatorCount,
    TransposeFacts,
    ValueFacts,
)

__all__ = ["difference"]


def difference(first: Inspection, second: Inspection) -> Difference:
    """The differences of the second model from the first. Conversions are the same if they change the value of the same
    name in the same way; the value may be their operand or their result."""
    ours, theirs = ({_key(each): each for each in one.transposes} for one in (first, second))
    before, after = ({value.name: value for value in one.values} for one in (first, second))
    counts = {each.operator: each.count for each in first.operators}
    counted = {each.operator: each.count for each in second.operators}
    return Difference(
        first=first.model,
        second=second.model,
        before=first.totals,
        after=second.totals,
        operators=tuple(
            OperatorCount(operator=operator, count=counted.get(operator, 0), before=counts.get(operator, 0))
            for operator in sorted({*counts, *counted})
            if counts.get(operator, 0) != counted.get(operator, 0)
        ),
        removed=tuple(each for key, each in ours.items() if key not in theirs),
        added=tuple(each for key, each in theirs.items() if key not in ours),
        layouts=tuple(
            LayoutChange(value=name, before=_text(value), after=_text(after[name]))
            for name, value in before.items()
            if name in after and _text(value) != _text(after[name])
        ),
    )


def _key(transpose: TransposeFacts) -> tuple[object, ...]:
    return transpose.operator, transpose.input, transpose.output, transpose.perm


def _text(value: ValueFacts) -> str:
    # Inference numbers the symbols that it makes up anew in each model.
    dims = ["?" if dim is None or str(dim).startswith("unk__") else str(dim) for dim in value.shape or ()]
    shape = "?" if value.shape is None else ",".join(dims)
    return f"{value.layout or '-'} [{shape}]"
