"""The baseline: the original's outputs on random inputs, with a runtime and sizes that it accepts.

Each open dim gets two sizes where the model takes two, an input with a default also other values, and each branch of
an If and each Loop is forced to run: a fault may show in one of these alone. Where filters leave a result without
elements, they are made to keep some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import onnx
import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.verification.axis_names import fed
from relayout.verification.numeric.branches import forced, forcings
from relayout.verification.numeric.cut import draws_anew
from relayout.verification.numeric.deadline import UndecidedError
from relayout.verification.numeric.filters import has_filters, keeping
from relayout.verification.numeric.given_inputs import extents_of_inputs
from relayout.verification.numeric.inputs import Array, draw_inputs, draw_lengths, draw_sizes, gives_sizes, spread
from relayout.verification.numeric.runtimes import Session, runtimes_for
from relayout.verification.numeric.symbolic_sizes import (
    Plan,
    Sampling,
    contradiction,
    light_plan,
    open_dims,
    other_plans,
    plans,
)
from relayout.verification.numeric.tolerance import Arrays, arrays, has_numbers, is_still

Feeds = list[dict[str, Array]]
Results = list[dict[str, Arrays]]
"""The outputs of a model by name, for each sample."""

# Floats from here on, tried where the usual draw gives an output no finite number.
_LIFTS = (0.5, 100.0, 0.001)

# Integers up to here, tried where the usual draws never change an output, for inputs of more than a few elements.
_WIDE, _FEW = 1 << 12, 16

INNER_BYTES = 1 << 26
"""Inner values are compared up to this many bytes in all, so that a large model stays within memory."""

# The largest integer that is drawn beside given inputs.
_FEW_INTEGERS = 2

# So many draws of integers, if the original refuses the first ones.
_DRAWS = 24


@dataclass(frozen=True)
class Trial:
    """A variant of the model, with its conditions and filters as they are or as `change` makes them in a copy, and the
    outputs for each sample."""

    change: Callable[[ir.Model], ir.Model] | None
    feeds: Feeds
    results: Results


@dataclass(frozen=True)
class Baseline:
    """The original's outputs in all trials, with the `inner` values among them, and what could not be tried."""

    runtime: str
    trials: tuple[Trial, ...]
    inner: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Fault:
    """Why a runtime gives no baseline. `has_run`: it ran the model, whose results contradict its declared shapes."""

    text: str
    has_run: bool = False


def baseline_of(
    original: ir.Model, inner: Sequence[str], sampling: Sampling, needed: Set[str] = frozenset()
) -> Baseline | list[str]:
    """Run the original in the first runtime, and with the first sizes, that it accepts; else the fault of each.

    Of the `inner` values, earlier ones are preferred: those that fit INNER_BYTES in the first sample, and all `needed`.
    """
    faults = []
    for runtime in runtimes_for(original):
        found = _in_runtime(runtime, original, inner, sampling, needed)
        if isinstance(found, Baseline):
            return found
        faults.append(f"{runtime}: {found.text}")
        if found.has_run:
            break  # any other runtime gives results of the same shapes
    return faults or ["no runtime is installed that takes models of this size"]


def _in_runtime(
    runtime: str, original: ir.Model, inner: Sequence[str], sampling: Sampling, needed: Set[str]
) -> Baseline | _Fault:
    """The same in one runtime; the fault is that of the first sizes."""
    fault, has_run = "", False
    try:
        session = Session(original, runtime, inner)
    except Exception as error:  # a runtime may raise anything
        return _Fault(first_line(error))
    for plan, draw in _draws(original, sampling):
        try:
            feeds = draw()
            with sampling.budget.limited() if runtime == "onnx.reference" else nullcontext():
                results = _results(session, feeds)
        except UndecidedError as error:
            return _Fault(str(error))
        except Exception as error:  # a runtime may raise anything
            fault = fault or first_line(error)
            continue
        strange = _contradiction(original, results)
        if strange is not None:
            fault, has_run = fault or strange, True
            continue
        kept = _kept(results[0], inner, needed) if results else tuple(inner)
        if len(kept) < len(inner):
            # One that the original gives as an output too stays one.
            dropped = {*inner} - {*kept} - {str(value.name) for value in original.graph.outputs}
            results = [{name: each[name] for name in each if name not in dropped} for each in results]
            inner, session = kept, Session(original, runtime, kept)
        first = Trial(None, feeds, results)
        if sampling.given:
            untried = ["other sizes of open dims than the given inputs have"] if open_dims(original, None) else []
        else:
            untried = [*_add_samples(original, session, first, plan, sampling)]
        trials = [first]
        for forcing in forcings(original):
            try:
                trials.append(_changed(original, runtime, inner, partial(forced, forcing=forcing), feeds[:1]))
            except Exception as error:  # the branch may not fit these inputs
                untried.append(f"{forcing}: {first_line(error)}")
        samples = [sample for trial in trials for sample in trial.results]
        if has_filters(original) and not all(has_numbers([each[name] for each in samples]) for name in samples[0]):
            try:
                # Two samples show whether the inputs change what is kept.
                trials.append(_changed(original, runtime, inner, keeping, feeds[: max(2, sampling.samples)]))
            except Exception as error:  # the operators behind a filter may not take these elements
                untried.append(f"the model does not run with filters that keep some elements: {first_line(error)}")
        # Several ways to force branches may end at one fault.
        return Baseline(runtime, tuple(trials), tuple(inner), tuple(dict.fromkeys(untried)))
    return _Fault(fault, has_run)


