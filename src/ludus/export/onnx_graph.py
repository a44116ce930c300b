"""ONNX: the policy's jaxpr is translated, one primitive after the other.

JAX traces any network, of ludus or of the user, to a jaxpr; it has few kinds of primitives, and most have one
counterpart in ONNX. This takes less code than a graph for each kind of network and space, and no converter with
dependencies of its own. A primitive without a translation is refused by name, and the result is compared with the
policy before it is published.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core
from numpy.typing import ArrayLike, DTypeLike

from ludus.export.interface import Arrays, Interface, Port
from ludus.types import LudusError

OPSET, IR_VERSION = 18, 10
"""Versions of 2022 and 2024, which most runtimes in use can read."""
BATCH = "batch"

Equation = Any
"""An equation of a jaxpr. JAX has a type for it, but none that says that values have shapes."""
Side = Any
"""One side of a shape: a number, or a symbol for the batch size."""


def write(interface: Interface, path: Path, header: str) -> None:
    """Write the function for any batch size; `header` becomes part of the model's metadata."""
    onnx = _library("onnx")
    graph = Graph(onnx, interface.inputs[0].name)
    (batch,) = export.symbolic_shape(BATCH)
    shapes = {port.name: jax.ShapeDtypeStruct((batch, *port.shape), port.dtype) for port in interface.inputs}
    jaxpr, outputs = jax.make_jaxpr(interface.act, return_shape=True)(shapes)
    # JAX flattens both dicts in the order of their names.
    results = graph.translate(jaxpr.jaxpr, jaxpr.consts, sorted(shapes))
    for name, result in zip(sorted(outputs), results, strict=True):
        graph.nodes.append(onnx.helper.make_node("Identity", [result], [name]))
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "policy",
            [graph.declared(port) for port in interface.inputs],
            [graph.declared(port) for port in interface.outputs],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ludus",
    )
    onnx.helper.set_model_props(model, {"ludus": header})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def read(path: Path) -> Callable[[Arrays], Arrays]:
    """Return the function in a file, run by ONNX Runtime."""
    runtime = _library("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def act(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, {k: np.asarray(x) for k, x in inputs.items()}), strict=True))

    return act


def _library(name: str) -> Any:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise LudusError(f"format=onnx: needs {error.name} (pip install 'ludus[onnx]')") from error
    return {"onnx": onnx, "onnxruntime": onnxruntime}[name]


class Graph:
    """The nodes and constants of an ONNX graph that is being built."""

    def __init__(self, onnx: ModuleType, first_input: str):
        """Begin an empty graph; the batch size is read from the first input."""
        self.onnx, self.first_input = onnx, first_input
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._batch: str | None = None
        self._count = 0

    def translate(self, jaxpr: core.Jaxpr, consts: Sequence[ArrayLike], inputs: Sequence[str]) -> list[str]:
        """Add the nodes of a jaxpr; return the names of its results."""
        names = dict(zip(jaxpr.invars, inputs, strict=True))
        names |= {var: self.constant(const) for var, const in zip(jaxpr.constvars, consts, strict=True)}

        def name_of(atom: Any) -> str:
            is_literal = isinstance(atom, core.Literal)
            return self.constant(np.asarray(atom.val, atom.aval.dtype)) if is_literal else names[atom]

        for eqn in jaxpr.eqns:
            arguments = [name_of(atom) for atom in eqn.invars]
            results = self._equation(eqn, arguments)
            names |= dict(zip(eqn.outvars, results, strict=True))
        return [name_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Equation, arguments: list[str]) -> Sequence[str]:
        primitive = eqn.primitive.name
        if primitive in CALLS:
            inner = eqn.params[CALLS[primitive]]
            return self.translate(inner.jaxpr, inner.consts, arguments)
        if primitive in SAME:
            return [self.add(SAME[primitive], *arguments)]
        if primitive not in RULES:
            raise LudusError(
                f"format=onnx: the network uses {primitive}, which ludus cannot translate; use format=stablehlo"
            )
        result = RULES[primitive](self, eqn, *arguments)
        return [result] if isinstance(result, str) else result

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its result, or a list of several."""
        names = [self._new_name() for _ in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """Add a constant; return its name."""
        name = self._new_name()
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def shape(self, shape: Sequence[Side]) -> str:
        """Return a shape as a vector; its batch size is that of the first input."""
        if all(isinstance(side, int) for side in shape):
            return self.constant(shape, np.int64)
        self._batch = self._batch or self.add("Shape", self.first_input, start=0, end=1)
        sides = [self.constant([side], np.int64) if isinstance(side, int) else self._batch for side in shape]
        return self.add("Concat", *sides, axis=0)

    def reshaped(self, x: str, shape: Sequence[Side]) -> str:
        """Reshape; ONNX computes the batch size, if it is in the shape."""
        sides = [side if isinstance(side, int) else -1 for side in shape]
        return self.add("Reshape", x, self.constant(sides, np.int64))

    def tensor_type(self, dtype: DTypeLike) -> int:
        """Return ONNX's number for a type."""
        return self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def declared(self, port: Port) -> Any:
        """Return the declaration of an input or output."""
        return self.onnx.helper.make_tensor_value_info(port.name, self.tensor_type(port.dtype), [BATCH, *port.shape])

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count}"


