"""Canonicalization of a model, so that later stages handle one form only.

The standard domain is '', an unknown extent has no value, constants are inputs only if they can be overridden, local
functions are inlined (except those of the domain `relayout`, our own operators), a convolution or product that
onnxruntime has fused with its activation is ONNX's operators again, its convolution of channels last is our own, nodes
are in topological order, and graphs have a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import count, starmap

import onnx
import onnx_ir as ir

from relayout.errors import InputError, InternalError
from relayout.model.layout_functions import with_bodies
from relayout.model.layout_transform import PACKING
from relayout.model.operator_schema import since
from relayout.model.proto_graphs import (
    STANDARD_DOMAINS,
    attributes_of,
    declared_values,
    graphs_inside,
    nodes_inside,
    opset_of,
    replace_entries,
    subgraphs_of,
    unused_name,
)
from relayout.model.structure import OLDEST_OPSET, Structure, check_structure
from relayout.ops.contributed import CONTRIBUTED
from relayout.ops.operand_roles import OWN_DOMAIN

OLDEST_IR_VERSION_WITH_CONSTANTS = 4
ONE_SIDED = "STFT"
# Since then a Resize has either scales or sizes, and the other may be absent.
RESIZE_WITHOUT_SCALES = 13
# Since then the bounds of a Clip are operands.
CLIP_WITH_OPERANDS = 11
# Since then the third operand of a Gemm may be absent.
GEMM_WITHOUT_SUMMAND = 11
# Since then a Constant may have any type. Before, it has floats, but PyTorch's exporter wrote integers too, and
# onnxruntime takes them.
CONSTANT_OF_ANY_TYPE = 9
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
# onnxruntime's operators with an activation behind, and ONNX's operator before it.
FUSED = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
# onnxruntime's convolution of channels last, with a kernel of input channels last too.
LAST, LAST_LAYOUTS = "NhwcConv", {"data_layout": "NHWC", "kernel_layout": "OHWI"}
# For each activation, the attributes that the entries of `activation_params` are.
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh"), ()),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
}


def normalize(proto: onnx.ModelProto, structure: Structure, notes: list[str]) -> tuple[onnx.ModelProto, Structure]:
    """The canonical form of `proto`, which may be changed in place, and its structure; warnings are appended to
    `notes`."""
    _name_opsets(proto)
    if opset_of(proto.opset_import) < CONSTANT_OF_ANY_TYPE:
        _store_constants(proto, notes)
    used = {domain for domain, *_ in structure.kinds}
    operators = {operator for _, operator, *_ in structure.kinds}
    unnamed = 0
    for graph in subgraphs_of(proto.graph) if structure.has_graphs else (proto.graph,):
        if not graph.name:
            graph.name = "graph"
            unnamed += 1
        if "ai.onnx" in used:
            _name_standard(graph.node)
        if OWN_DOMAIN in used:
            _split_overloads(graph.node)
        for info in declared_values(graph):
            _clear_invalid_extents(info.type)
        _declare_constants(graph)
        if ONE_SIDED in operators:
            _say_one_sided(graph.node)
    if unnamed:
        notes.append(f"{unnamed} of the model's graphs had no name, which ONNX demands: they are called 'graph'")
    for function in proto.functions:
        _name_standard(function.node)
        _say_one_sided(nodes_inside(function.node))
        if OWN_DOMAIN in used:
            _split_overloads(nodes_inside(function.node))
        if function.domain in STANDARD_DOMAINS and onnx.defs.has(function.name):
            notes.append(f"a function has the name of ONNX's {function.name}: it is used here, and not in all runtimes")
        if function.domain == OWN_DOMAIN and not function.overload:
            function.name, _, function.overload = function.name.partition("_")
    _import_domains(proto, used, notes)
    if CONTRIBUTED in used and not operators.isdisjoint({*FUSED, LAST}):
        made = _read_last(proto, notes)
        if _split_fused(proto, notes) or made:
            proto = with_bodies(proto, made) if made else proto
            structure = check_structure(proto)
            operators = {operator for _, operator, *_ in structure.kinds}
    if proto.training_info:
        notes.append("the model's training information is not kept")
    if proto.ir_version < OLDEST_IR_VERSION_WITH_CONSTANTS:
        _separate_constants(proto, notes)
    if structure.in_order and all(function.domain == OWN_DOMAIN for function in proto.functions):
        if structure.has_graphs and "Resize" in operators:
            _leave_out_empty(proto)
        return proto, structure
    if not structure.in_order:
        notes.append(
            "the nodes are not in the order that ONNX demands, each behind those that it reads: they were sorted"
        )
    _align_opsets(proto)
    model = ir.from_proto(proto)
    _inline(model)
    model.graph.sort()
    inlined: onnx.ModelProto = ir.to_proto(model)
    _leave_out_empty(inlined)
    return inlined, check_structure(inlined)


def _name_opsets(proto: onnx.ModelProto) -> None:
    for owner in (proto, *proto.functions):
        versions = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in owner.opset_import}
        if owner is proto and "" not in versions:
            # No standard operator yet, but a Transpose may be added: the newest opset of the model's IR version.
            table = onnx.helper.VERSION_TABLE
            versions[""] = max((row[2] for row in table if row[1] <= proto.ir_version), default=OLDEST_OPSET)
            versions[""] = max(versions[""], OLDEST_OPSET)
        owner.ClearField("opset_import")
        for domain, version in versions.items():
            owner.opset_import.add(domain=domain, version=version)


def _store_constants(proto: onnx.ModelProto, notes: list[str]) -> None:
    """Make a constant of the graph of each Constant whose type its opset does not allow. One that is an output is read
    by an Identity, which gives it."""
    stored = 0
    graphs = list(subgraphs_of(proto.graph))
    taken = {name for graph in graphs for node in graph.node for name in (*node.input, *node.output)}
    # Inner graphs first: to replace the nodes of a graph copies them.
    for graph in reversed(graphs):
        results, nodes = {value.name for value in graph.output}, []
        for node in graph.node:
            tensor = _tensor_of(node)
            if tensor is None or tensor.data_type in FLOATS:
                nodes.append(node)
                continue
            name = node.output[0]
            if name in results:
                name = next(each for each in (f"{name}_data{'_' * n}" for n in count()) if each not in taken)
                taken.add(name)
                nodes.append(onnx.helper.make_node("Identity", [name], node.output, node.name))
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = name
            stored += 1
        replace_entries(graph.node, nodes)
    if stored:
        notes.append(
            f"before opset {CONSTANT_OF_ANY_TYPE} a Constant has floats: {stored} of others became initializers"
        )


def _tensor_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    is_constant = node.op_type == "Constant" and node.domain in STANDARD_DOMAINS
    return next((each.t for each in node.attribute if is_constant and each.name == "value"), None)


def _align_opsets(proto: onnx.ModelProto) -> None:
    """Give functions the model's opset if all their operators mean the same there, so that they can be inlined."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    for function in proto.functions:
        for opset in function.opset_import:
            wanted = versions.get(opset.domain, opset.version)
            if all(
                since(node.op_type, node.domain, opset.version) == since(node.op_type, node.domain, wanted)
                for node in nodes_inside(function.node)
                if node.domain == opset.domain
            ):
                opset.version = wanted


