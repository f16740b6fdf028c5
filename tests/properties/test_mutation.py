"""Mutation test of the verifier: it must reject every mutant of a legal model that is not sound.

A mutant that passes must be sound by an independent oracle: on inputs that the verifier never used, it computes the
same as the original. A change of a stated layout (a layout attribute or an annotation) is never sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import onnx
import onnx_ir as ir
import pytest
from legalization_checks import findings_about
from mutation import is_sound, mutants
from mutation_models import (
    CONTRIBUTED,
    FILLED,
    KERAS,
    MIXED,
    NORMS,
    PACKED,
    QUANTIZED,
    RESIDUAL,
    SEQUENCE,
    SHUFFLE,
    STRIDED,
    Fours,
    build,
)

from relayout.backend import Backend
from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.verification import Original, verify
from relayout_backends.convert_layout import ConvertLayout
from relayout_backends.tpu import Tpu


@dataclass(frozen=True)
class Case:
    """A model, its backend, the least number of mutants to reject, and the backend given to the verifier."""

    text: str
    backend: str | Backend
    least: int
    judge: str | Backend | None = None
    objective: str = "bytes"

    @property
    def judges(self) -> str | Backend:
        return self.backend if self.judge is None else self.judge


CASES = {
    "residual-nhwc": Case(RESIDUAL, "nhwc", 90),
    "residual-canonical": Case(RESIDUAL, "canonical", 90),
    "keras-onnx": Case(KERAS, "onnx", 30),
    "keras-nhwc": Case(KERAS, "nhwc", 50),
    "mixed-nhwc": Case(MIXED, "nhwc", 110),
    "sequence-nhwc": Case(SEQUENCE, "nhwc", 20),
    "quantized-nhwc": Case(QUANTIZED, "nhwc", 45),
    "contributed-nhwc": Case(CONTRIBUTED, "nhwc", 45),
    "shuffle-onnx": Case(SHUFFLE, "onnx", 20),
    "shuffle-nhwc": Case(SHUFFLE, "nhwc", 70),
    "norms-onnx": Case(NORMS, "onnx", 10, objective="transposes"),
    "packed-convert-layout": Case(PACKED, ConvertLayout(desired_layouts={"Conv": ["NCHW4c", "OIHW4i4o"]}), 100),
    "filled-fours": Case(FILLED, Fours(), 50, judge="onnx"),
    "strided-tpu": Case(STRIDED, Tpu(), 30),
}


EVERY = 2
"""Each second mutant is judged: those next to each other change one attribute, constant or format."""


def is_passed(model: onnx.ModelProto, judge: str | Backend, original: Original) -> bool:
    """Both ways to find a fault, the shorter first."""
    return all(verify(model, judge, against=original, run=run).passed for run in (False, True))


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_that_is_not_sound_is_found(name: str) -> None:
    case = CASES[name]
    original, judge = build(case.text), case.judges
    legal, report = legalize(original, case.backend, objective=case.objective)
    legal = read_model(legal)
    assert report.status == "optimal"
    assert findings_about(verify(legal, judge, against=original)) == [], "the legal model itself is sound"
    found, harmless, escaped, shared, source = 0, 0, [], Original(original), ir.to_proto(original)
    for mutant in islice(mutants(ir.to_proto(legal), source), 0, None, EVERY):
        if not is_passed(mutant.model, judge, shared):
            found += 1
        elif not mutant.states_layout and is_sound(mutant.model, source):
            harmless += 1
        else:
            escaped.append(mutant.name)
    assert escaped == []
    assert found >= case.least
    assert harmless < found / 4, "most mutants do harm, or they would test nothing"


def test_there_are_mutants_by_the_hundreds() -> None:
    assert sum(case.least for case in CASES.values()) >= 500
