"""Random valid ONNX graphs over the whole op table, each with inputs to run it on.

A graph grows node by node, and every node runs when it is added. A node is rejected if onnxruntime rejects it, if it
overflows, or if rounding could flip its result. Each value has two arrays; the second one contains the noise that
another order of summation may add. Their difference at an output is the tolerance for a correct rewrite.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from graphs import session
from onnx import helper, numpy_helper
from random_values import (
    BLOWN_UP,
    EXACT,
    HIGHEST,
    I64,
    JUMPING,
    LARGEST,
    NOISE,
    NORMALIZING,
    SUMMING,
    U8,
    B,
    D,
    F,
    Rejected,
    Val,
    is_near,
    tolerance,
)

NEWEST_OPSET = 26
"""The newest opset that onnxruntime runs."""


@dataclass(frozen=True)
class RandomGraph:
    """A model with inputs, the tolerance of each output, and the operators in it."""

    seed: int
    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    tolerances: Mapping[str, float]
    operators: frozenset[tuple[str, int]]


@dataclass
class Builder:
    """A graph under construction. `node` adds a node and runs it. The values `kept` remain in the finished graph.

    `real` is its float type. `computes` draws a computed constant of a shape, type and range. While `is_constant` is
    set, every value that is picked or created is a constant.
    """

    seed: int
    opset: int
    symbolic: bool = False
    real: Any = F
    computes: Callable[[Builder, tuple[int, ...], Any, float, float], Val] | None = None
    is_constant: bool = False
    draw: random.Random = field(init=False)
    numbers: np.random.Generator = field(init=False)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, tuple[Val, list[Any]]] = field(default_factory=dict)
    constants: dict[str, Val] = field(default_factory=dict)
    values: dict[str, Val] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    _count: int = 0
    _dims: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def extent(self) -> int:
        return self.draw.choice((1, 1, 2, 2, 3, 3, 4, 4, 5, 6))

    def shape(self, rank: int) -> tuple[int, ...]:
        while True:
            shape = tuple(self.extent() for _ in range(rank))
            if np.prod(shape, dtype=int) <= LARGEST // 4:
                return shape

    def array(self, shape: Sequence[int], dtype: Any = None, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        dtype = self.real if dtype is None else dtype
        kind = np.dtype(dtype).kind
        if kind == "f":
            return self.numbers.uniform(low, high, shape).astype(dtype)
        if kind == "b":
            return self.numbers.integers(0, 2, shape).astype(dtype)
        low, high = (0, 200) if dtype == U8 and (low, high) == (-2, 2) else (low, high)
        return self.numbers.integers(int(low), int(high) + 1, shape).astype(dtype)

    def perm(self, rank: int) -> tuple[int, ...]:
        """A random permutation, often one that exporters write."""
        known = {
            3: [(0, 2, 1), (1, 0, 2)],
            4: [(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3)],
            5: [(0, 2, 3, 4, 1), (0, 4, 1, 2, 3)],
        }
        if rank in known and self.chance(0.6):
            return self.draw.choice(known[rank])
        return tuple(self.draw.sample(range(rank), rank))

    # -- values --------------------------------------------------------------------------------------------------------

    def input(
        self, shape: Sequence[int], dtype: Any = None, low: float = -2.0, high: float = 2.0, *, fixed: bool = False
    ) -> Val:
        """A new graph input. Some of its dims may be symbolic, unless `fixed`."""
        if self.is_constant:
            return self.stored(shape, dtype, low, high)
        name = f"x{len(self.inputs)}"
        array = self.array(shape, dtype, low, high)
        dims: list[Any] = list(shape)
        if self.symbolic and not fixed:
            dims = [self._symbol(extent) if self.chance(0.4) else extent for extent in shape]
        value = self._keep(Val(name, array, array, True))
        self.inputs[name] = (value, dims)
        return value

    def _symbol(self, extent: int) -> str | None:
        if self.chance(0.1):
            return None
        known = [name for name, size in self._dims.items() if size == extent]
        if known and self.chance(0.7):
            return self.draw.choice(known)
        name = f"s{len(self._dims)}"
        self._dims[name] = extent
        return name

    def constant(self, array: Any, dtype: Any = None) -> Val:
        array = np.asarray(array, dtype)
        name = f"c{len(self.constants)}"
        value = Val(name, array, array, True, constant=True)
        self.constants[name] = value
        self.values[name] = value
        self.unlisted.add(name)
        return value

    def ints(self, values: Iterable[int] | int) -> Val:
        return self.constant(np.array(values, I64))

    def stored(self, shape: Sequence[int], dtype: Any = None, low: float = -2.0, high: float = 2.0) -> Val:
        """A stored constant of random numbers. Later nodes may read it too."""
        value = self.constant(self.array(shape, dtype, low, high))
        self.unlisted.discard(value.name)
        return value

    def parameter(self, shape: Sequence[int], dtype: Any = None, low: float = -2.0, high: float = 2.0) -> Val:
        """A constant with numbers in this range, stored or computed."""
        dtype = np.dtype(self.real if dtype is None else dtype).type
        if self.computes is not None and not self.is_constant and self.chance(0.45):
            self.is_constant = True
            try:
                return self.computes(self, tuple(shape), dtype, low, high)
            except Rejected:
                pass
            finally:
                self.is_constant = False
        return self.constant(self.array(shape, dtype, low, high))

    def weight(self, *shape: int) -> Val:
        return self.parameter(shape, None, -1, 1)

    def _keep(self, value: Val) -> Val:
        self.values[value.name] = value
        return value

    def pick(self, fits: Callable[[Val], bool]) -> Val | None:
        """A value that fits; later ones are more likely."""
        listed = (v for v in self.values.values() if v.name not in self.unlisted)
        found = [v for v in listed if (v.constant or not self.is_constant) and fits(v)]
        if not found:
            return None
        if self.chance(0.6):
            return found[-1 - min(int(self.draw.expovariate(0.8)), len(found) - 1)]
        return self.draw.choice(found)

    @property
    def moving(self) -> int:
        """How many nodes depend on the inputs."""
        return sum(not self.values[node.output[0]].constant for node in self.nodes if node.output[0] in self.values)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def node(
        self, operator: str, inputs: Sequence[Val | None], *, results: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        """Add a node and return its result, or its results if `results` is not 1. Raises Rejected."""
        number = self._count
        names = [f"v{number}" + (f"_{i}" if i else "") for i in range(results)]
        given = [value.name if value is not None else "" for value in inputs]
        proto = helper.make_node(
            operator, given, names, name=f"n{number}", domain=domain,
            **{name: value for name, value in attributes.items() if value is not None},
        )  # fmt: skip
        made = self.add(proto, [v for v in inputs if v is not None])
        return made[0] if results == 1 else made

    def add(self, proto: onnx.NodeProto, read: Sequence[Val]) -> list[Val]:
        """Add this node, which reads `read`, including values captured by its subgraphs. Raises Rejected."""
        read = list({v.name: v for v in read}.values())
        clean = self._run(proto, {v.name: v.array for v in read})
        exact = all(v.exact for v in read)
        if proto.op_type in NORMALIZING:
            noisy = self._run(proto, {v.name: v.disturbed(self._count) for v in read})
        else:
            noisy = clean if exact else self._run(proto, {v.name: v.noisy for v in read})
        if not exact:
            self._reject_rounding_dependent(proto, read, clean)
        constant = bool(read) and all(v.constant for v in read)
        made = []
        for name, one, other in zip(proto.output, clean, noisy, strict=True):
            if not isinstance(one, np.ndarray):
                one = other = np.zeros(0, B)  # a sequence: only its consumers can be compared
            summed = self._summed(proto, read) if proto.op_type in SUMMING else 0.0
            made.append(self._judged(proto, name, one, other, exact, constant, summed))
        self.nodes.append(proto)
        self._count += 1
        for value in made:
            self._keep(value)
        return made

    def _reject_rounding_dependent(self, proto: onnx.NodeProto, read: Sequence[Val], clean: Sequence[Any]) -> None:
        """Raise Rejected if a discontinuous result depends on the rounding of the operands.

        Noise of both signs is tried, because noise of one sign may keep equal numbers apart.
        """
        results = [each for each in clean if isinstance(each, np.ndarray)]
        if proto.op_type not in JUMPING and all(each.dtype.kind == "f" for each in results):
            return
        mirrored = self._run(proto, {v.name: v.mirrored for v in read})
        for one, other in zip(clean, mirrored, strict=True):
            if isinstance(one, np.ndarray) and not is_near(one, other):
                raise Rejected("depends on rounding")

    def _summed(self, proto: onnx.NodeProto, read: Sequence[Val]) -> float:
        """The largest sum of absolute values in this node."""
        (sums,) = self._run(proto, {v.name: abs(v.array) if v.dtype.kind == "f" else v.array for v in read})
        return float(np.abs(sums.astype(D)).max(initial=0.0)) if sums.dtype.kind == "f" else 0.0

    def _judged(
        self,
        proto: onnx.NodeProto,
        name: str,
        clean: np.ndarray,
        noisy: np.ndarray,
        exact: bool,
        constant: bool,
        summed: float,
    ) -> Val:
        if clean.size > LARGEST or clean.shape != noisy.shape or clean.ndim > 6:
            raise Rejected("too large, or of a shape that depends on rounding")
        if clean.dtype.kind != "f":
            if not np.array_equal(clean, noisy):
                raise Rejected("depends on rounding")
            return Val(name, clean, clean, True, constant)
        if not np.isfinite(clean).all() or not np.isfinite(noisy).all():
            raise Rejected("not finite")
        scale = float(np.abs(clean.astype(D)).max(initial=0.0))
        if scale > HIGHEST:
            raise Rejected("too large a number")
        if exact and proto.op_type in EXACT:
            return Val(name, clean, clean, True, constant)
        level = NOISE.get(clean.dtype)
        if level is None:
            raise Rejected("a type without a tolerance")
        sign = self.numbers.choice((-1.0, 1.0), clean.shape)
        wide = noisy.astype(D) + sign * level * (np.abs(noisy.astype(D)) + 0.2 * max(scale, summed))
        if scale and float(np.abs(wide - clean.astype(D)).max(initial=0.0)) > BLOWN_UP * level * scale:
            raise Rejected("amplifies rounding")
        return Val(name, clean, np.asarray(wide).astype(clean.dtype), False, constant)

    def _run(self, proto: onnx.NodeProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        inputs, constants = [], []
        for name, array in feeds.items():
            if name in self.constants:
                constants.append(numpy_helper.from_array(array, name))
            elif name in self.unlisted:
                raise Rejected("a sequence")
            else:
                inputs.append(
                    helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                )
        outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in proto.output]
        graph = helper.make_graph([proto], "node", inputs, outputs, constants)
        model = self.assemble(graph)
        try:
            fed = {name: array for name, array in feeds.items() if name not in self.constants}
            return list(session(model).run(None, fed))
        except Exception as error:
            raise Rejected(str(error)) from error

    def assemble(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=self.functions)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> RandomGraph:
        """The model. Outputs are all unread values and some others; unused inputs and constants are removed."""
        outputs = self._outputs()
        kept = self._needed(outputs)
        made = {name for node in kept for name in node.output}
        outputs += [self.values[name] for name in self.kept if name not in made]
        kept = self._needed(outputs)
        if not outputs:
            raise Rejected("no output")
        nodes = kept if self.chance(0.95) else list(self.nodes)
        used = {name for node in nodes for name in _reads(node)} | {v.name for v in outputs}
        protos, constants = [], []
        for name, value in self.constants.items():
            if name not in used:
                continue
            tensor = numpy_helper.from_array(value.array, name)
            if self.chance(0.3) and self.opset >= 9:
                protos.append(helper.make_node("Constant", [], [name], name=f"n_{name}", value=tensor))
            else:
                constants.append(tensor)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)
            for name, (value, dims) in self.inputs.items()
        ]
        infos = [
            helper.make_tensor_value_info(
                v.name,
                helper.np_dtype_to_tensor_dtype(v.dtype),
                self.inputs[v.name][1] if v.name in self.inputs else [None] * v.rank,
            )
            for v in outputs
        ]
        graph = helper.make_graph([*protos, *nodes], "random", inputs, infos, constants)
        if self.chance(0.2):
            for node in graph.node:
                node.name = ""
        model = self.assemble(graph)
        operators = frozenset((node.op_type, self.opset) for node in nodes if node.domain == "")
        return RandomGraph(
            self.seed,
            _with_inferred_outputs(model),
            {name: value.array for name, (value, _) in self.inputs.items()},
            {v.name: tolerance(v) for v in outputs},
            operators,
        )

    def _outputs(self) -> list[Val]:
        read = {name for node in self.nodes for name in _reads(node)}
        made = [self.values[name] for node in self.nodes for name in node.output if name and name not in self.unlisted]
        moved = [v for v in made if not v.constant]
        outputs = [v for v in moved if v.name not in read][-5:]
        if moved and self.chance(0.4):
            outputs.append(self.draw.choice(moved))
        if self.inputs and self.chance(0.06):
            outputs.append(self.draw.choice([value for value, _ in self.inputs.values()]))
        constants = [v for v in made if v.constant]
        if constants and self.chance(0.1):
            outputs.append(self.draw.choice(constants))
        self.draw.shuffle(outputs)
        return list({v.name: v for v in outputs}.values())

    def _needed(self, outputs: Sequence[Val]) -> list[onnx.NodeProto]:
        wanted = {v.name for v in outputs}
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(_reads(node))
        return kept[::-1]


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that the node and its subgraphs read."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else [])):
            own = {name for inner in graph.node for name in inner.output}
            found += [name for inner in graph.node for name in _reads(inner) if name not in own]
            found += [value.name for value in graph.output if value.name not in own]
    return found


def _with_inferred_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The outputs with inferred shapes; dims that inference does not know are unknown."""
    bare = deepcopy(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    known = {value.name: value for value in onnx.shape_inference.infer_shapes(bare, data_prop=True).graph.output}
    for value in model.graph.output:
        if known[value.name].type.tensor_type.HasField("shape"):
            value.CopyFrom(known[value.name])
    return model