def _name_standard(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give the standard domain its shorter name."""
    for node in nodes:
        if node.domain == "ai.onnx":
            node.domain = ""


def _split_overloads(nodes: Iterable[onnx.NodeProto]) -> None:
    """Read `Conv_NHWC_HWIO` of our domain as the overload `NHWC_HWIO` of `Conv`: no operator of ONNX has an
    underscore, and TVM's layout_transform has no overloads."""
    for node in nodes:
        if node.domain == OWN_DOMAIN and not node.overload and (node.domain, node.op_type) != PACKING:
            node.op_type, _, node.overload = node.op_type.partition("_")


def _say_one_sided(nodes: Iterable[onnx.NodeProto]) -> None:
    """Write the default of a STFT's `onesided`, which is 1: onnx's inference takes 0 where it is absent."""
    for node in nodes:
        if node.op_type == ONE_SIDED and not node.domain and all(each.name != "onesided" for each in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _read_last(proto: onnx.ModelProto, notes: list[str]) -> Set[str]:
    """Read onnxruntime's NhwcConv as our own Conv in its layouts, in subgraphs too. onnxruntime has no kernel for it on
    CPUs. Returns the names of the results of those that are read so: none where an operator of our own lacks its body,
    so that it does not get the one of these."""
    made: set[str] = set()
    bodies = {(function.domain, function.name, function.overload) for function in proto.functions}
    calls = (each for each in nodes_inside(proto.graph.node) if each.domain == OWN_DOMAIN)
    if any((each.domain, each.op_type, each.overload) not in bodies for each in calls):
        return made
    graphs = list(subgraphs_of(proto.graph))
    ranks = {tensor.name: len(tensor.dims) for graph in graphs for tensor in graph.initializer[:]}
    for graph in graphs:
        for node in graph.node:
            if (node.domain, node.op_type) != (CONTRIBUTED, LAST) or len(node.input) < 2 or len(node.output) != 1:
                continue
            if ranks.get(node.input[1], 2 + len(attributes_of(node).get("kernel_shape", ()))) != 4:
                continue
            node.domain, node.op_type, node.overload = OWN_DOMAIN, "Conv", "_".join(LAST_LAYOUTS.values())
            node.attribute.extend(starmap(onnx.helper.make_attribute, LAST_LAYOUTS.items()))
            made.add(node.output[0])
    if made:
        notes.append(f"onnxruntime's {LAST} is read as a Conv with channels last: {len(made)} of them")
    if made and all(opset.domain != OWN_DOMAIN for opset in proto.opset_import):
        proto.opset_import.add(domain=OWN_DOMAIN, version=1)
    return made


def _split_fused(proto: onnx.ModelProto, notes: list[str]) -> bool:
    """Write onnxruntime's FusedConv and FusedGemm as ONNX's operators, in subgraphs too: a convolution that backends
    know, and an activation. onnxruntime fuses them again when it loads the model. Returns whether there are any."""
    opset = opset_of(proto.opset_import)
    graphs = list(subgraphs_of(proto.graph))
    taken = {name for graph in graphs for node in graph.node[:] for name in (node.name, *node.output)}
    taken |= {each.name for graph in graphs for each in (*graph.input, *graph.initializer)}
    split = Counter[str]()
    # The innermost first: an entry that is put back is a copy, with the graphs inside it.
    for graph in reversed(graphs):
        types = {tensor.name: tensor.data_type for tensor in graph.initializer[:]}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node[:]:
            parts = _parts_of_fused(node, opset, types, taken)
            split[node.op_type] += bool(parts)
            nodes += parts or [node]
        replace_entries(graph.node, nodes)
    for operator, number in sorted((+split).items()):
        notes.append(f"onnxruntime's {operator} is written as {FUSED[operator]} and its activation: {number} of them")
    return any(split.values())


def _parts_of_fused(
    node: onnx.NodeProto, opset: int, types: Mapping[str, int], taken: set[str]
) -> list[onnx.NodeProto]:
    """ONNX's operators that compute the same as `node`; none where it is another operator, or is not known so well."""
    if node.domain != CONTRIBUTED or node.op_type not in FUSED or len(node.input) < 2 or len(node.output) != 1:
        return []
    operator, given = FUSED[node.op_type], {each.name: each for each in node.attribute}
    activation = given["activation"].s.decode(errors="replace") if "activation" in given else ""
    names = ACTIVATIONS.get(activation)
    kept = [each for name, each in given.items() if not name.startswith("activation")]
    # A FusedGemm has the parameters of its activation in attributes of their own. It stays if it has any.
    values = list(given["activation_params"].floats) if "activation_params" in given else []
    if names is None or len(values) != len(names) or (operator == "Gemm" and len(given) != len(kept) + 1):
        return []
    operands, summand = list(node.input[:3]), "".join(node.input[3:4])
    if not operands[-1]:
        operands.pop()
    if operator == "Gemm" and len(operands) < 3 and opset < GEMM_WITHOUT_SUMMAND:
        return []
    parts: list[onnx.NodeProto] = []

    def add(
        kind: str, operands: list[str], attributes: Iterable[onnx.AttributeProto] = (), is_last: bool = False
    ) -> str:
        result = node.output[0] if is_last else unused_name(f"{node.output[0]}_{kind}", taken, first=2)
        name = node.name if not parts or not node.name else unused_name(f"{node.name}_{kind}", taken, first=2)
        parts.append(onnx.helper.make_node(kind, operands, [result], name))
        parts[-1].attribute.extend(attributes)
        return result

    made = add(operator, operands, kept)
    if summand:
        made = add("Add", [made, summand])
    if activation != "Clip" or opset < CLIP_WITH_OPERANDS:
        add(activation, [made], map(onnx.helper.make_attribute, names, values), is_last=True)
        return parts
    element = types.get(node.input[1])
    if element is None:
        return []
    bounds = [onnx.helper.make_tensor("", element, [], [value]) for value in values]
    limits = [add("Constant", [], [onnx.helper.make_attribute("value", bound)]) for bound in bounds]
    add("Clip", [made, *limits], is_last=True)
    return parts


def _leave_out_empty(proto: onnx.ModelProto) -> None:
    """Leave out the empty operands of each Resize inside a node. Exporters write them where an operand may be absent.
    onnx's inference does not see that a constant of a graph around it is empty, and finds both scales and sizes.
    """
    if opset_of(proto.opset_import) >= RESIZE_WITHOUT_SCALES:
        _leave_out(proto.graph, None)


def _leave_out(graph: onnx.GraphProto, around: Set[str] | None) -> None:
    """The same for one graph and those inside it; `around` are the empty constants of the graphs around it, None for
    the outermost one."""
    own = {tensor.name: 0 in tensor.dims for tensor in graph.initializer}
    for node in graph.node[:]:
        is_empty = node.op_type == "Constant" and any(0 in each.t.dims for each in node.attribute)
        own.update(dict.fromkeys(node.output, is_empty))
    own.update({info.name: False for info in graph.input})
    empty = {name for name in around or () if name not in own} | {name for name, is_empty in own.items() if is_empty}
    for node in graph.node[:]:
        if around is not None and node.op_type == "Resize" and node.domain in ("", OWN_DOMAIN):
            left = ["" if name in empty else name for name in node.input[1:]]
            if any(left[1:]):
                node.input[1:] = left
        for inner in graphs_inside([node]):
            _leave_out(inner, empty)


def _import_domains(proto: onnx.ModelProto, used: Set[str], notes: list[str]) -> None:
    """Set a missing version of a domain that ONNX does not define to 1; such versions have no meaning."""
    imported = {opset.domain for opset in proto.opset_import}
    missing = sorted(domain for domain in used - imported if not domain.startswith("ai.onnx"))
    for domain in missing:
        proto.opset_import.add(domain=domain, version=1)
    # A function imports the domains of its own nodes.
    of_nodes = {node.domain for node in nodes_inside(proto.graph.node)} if missing else set()
    if unknown := ", ".join(domain for domain in missing if domain in of_nodes):
        notes.append(f"the model imports no version of {unknown}, and has nodes of it: version 1 is used")


def _separate_constants(proto: onnx.ModelProto, notes: list[str]) -> None:
    """Before IR version 4 every constant had to be listed as an input; runtimes take these for constants."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    listed = [info for info in proto.graph.input if info.name in constants]
    for info in listed:
        proto.graph.input.remove(info)
    if listed:
        notes.append(f"IR version {proto.ir_version} lists constants as inputs: {len(listed)} became plain constants")
    proto.ir_version = OLDEST_IR_VERSION_WITH_CONSTANTS


def _clear_invalid_extents(proto: onnx.TypeProto) -> None:
    """Clear extents of -1 and names without a letter or digit, such as `?`: exporters write unknown extents so."""
    if proto.HasField("tensor_type"):
        for dim in proto.tensor_type.shape.dim[:]:
            is_unnamed = dim.HasField("dim_param") and not any(map(str.isalnum, dim.dim_param))
            if is_unnamed or dim.dim_value == -1:
                dim.ClearField("value")


def _declare_constants(graph: onnx.GraphProto) -> None:
    """Give each declared constant the type of its data: converters to another element type leave the old one there."""
    declared = {info.name: info.type.tensor_type for info in graph.value_info}
    for tensor in graph.initializer if declared else ():
        known = declared.get(tensor.name)
        if known is None:
            continue
        if known.elem_type != tensor.data_type or [dim.dim_value for dim in known.shape.dim] != tensor.dims:
            known.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type)


def _inline(model: ir.Model) -> None:
    outputs = [value.name for value in model.graph.outputs]
    try:
        inline(model, lambda function: function.domain != OWN_DOMAIN)
    except Exception as error:
        raise InputError(
            "the model's local functions cannot be inlined",
            where="model, functions",
            expected="functions whose operators mean the same in the model's opset",
            found=str(error.__cause__ or error)[:500],
            hint="export the model and its functions with one opset",
        ) from error
    if [value.name for value in model.graph.outputs] != outputs:
        raise InternalError("inlining changed the names of the outputs", expected=", ".join(map(str, outputs)))


def inline(model: ir.Model, which: Callable[[ir.Function], bool] = lambda function: True) -> None:
    """Inline the calls of these functions, in subgraphs and functions too, and remove the functions.

    Annotations of a call's result are kept on the value that replaces it. The operator in a body of ours has the name
    of the call.
    """
    from onnx_ir.passes.common import InlinePass

    bodies = {key: function for key, function in model.functions.items() if which(function)}
    for function in bodies.values():
        _copy_forwarded_inputs(function)
        _clear_unread_results(function.all_nodes(), bodies)
    _clear_unread_results(model.graph.all_nodes(), bodies)
    results = {
        (node.graph, value.name): dict(value.metadata_props)
        for node in model.graph.all_nodes()
        if node.op_identifier() in bodies
        for value in node.outputs
    }
    calls = {
        (node.graph, node.outputs[0].name): (node.op_type, node.name)
        for node in model.graph.all_nodes()
        if node.domain == OWN_DOMAIN and node.name and node.op_identifier() in bodies
    }
    own = set(_values(model.graph))
    InlinePass(which)(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if (node.graph, value.name) in results:
                value.metadata_props.update(results[node.graph, value.name])
                own.add(value)
            if (node.graph, value.name) in calls:
                _name_as_call(node, *calls[node.graph, value.name])
    _make_names_unique(model.graph, own)
    for key in bodies:
        # Functions without a call remain after inlining.
        model.functions.pop(key, None)


def _name_as_call(last: ir.Node, operator: str, name: str) -> None:
    """Give the operator of an inlined body of ours, which is behind conversions of its result, the name of the call:
    a node of the source may have that of the body's."""
    node: ir.Node | None = last
    while node is not None and node.op_type != operator:
        node = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if node is not None:
        node.name = name


def _copy_forwarded_inputs(function: ir.Function) -> None:
    """Insert an Identity for every result that is also an input."""
    for place, value in enumerate(function.outputs):
        if value.is_graph_input():
            copy = ir.node("Identity", [value])
            function.append(copy)
            function.outputs[place] = copy.outputs[0]


def _clear_unread_results(nodes: Iterable[ir.Node], bodies: dict[ir.OperatorIdentifier, ir.Function]) -> None:
    """Replace the empty names of results of calls with None."""
    for node in nodes:
        if node.op_identifier() in bodies:
            for value in node.outputs:
                value.name = value.name or None


def _make_names_unique(graph: ir.Graph, own: Set[ir.Value]) -> None:
    """Rename the values that are not the graph's `own`, in subgraphs too, so that names are unique."""
    taken = {value.name or "" for value in own}
    for value in dict.fromkeys(_values(graph)):
        if value in own or not value.name:
            continue
        value.name = unused_name(value.name, taken, first=2)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of the graph and of those inside it."""
    for each in (graph, *graph.subgraphs()):
        yield from each.inputs
        # A list, because renaming changes the dict.
        yield from list(each.initializers.values())
        for node in each:
            yield from node.outputs