def _kept(sample: Mapping[str, Arrays], inner: Sequence[str], needed: Set[str]) -> tuple[str, ...]:
    """The `needed` values, and of the others, in their order, those that are at most INNER_BYTES in all.

    Their sizes are not known before a run: the weights of an attention over an image grow with the square of its size.
    """
    kept, spent = [], 0
    for name in inner:
        size = 0 if name in needed else sum(part.nbytes for part in sample[name])
        if spent + size <= INNER_BYTES:
            spent += size
            kept.append(name)
    return tuple(kept)


def _draws(original: ir.Model, sampling: Sampling) -> Iterator[tuple[Plan, Callable[[], Feeds]]]:
    """Plans, each with the function that makes its samples; integers are drawn several times, as they may be axes or
    indices that have to fit each other. Where inputs are given, these alone."""
    inputs = fed(original)

    sizes = [value for value in inputs if gives_sizes(value)]

    def draw(plan: Plan, shift: int, sizes: Sequence[ir.Value] = ()) -> Feeds:
        seeds = [sampling.seed + shift + 7919 * sample for sample in range(sampling.samples)]
        # The same sizes in all samples: only results of one shape show that they depend on the inputs.
        return [{**draw_inputs(inputs, plan, seed), **draw_sizes(sizes, sampling.seed)} for seed in seeds]

    if sampling.given:
        plan = Plan(extents_of_inputs(original, sampling.given[0]), _FEW_INTEGERS)
        # A part of a model has more inputs than the model.
        yield plan, lambda: [{**draw_inputs(inputs, plan, sampling.seed), **given} for given in sampling.given]
        return
    tried = list(plans(original, sampling.dims))
    yield from ((plan, partial(draw, plan, 0)) for plan in tried)
    if sizes:
        yield from ((plan, partial(draw, plan, 0, sizes)) for plan in tried)
    if any(map(_is_integer, inputs)):
        extents = light_plan(original, tried).extents
        every = ((Plan(extents, 2 + n % 4), 104729 * n) for n in range(1, _DRAWS))
        yield from ((plan, partial(draw, plan, shift)) for plan, shift in every)


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _changed(
    original: ir.Model,
    runtime: str,
    inner: Sequence[str],
    change: Callable[[ir.Model], ir.Model],
    feeds: Feeds,
) -> Trial:
    return Trial(change, feeds, _results(Session(change(original), runtime, inner), feeds))


