"""Shape arithmetic over dims that are not known before the run, as symbols.

Exporters write the shape of a Reshape as Shape, Gather, Cast, Div, Mul and Concat, and with a symbolic batch it is no
constant. Each element of such a vector is a term: a number times named dims, `2*batch*height`. Where all terms of a
value are numbers the value is a constant; where they are symbols, a Reshape by it has a shape of these symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
import onnx

from relayout.layout.terms import GENERATED, Term, is_name, term_of
from relayout.model.dims.dim_unification import MadeUpNames
from relayout.model.dims.formula import LONGEST_FORMULA
from relayout.model.dims.lone_nodes import inferred_alone
from relayout.model.dims.operand_facts import Operands
from relayout.model.dims.operator_placeholders import has_values
from relayout.model.dims.symbolic_shapes import (
    COMPUTED,
    KEPT,
    SHAPED,
    exact_quotients,
    is_generated,
    left_by_elements,
    reshaped,
)
from relayout.model.dims.symbolic_vectors import (
    INTEGERS,
    KIND,
    LONGEST,
    OF_FIRST,
    OF_MATRICES,
    RULES,
    Dims,
    Vector,
    constant,
)
from relayout.model.proto_graphs import (
    STANDARD_DOMAINS,
    attributes_of,
    branch_taken,
    declared_values,
    dims_by_name,
    value_names,
)

_RULES = {**SHAPED, **KEPT, **COMPUTED}
_FOLLOWED = frozenset([*_RULES, "Reshape", "Split"])


class Symbols:
    """The values that a graph's shape arithmetic computes from the dims of others and from constants.

    `values` has the results of shape arithmetic. `shapes` has, for the result of each operator that one of them gives
    a shape (Reshape, Expand, Slice, Resize, Range), its shape by symbols and its shape in the graph.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        known: Mapping[str, np.ndarray],
        opsets: Sequence[onnx.OperatorSetIdProto] = (),
        *,
        are_settled: bool = False,
    ) -> None:
        """`known` has the constants by name. `opsets` give the version of the operators. `are_settled`: all else
        is known, so that extents which are still open may be formulas of names that an exporter has made up."""
        self._known, self._opsets, self._are_settled = known, opsets, are_settled
        self._dims = _dims_of(graph)
        self._kinds = _element_types(graph)
        self._made_up = MadeUpNames(graph)
        # Names that stand for several extents.
        self._ambiguous: set[str] = set()
        self._follow_nodes(graph)
        while self._contradicted:
            self._ambiguous |= self._contradicted
            self._follow_nodes(graph)

    def _follow_nodes(self, graph: onnx.GraphProto) -> None:
        self.values: dict[str, Vector] = {}
        self.shapes: dict[str, tuple[Dims, Dims]] = {}
        # Made-up names, each with the term that such an operator shows to be equal.
        self._same: dict[str, Term] = {}
        self._contradicted: set[str] = set()
        # Quotients that Reshapes show to leave no remainder, each as a part of its dividend.
        self._exact: dict[str, Term] = {}
        self._slices: dict[str, Operands] = {}
        for node in graph.node:
            if node.domain not in STANDARD_DOMAINS:
                continue
            if node.op_type == "If":
                self._follow_branch(node)
            # Before all else is known, a formula would hide that an extent turns out to be a number.
            if node.op_type in _FOLLOWED and (self._are_settled or node.op_type not in COMPUTED):
                self._follow_shape(node)
            else:
                self._follow_alone(node)
            if node.op_type in RULES and has_values(node):
                self._follow(node)

    def constants(self) -> dict[str, np.ndarray]:
        """The values that are integers throughout, as arrays. A value of another element type is left out."""
        found = {}
        for name, (terms, is_scalar, columns) in self.values.items():
            kind = self._kinds.get(name)
            numbers = [term.factor for term in terms if term is not None and not term.names]
            if kind in INTEGERS and len(numbers) == len(terms) and all(each.denominator == 1 for each in numbers):
                array = np.array([int(each) for each in numbers], onnx.helper.tensor_dtype_to_np_dtype(kind))
                found[name] = array.reshape(()) if is_scalar else array.reshape(-1, columns) if columns else array
        return found

    def better_shapes(self) -> Iterator[onnx.ValueInfoProto]:
        """The results whose shapes are better known than in the graph: an extent that was unknown or had a generated
        name has a number, or the name of another dim."""
        for name, (shape, known) in self.shapes.items():
            if not any(map(_is_better, shape, known)):
                continue
            hint = onnx.ValueInfoProto(name=name)
            hint.type.tensor_type.elem_type = self._kinds.get(name, 0)
            hint.type.tensor_type.shape.SetInParent()
            for new, old in zip(shape, known, strict=True):
                dim = hint.type.tensor_type.shape.dim.add()
                term = new if _is_better(new, old) else old
                if term is not None and not term.names:
                    dim.dim_value = int(term.factor)
                elif term is not None:
                    dim.dim_param = str(term)
            yield hint

    def equal_dims(self) -> Iterator[tuple[str, str]]:
        """Pairs of names of dims that turn out to be equal, the second made up. The first may be a formula. Dims with
        one formula of names that may yet give way are equal to each other: they keep the first's name."""
        named: dict[Term, str] = {}
        for old, new in self._same.items():
            is_name = new.factor == 1 and len(new.names) == 1
            if is_name or self._is_formula_of_given(new):
                yield str(new), old
            elif new.names and (first := named.setdefault(new, old)) != old:
                yield first, old

    def numbers(self) -> dict[str, int]:
        """The made-up names that turn out to be a number."""
        return {old: int(new.factor) for old, new in self._same.items() if not new.names and new.factor >= 0}

    def _follow(self, node: onnx.NodeProto) -> None:
        given = attributes_of(node)
        given[KIND] = self._kinds.get(node.output[0], 0)
        if node.op_type in ("Shape", "Size"):
            own = self._shape_of(node.input[0])
            read = [None if own is None else Vector(own)]
        else:
            names = list(node.input[:1] if node.op_type in OF_FIRST else node.input)
            while names and not names[-1]:
                names.pop()  # an operand that is left out at the end says nothing
            read = [self._value(name) or (self._unknown(name) if node.op_type == "Concat" else None) for name in names]
        operands = [each for each in read if each is not None]
        if len(operands) < len(read) or (any(v.columns for v in operands) and node.op_type not in OF_MATRICES):
            return
        vector = RULES[node.op_type](operands, given)
        if vector is not None and len(vector.terms) <= LONGEST:
            self.values[node.output[0]] = vector

    def _follow_shape(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Split":
            source = self._shape_of(node.input[0])
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            if source is not None and -len(source) <= axis < len(source):
                place = axis % len(source)
                for name in node.output:
                    self._enter(name, (*source[:place], None, *source[place + 1 :]))
            return
        known = self._dims.get(node.output[0])
        is_open = known is not None and any(dim is None or self._is_open(dim) for dim in known)
        if not is_open and node.op_type not in SHAPED and node.op_type != "Reshape":
            return
        read = Operands(node, self._shape_of, self._value, self._slices)
        shape = self._reshaped(read, known) if node.op_type == "Reshape" else _RULES[node.op_type](read)
        if node.op_type == "Slice":
            self._slices[node.output[0]] = read
        if shape is not None:
            self._enter(node.output[0], shape)

    def _follow_branch(self, node: onnx.NodeProto) -> None:
        """Give the results of an If whose condition is known the values and shapes of the outer values that the branch
        which runs passes on. PyTorch's exporter writes such an If for `tile`."""
        branch = branch_taken(node, self._known)
        if branch is None:
            return
        copies = [each for each in branch.node if each.op_type == "Identity" and has_values(each)]
        passed = {each.output[0]: each.input[0] for each in copies}
        made = value_names(branch)
        for name, result in zip(node.output, branch.output, strict=True):
            source = result.name
            while source in passed:
                source = passed[source]
            if source in made:
                continue
            value, shape = self._value(source), self._shape_of(source)
            if value is not None:
                self.values[name] = value
            if shape is not None:
                self._enter(name, shape)

    def _follow_alone(self, node: onnx.NodeProto) -> None:
        """Enter the shapes of results that are not known in full, of an operator whose operands' shapes are."""
        if all(_numbers(self._dims.get(name)) is not None for name in node.output if name):
            return
        shapes: dict[str, tuple[int, ...]] = {}
        for name in node.input:
            shape = _numbers(self._shape_of(name)) if name else ()
            if shape is None:
                return
            shapes[name] = shape
        for name, found in inferred_alone(node, shapes, self._kinds, self._known, self._opsets).items():
            self._enter(name, tuple([Term(Fraction(extent)) for extent in found]))

    def _enter(self, name: str, shape: Dims) -> None:
        """Compare the shape of a value with what the graph has of it."""
        known = self._dims.get(name)
        known = (None,) * len(shape) if known is None else known
        if len(known) != len(shape):
            return
        self.shapes[name] = shape, known
        for new, old in zip(shape, known, strict=True):
            if new is None or old is None or new.factor.denominator != 1 or self._is_made_up_formula(new):
                continue
            if not self._is_open(old) or old.names[0] in new.names:
                continue
            if is_generated(old) or self._is_formula_of_given(new):
                found = self._same.setdefault(old.names[0], new)
                if found != new and not is_generated(old):
                    self._contradicted.add(old.names[0])

    def _is_made_up_formula(self, term: Term) -> bool:
        """Whether it has a formula of names that may yet give way, which would not give way inside it."""
        formulas = [name for name in term.names if not is_name(name)]
        return any(GENERATED in name if self._are_settled else name in self._made_up for name in formulas)

    def _is_formula_of_given(self, term: Term) -> bool:
        is_given = self._are_settled or not any(name in self._made_up for name in term.names)
        return is_given and term.is_formula and len(str(term)) <= LONGEST_FORMULA

    def _is_open(self, dim: Term) -> bool:
        """Whether the dim has a made-up name, for which a term can be found."""
        if dim.factor != 1 or len(dim.names) != 1 or dim.names[0] in self._ambiguous:
            return False
        return is_generated(dim) or dim.names[0] in self._made_up

    def _reshaped(self, read: Operands, known: Dims | None) -> Dims | None:
        source, shape = read.dims(), reshaped(read, self._exact)
        if source is None:
            return None
        partly = known if shape is None else shape if None in shape else None
        if partly is not None:
            shape = left_by_elements(source, partly) or shape
        self._exact |= exact_quotients(source, shape) if shape is not None else {}
        return shape

    def _value(self, name: str) -> Vector | None:
        if name not in self.values and name in self._known:
            vector = constant(self._known[name])
            if vector is not None:
                self.values[name] = vector
        return self.values.get(name)

    def _unknown(self, name: str) -> Vector | None:
        """A vector of unknown elements, for a value of one known extent."""
        shape = _numbers(self._dims.get(name))
        return Vector((None,) * shape[0]) if shape is not None and len(shape) == 1 and shape[0] <= LONGEST else None

    def _shape_of(self, name: str) -> Dims | None:
        dims = self._dims.get(name)
        if dims is None:
            return None
        return tuple(None if dim is None else self._same.get(dim.names[0], dim) if dim.names else dim for dim in dims)


def _element_types(graph: onnx.GraphProto) -> dict[str, int]:
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return stored | {info.name: info.type.tensor_type.elem_type for info in declared_values(graph)}


def _numbers(shape: Dims | None) -> tuple[int, ...] | None:
    """The extents, where all are known numbers."""
    if shape is None:
        return None
    known = tuple([int(dim.factor) for dim in shape if dim is not None and not dim.names])
    return known if len(known) == len(shape) else None


def _dims_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    found: dict[str, Dims] = {t.name: tuple(Term(Fraction(n)) for n in t.dims) for t in graph.initializer}
    return found | {name: tuple(map(_dim, dims)) for name, dims in dims_by_name(graph).items()}


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Term | None:
    if dim.HasField("dim_value"):
        return Term(Fraction(dim.dim_value))
    if GENERATED in dim.dim_param:
        return Term(Fraction(1), (dim.dim_param,))
    return term_of(dim.dim_param) if dim.dim_param else None


def _is_better(new: Term | None, old: Term | None) -> bool:
    """Whether the new term says more of an extent: a number, or a name that was not generated. A formula of given names
    says more only than nothing. Others are not used."""
    if new is None or new.factor.denominator != 1:
        return False
    if new.names and (new.factor != 1 or len(new.names) > 1):
        return old is None and new.is_formula and len(str(new)) <= LONGEST_FORMULA
    if old is None:
        return True
    return bool(old.names) and new != old and (not new.names or is_generated(old))
