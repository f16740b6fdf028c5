"""Rounding or fault: where results differ in narrower floats, the same comparison in float64 decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from relayout.report.schema import OutputDifference
from relayout.verification.numeric.bodies import BodyOf
from relayout.verification.numeric.deadline import Deadline, UndecidedError
from relayout.verification.numeric.float64.casts import round_alike
from relayout.verification.numeric.float64.run import run_wide
from relayout.verification.numeric.float64.steps import Steps, steps_of, wide
from relayout.verification.numeric.inputs import Array, with_noise, with_noise_in_constants
from relayout.verification.numeric.runtimes import weights_size
from relayout.verification.numeric.tolerance import Arrays

_LARGEST = 1 << 29
"""Bytes of weights above which no model is run in float64, which takes at least twice as many."""
SECONDS = 120.0
"""How long the two models may run in float64, all samples together."""

# If noise in the last bits of float64 changes a result by more than this, float64 cannot decide.
_TELLING = 1e-6
# Rounding shrinks with the last bit: from float32 to float64 by this, within a factor.
_SHRINKS = 30 * 2.0**-29


@dataclass(frozen=True)
class Side:
    """One of the two models in one variant, and its inputs for each sample."""

    model: ir.Model
    feeds: Sequence[Mapping[str, Array]]


Samples = Sequence[Mapping[str, Arrays]]
Pairs = Sequence[tuple[Side, Side]]
"""The model and the original in each variant."""
Judge = Callable[[Samples, Samples, Samples], Iterable[OutputDifference]]
"""A comparison of the results of the original, of the model, and of the original on disturbed inputs."""


class _OtherCastsError(UndecidedError):
    """One model rounds where the other does not."""


class Verdict(NamedTuple):
    """The verdict of float64 as a text, and the reason for each value of which it tells nothing."""

    text: str
    untold: Mapping[str, str] = MappingProxyType({})
    has_other_casts: bool = False
    """Whether it tells nothing because one model rounds where the other does not."""

    def about(self, name: str) -> str:
        return f"not decided: {self.untold[name]}" if name in self.untold else self.text


def in_float64(
    differences: Sequence[OutputDifference], sources: Mapping[str, str], pairs: Pairs, judge: Judge, body_of: BodyOf
) -> tuple[list[OutputDifference], Verdict]:
    """The differences, with the failed ones decided again in float64, and the verdict.

    `sources` maps the model's names of values that differ to the original's; `pairs` are the two models in each of
    their variants; `body_of` has the bodies of operators of a backend's own. All are kept if a model cannot be run, and
    those of which float64 tells nothing.
    """
    try:
        compared, untold = _compared(sources, pairs, judge, body_of)
    except UndecidedError as reason:
        return list(differences), Verdict(f"not run: {reason}", has_other_casts=isinstance(reason, _OtherCastsError))
    decided = {each.name: each for each in compared}
    settled = [_settled(each, decided[each.name]) if each.name in decided else each for each in differences]
    agree = all(each.passed for each in settled if each.name in decided)
    text = "the two agree: the difference in narrower floats is rounding" if agree else "the two differ"
    return settled, Verdict(text, untold)


def _compared(
    sources: Mapping[str, str], pairs: Pairs, judge: Judge, body_of: BodyOf
) -> tuple[Sequence[OutputDifference], Mapping[str, str]]:
    """The differences in float64, and why those of other values tell nothing. Raises UndecidedError, also where none
    tells anything."""
    if max(weights_size(side.model) for pair in pairs for side in pair) > _LARGEST:
        raise UndecidedError("the weights are too large")
    deadline = Deadline(SECONDS)
    theirs_wanted, mine_wanted = sorted(set(sources.values())), sorted(sources)
    expected: list[dict[str, Arrays]] = []
    found: list[dict[str, Arrays]] = []
    noisy: list[dict[str, Arrays]] = []
    trials: list[tuple[Steps, Steps, Sequence[Mapping[str, Array]]]] = []
    for model, original in pairs:
        right = [_widened(feed) for feed in original.feeds]
        their_steps, my_steps = (
            steps_of(original.model, theirs_wanted, body_of),
            steps_of(model.model, mine_wanted, body_of),
        )
        if not round_alike(my_steps.casts, their_steps.casts):
            raise _OtherCastsError("the two models do not have the same casts between float types")
        trials.append((replace(my_steps, sessions={}), replace(their_steps, sessions={}), right))
        # Each operator rounds: noise in the constants, as in the inputs, stands for the rounding on the way.
        noisy_steps = replace(their_steps, constants=with_noise_in_constants(_widened(their_steps.constants)))
        # Sample by sample, as a node is made for the shapes of the first one.
        for feed, mine in zip(right, model.feeds, strict=True):
            expected += _as_results(run_wide(their_steps, [feed], theirs_wanted, deadline))
            noisy += _as_results(run_wide(noisy_steps, [with_noise(feed)], theirs_wanted, deadline))
            found += _as_results(run_wide(my_steps, [mine], mine_wanted, deadline))
    compared = list(judge(expected, found, noisy))
    untold = {
        each.name: f"rounding in float64 moves it by {each.tolerance:.3g} of its scale"
        for each in compared
        if each.tolerance > _TELLING and _is_within(each)
    }
    failed = {each.name for each in compared if not each.passed} - untold.keys()
    if failed and _has_constants_of_its_own(*trials[0][:2]):
        rounded: list[dict[str, Arrays]] = []
        for _, steps, feeds in trials:
            noisy_steps = replace(steps, constants=with_noise_in_constants(steps.constants))
            for each_feed in feeds:
                rounded += _as_results(run_wide(noisy_steps, [each_feed], theirs_wanted, deadline))
        close = {each.name for each in judge(expected, found, rounded) if _is_within(each)}
        reason = "the model has computed constants, and their rounding explains as much"
        untold |= dict.fromkeys(sorted(failed & close), reason)
    told = [each for each in compared if each.name not in untold]
    if not told:
        name, reason = next(iter(untold.items()))
        raise UndecidedError(f"{name}: {reason}")
    return told, untold


def _widened(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: wide(array) for name, array in arrays.items()}


def _is_within(difference: OutputDifference) -> bool:
    return difference.max_rel <= difference.tolerance and not difference.in_slice


def _has_constants_of_its_own(mine: Steps, theirs: Steps) -> bool:
    """Whether the model has constants that are computed from those of the original, such as a kernel times a scale:
    float64 has the rounding of these too."""
    known = {_numbers(array) for array in theirs.constants.values()}
    floats = (array for array in mine.constants.values() if array.dtype.kind == "f" and array.size > 1)
    return any(_numbers(array) not in known for array in floats)


def _numbers(array: Array) -> bytes:
    """A digest of the elements in any order. Zeros do not count: blocks of channels are padded with them."""
    flat = array.reshape(-1)
    return sha256(np.sort(flat[flat != 0]).tobytes()).digest() if array.dtype.kind == "f" else b""


def _as_results(samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Arrays]]:
    return [{name: [array] for name, array in sample.items()} for sample in samples]


def _settled(narrow: OutputDifference, wider: OutputDifference) -> OutputDifference:
    # Another shape is an infinite difference, which does not shrink.
    shrunk = _SHRINKS * narrow.max_rel if math.isfinite(narrow.max_rel) else 0.0
    tolerance = max(wider.tolerance, shrunk)
    passed = wider.max_rel <= tolerance and not wider.in_slice
    facts = {"passed": passed, "in_float64": max(wider.max_rel, wider.in_slice), "tolerance_in_float64": tolerance}
    return narrow.model_copy(update=facts)