def _add_samples(original: ir.Model, session: Session, trial: Trial, plan: Plan, sampling: Sampling) -> Iterator[str]:
    """Add samples that show what the first ones cannot; yield each thing that no sample shows."""
    inputs, seed = fed(original), sampling.seed

    def add(draws: Iterable[Callable[[], dict[str, Array]]]) -> bool:
        """Add the first of these inputs that the original takes."""
        for draw in draws:
            try:
                feed = draw()
                results = _results(session, [feed])
            except Exception:  # a runtime may raise anything
                continue
            if _contradiction(original, results) is None:
                trial.feeds.append(feed)
                trial.results.extend(results)
                return True
        return False

    def sized(draw: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        return {**draw(), **draw_sizes(sizes, seed)}

    def lasting(draw: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        return {**draw(), **lengths}

    names = open_dims(original, sampling.dims)
    others = other_plans(original, sampling.dims, plan)
    sizes = [value for value in inputs if gives_sizes(value)]
    draws = [partial(draw_inputs, inputs, other, seed + 1) for other in others]
    # A model that refuses the usual floats as sizes refuses them whatever its dims.
    draws += [partial(sized, draw) for draw in draws if sizes]
    if names and not add(draws):
        tried = ", ".join(f"{name} = {plan.extents[name]}" for name in names)
        yield f"the original takes one size of its open dims alone: {tried}"
    defaults = [value for value in original.graph.inputs if value.is_initializer() and value.dtype is not None]
    floats = [value for value in defaults if value.dtype is not None and value.dtype.is_floating_point()]
    if floats and not add([lambda: {**trial.feeds[0], **draw_inputs(floats, plan, seed + 2)}]):
        names = [str(value.name) for value in floats]
        yield f"the original does not run with other values for inputs with a default: {', '.join(names)}"
    # A mask has integers of 0 and 1; with others, scores of attention overflow.
    masks = Plan(plan.extents, 2)
    for drawn, lift in ((masks, None), *((plan, lift) for lift in _LIFTS)):
        if all(has_numbers([sample[name] for sample in trial.results]) for name in trial.results[0]):
            break
        add([partial(draw_inputs, inputs, drawn, seed + 3, lift)])
    moved = moved_by_inputs(original) & {str(value.name) for value in original.graph.outputs}
    if any(is_still([sample[name] for sample in trial.results]) for name in moved):
        # A few numbers may be a shape, or the scales of one.
        usual, wide = trial.feeds[0], Plan(plan.extents, _WIDE)
        many = [value for value in inputs if usual[str(value.name)].size > _FEW]
        integers = [value for value in many if _is_integer(value)]
        lengths = draw_lengths(inputs, plan)
        # Two samples of one size show whether the other inputs change what has it.
        for draw in (partial(draw_inputs, inputs, plan, seed + 6 + n) for n in range(2 if sizes or lengths else 0)):
            add([partial(sized, draw)] if sizes else [])
            add([partial(lasting, draw)] if lengths else [])
        add([lambda: {**usual, **draw_inputs(integers, wide, seed + 4)}] if integers else [])
        add([lambda: {**usual, **spread(draw_inputs(many, plan, seed + 5))}] if many else [])


def _contradiction(original: ir.Model, results: Results) -> str | None:
    """The text of a contradiction between the original's results and the shapes that it declares; None without one."""
    values = [value for node in original.graph for value in node.outputs]
    declared = {str(value.name): value for value in (*values, *original.graph.outputs)}
    for name, parts in (each for sample in results for each in sample.items()):
        strange = contradiction(declared[name], parts[0].shape) if len(parts) == 1 else None
        if strange is not None:
            return strange
    return None


def drawn_anew(original: ir.Model) -> set[str]:
    """The values that two runs on the same inputs may give differently: they depend on numbers drawn without a seed."""
    return behind(original, draws_anew)


def behind(model: ir.Model, is_one: Callable[[ir.Node], bool]) -> set[str]:
    """The names of the values that depend on such a node, in the graph or inside another node."""
    return _reached(model.graph, set(), is_one)


def moved_by_inputs(model: ir.Model) -> set[str]:
    """The names of the values that depend on the data of an input, and not on its shape alone."""
    nodes = [node for node in model.graph if node.domain != "" or node.op_type not in ("Shape", "Size")]
    return _reached(nodes, set(model.graph.inputs), lambda node: False)


def _reached(nodes: Iterable[ir.Node], found: set[ir.Value], is_one: Callable[[ir.Node], bool]) -> set[str]:
    """The names of the values `found`, and of those that depend on them or on such a node."""
    for node in nodes:
        bodies = list(graphs_of(node))
        nodes = [node, *(inner for body in bodies for inner in body.all_nodes())]
        reads = {value for each in nodes for value in each.inputs}.union(*(body.outputs for body in bodies))
        if any(map(is_one, nodes)) or reads & found:
            found.update(node.outputs)
    return {str(value.name) for value in found}


def variant(model: ir.Model, trial: Trial) -> ir.Model:
    """The model of a trial."""
    return model if trial.change is None else trial.change(model)


def run(model: ir.Model | onnx.ModelProto, runtime: str, inner: Sequence[str], feeds: Feeds) -> Results:
    """Run one model on every sample. Its session is freed before the next is made, as models can be large."""
    return _results(Session(model, runtime, inner), feeds)


def _results(session: Session, feeds: Feeds) -> Results:
    return [{name: arrays(result) for name, result in session.run(feed).items()} for feed in feeds]


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400] if lines else 'no message'}"