SAME = {
    "abs": "Abs", "add": "Add", "add_any": "Add", "and": "And", "ceil": "Ceil", "copy": "Identity", "cos": "Cos",
    "copy_p": "Identity", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less",
    "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not", "or": "Or", "pow": "Pow", "sign": "Sign",
    "sin": "Sin", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
"""Primitives that ONNX has under another name. JAX gives them equal shapes; ONNX would broadcast."""

CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
"""Primitives that call a function, and the parameter that holds it; custom derivatives do not matter here."""


def _select(graph: Graph, eqn: Equation, which: str, *cases: str) -> str:
    if len(cases) != 2 or eqn.invars[0].aval.dtype != bool:
        raise LudusError("format=onnx: the network selects among more than two cases; use format=stablehlo")
    return graph.add("Where", which, cases[1], cases[0])


def _broadcast(graph: Graph, eqn: Equation, x: str) -> str:
    shape, kept = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    before = eqn.invars[0].aval.shape
    sides: list[Side] = [1] * len(shape)
    for axis, side in zip(kept, before, strict=True):
        sides[axis] = side
    x = graph.reshaped(x, sides) if tuple(sides) != before else x
    return x if tuple(sides) == tuple(shape) else graph.add("Expand", x, graph.shape(shape))


def _reshape(graph: Graph, eqn: Equation, x: str) -> str:
    return graph.reshaped(x, eqn.outvars[0].aval.shape)


def _slice(graph: Graph, eqn: Equation, x: str) -> str:
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides, sides = eqn.params["strides"] or (1,) * len(start), eqn.invars[0].aval.shape
    cuts = [
        (begin, end, axis, stride)
        for axis, (begin, end, stride, side) in enumerate(zip(start, limit, strides, sides, strict=True))
        if (begin, end, stride) != (0, side, 1)
    ]
    if not cuts:
        return x
    return graph.add("Slice", x, *(graph.constant(column, np.int64) for column in zip(*cuts, strict=True)))


def _split(graph: Graph, eqn: Equation, x: str) -> Any:
    sizes = eqn.params["sizes"]
    return graph.add("Split", x, graph.constant(sizes, np.int64), outputs=len(sizes), axis=eqn.params["axis"])


def _pad(graph: Graph, eqn: Equation, x: str, fill: str) -> str:
    before, after, inside = zip(*eqn.params["padding_config"], strict=True)
    if any(inside) or min(*before, *after) < 0:
        raise LudusError("format=onnx: the network pads between numbers; use format=stablehlo")
    return graph.add("Pad", x, graph.constant([*before, *after], np.int64), fill)


def _reduce(operator: str) -> Callable[..., str]:
    def rule(graph: Graph, eqn: Equation, x: str) -> str:
        return graph.add(operator, x, graph.constant(eqn.params["axes"], np.int64), keepdims=0)

    return rule


def _arg_max(graph: Graph, eqn: Equation, x: str) -> str:
    (axis,) = eqn.params["axes"]
    index = graph.add("ArgMax", x, axis=axis, keepdims=0)
    return graph.add("Cast", index, to=graph.tensor_type(eqn.params["index_dtype"]))


def _cast(graph: Graph, eqn: Equation, x: str) -> str:
    return graph.add("Cast", x, to=graph.tensor_type(eqn.params["new_dtype"]))


def _iota(graph: Graph, eqn: Equation, *sizes: str) -> str:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    sides = [1] * len(shape)
    sides[axis] = shape[axis]
    count = graph.constant(np.arange(shape[axis]).reshape(sides), eqn.params["dtype"])
    return count if tuple(sides) == tuple(shape) else graph.add("Expand", count, graph.shape(shape))


def _integer_pow(graph: Graph, eqn: Equation, x: str) -> str:
    return graph.add("Pow", x, graph.constant(eqn.params["y"], eqn.invars[0].aval.dtype))


def _dot(graph: Graph, eqn: Equation, x: str, y: str) -> str:
    """Add a matrix product, or an Einsum for any other contraction."""
    (x_axes, y_axes), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x_rank, y_rank = (len(atom.aval.shape) for atom in eqn.invars)
    leading = tuple(range(x_rank - 2))
    is_plain = not x_batch and y_rank == 2
    is_batched = leading and x_rank == y_rank and tuple(x_batch) == tuple(y_batch) == leading
    if tuple(x_axes) == (x_rank - 1,) and tuple(y_axes) == (y_rank - 2,) and (is_plain or is_batched):
        return graph.add("MatMul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    x_names = [next(letters) for _ in range(x_rank)]
    y_names = [next(letters) for _ in range(y_rank)]
    for i, j in zip((*x_batch, *x_axes), (*y_batch, *y_axes), strict=True):
        y_names[j] = x_names[i]
    free = [name for i, name in enumerate(x_names) if i not in (*x_batch, *x_axes)]
    free += [name for i, name in enumerate(y_names) if i not in (*y_batch, *y_axes)]
    result = [x_names[i] for i in x_batch] + free
    return graph.add("Einsum", x, y, equation=f"{''.join(x_names)},{''.join(y_names)}->{''.join(result)}")


def _convolution(graph: Graph, eqn: Equation, images: str, kernel: str) -> str:
    """Add a convolution between transpositions, because ONNX has channels before height and width."""
    params, layout = eqn.params, eqn.params["dimension_numbers"]
    if any(side != 1 for side in params["lhs_dilation"]) or params["batch_group_count"] != 1:
        raise LudusError("format=onnx: the network has a transposed convolution; use format=stablehlo")
    before, after = zip(*params["padding"], strict=True)
    y = graph.add(
        "Conv",
        graph.add("Transpose", images, perm=layout.lhs_spec),
        graph.add("Transpose", kernel, perm=layout.rhs_spec),
        strides=params["window_strides"],
        dilations=params["rhs_dilation"],
        pads=[*before, *after],
        group=params["feature_group_count"],
    )
    return graph.add("Transpose", y, perm=np.argsort(layout.out_spec).tolist())


def _gather(graph: Graph, eqn: Equation, x: str, indices: str) -> str:
    """Add a gather along one axis: `x[..., index]`, or consecutive places as in `x[..., :n]`."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, index_shape = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    axes, offsets = numbers.start_index_map, list(numbers.offset_dims)
    rank = len(eqn.outvars[0].aval.shape)
    is_whole = len(axes) == 1 and all(
        i == axes[0] or size == side for i, (size, side) in enumerate(zip(sizes, shape, strict=True))
    )
    if is_whole and index_shape == (1,) and not numbers.collapsed_slice_dims:
        end = graph.add("Add", indices, graph.constant([sizes[axes[0]]], eqn.invars[1].aval.dtype))
        return graph.add("Slice", x, indices, end, graph.constant(axes, eqn.invars[1].aval.dtype))
    chosen = range(axes[0], axes[0] + len(index_shape) - 1) if is_whole else ()
    if not is_whole or numbers.collapsed_slice_dims != axes or offsets != [i for i in range(rank) if i not in chosen]:
        raise LudusError("format=onnx: the network gathers in a way that ludus cannot translate; use format=stablehlo")
    return graph.add("Gather", x, graph.reshaped(indices, index_shape[:-1]), axis=axes[0])


def _stack(graph: Graph, eqn: Equation, *parts: str) -> str:
    axis, shape = eqn.params["axis"], list(eqn.outvars[0].aval.shape)
    shape[axis] = 1
    return graph.add("Concat", *(graph.reshaped(part, shape) for part in parts), axis=axis)


def _erfc(graph: Graph, eqn: Equation, x: str) -> str:
    return graph.add("Sub", graph.constant(1.0, np.float32), graph.add("Erf", x))


RULES: dict[str, Callable[..., Any]] = {
    "argmax": _arg_max,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda graph, eqn, low, x, high: graph.add("Min", graph.add("Max", x, low), high),
    "concatenate": lambda graph, eqn, *parts: graph.add("Concat", *parts, axis=eqn.params["dimension"]),
    "conv_general_dilated": _convolution,
    "convert_element_type": _cast,
    "dot_general": _dot,
    "erfc": _erfc,
    "expm1": lambda graph, eqn, x: graph.add("Sub", graph.add("Exp", x), graph.constant(1.0, np.float32)),
    "gather": _gather,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "log1p": lambda graph, eqn, x: graph.add("Log", graph.add("Add", x, graph.constant(1.0, np.float32))),
    "ne": lambda graph, eqn, x, y: graph.add("Not", graph.add("Equal", x, y)),
    "optimization_barrier": lambda graph, eqn, *x: x,
    "pad": _pad,
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_sum": _reduce("ReduceSum"),
    "reshape": _reshape,
    "rsqrt": lambda graph, eqn, x: graph.add("Reciprocal", graph.add("Sqrt", x)),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": lambda graph, eqn, x: graph.add("Mul", x, x),
    "squeeze": _reshape,
    "stack": _stack,
    "transpose": lambda graph, eqn, x: graph.add("Transpose", x, perm=eqn.params["permutation"]),
}
