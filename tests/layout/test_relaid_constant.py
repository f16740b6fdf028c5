"""Lazy constants are converted by steps when they are read."""

from __future__ import annotations

import io
import os
import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from relayout.errors import InputError, InternalError
from relayout.layout import relaid_constant
from relayout.layout.relaid_constant import (
    AbsentTensor,
    RelaidTensor,
    Step,
    apply_step,
    check_steps,
    note_transform,
    noted_transform,
    relaid,
    shape_before,
    share,
    transform_of,
)

STEPS: list[Step] = [
    {"op": "transpose", "perm": [1, 0]},
    {"op": "pad", "pads": [0, 0, 1, 0]},
    {"op": "reshape", "shape": [8]},
    {"op": "crop", "shape": [6]},
]
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
EXPECTED = np.pad(ARRAY.T, [(0, 1), (0, 0)]).reshape(8)[:6]


def test_steps_are_applied_when_the_constant_is_read() -> None:
    tensor = relaid(relaid(ir.tensor(ARRAY, name="w"), STEPS[:2]), STEPS[2:])
    assert isinstance(tensor, RelaidTensor)
    assert isinstance(tensor.source, ir.Tensor), "conversions of a converted constant are merged"
    np.testing.assert_array_equal(tensor.numpy(), EXPECTED)


def test_steps_can_be_inverted_in_shape() -> None:
    shape: tuple[int, ...] | None = (6,)
    for step in reversed(transform_of(relaid(ir.tensor(ARRAY), STEPS))):
        assert shape is not None
        shape = shape_before(shape, step)
    assert shape == (2, 3)
    assert shape_before([8], {"op": "reshape", "shape": [8]}) is None


def test_an_absent_constant_has_a_shape_and_steps_but_no_data() -> None:
    absent = AbsentTensor(ir.DataType.FLOAT, (2, 3), "w", metadata={"key": "value"})
    tensor = relaid(absent, STEPS)
    assert tuple(tensor.shape.numpy()) == (6,)
    assert [step["op"] for step in transform_of(tensor)] == [step["op"] for step in STEPS]
    assert dict(tensor.metadata_props) == {"key": "value"}
    with pytest.raises(InputError, match="the data of this constant is absent"):
        tensor.numpy()
    with pytest.raises(InputError, match="the data of this constant is absent"):
        tensor.tobytes()


def test_an_absent_constant_is_written_with_its_steps_and_read_back() -> None:
    absent = AbsentTensor(ir.DataType.FLOAT, (2, 3), "w").relaid(STEPS)
    again = AbsentTensor.from_proto(ir.serde.serialize_tensor(absent))
    assert (again.name, again.transform, tuple(again.shape.numpy())) == ("w", absent.transform, (6,))


@pytest.mark.parametrize(
    "source", [ir.tensor(ARRAY, name="w"), relaid(ir.tensor(ARRAY, name="w"), STEPS), ir.tensor(["a"], name="w")]
)
def test_a_shared_constant_has_a_name_of_its_own(source: ir.TensorProtocol) -> None:
    shared = share(source)
    shared.name = "other"
    assert source.name == "w"
    np.testing.assert_array_equal(shared.numpy(), source.numpy())


def test_a_large_constant_is_written_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaid_constant, "SLAB_BYTES", 8)
    tensor, file = relaid(ir.tensor(ARRAY), STEPS[:1]), io.BytesIO()
    assert isinstance(tensor, RelaidTensor)
    tensor.tofile(file)
    assert file.getvalue() == ARRAY.T.tobytes()


def test_a_reshape_at_the_end_takes_no_memory_for_the_whole() -> None:
    array = np.arange(1 << 21, dtype=np.float32)
    split: Step = {"op": "reshape", "shape": [4, 1024, 512]}
    tensor = relaid(
        ir.tensor(array), [split, {"op": "transpose", "perm": [1, 0, 2]}, {"op": "reshape", "shape": [1 << 21]}]
    )
    assert isinstance(tensor, RelaidTensor)
    with open(os.devnull, "wb") as file:
        tracemalloc.start()
        tensor.tofile(file)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < array.nbytes / 2
    written = io.BytesIO()
    tensor.tofile(written)
    assert written.getvalue() == tensor.tobytes()


def test_steps_that_do_not_fit_are_errors() -> None:
    with pytest.raises(InternalError, match="a step does not fit its constant"):
        relaid(ir.tensor(ARRAY), [{"op": "reshape", "shape": [7]}])
    check_steps((3, 2), STEPS[:1], "constant 'w'")
    with pytest.raises(InputError, match="do not fit"):
        check_steps((2, 2), [{"op": "crop", "shape": [3, 2], "from": [4, 4]}], "constant 'w'")


def test_a_step_on_an_array_is_numpys() -> None:
    np.testing.assert_array_equal(apply_step(ARRAY, STEPS[0]), ARRAY.T)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("[", "cannot be read"),
        ("{}", "cannot be read"),
        ("[{}]", "cannot be read"),
        ('[{"op": "x"}]', "cannot be read"),
        ('[{"op": "crop"}]', "cannot be read"),
        ('[{"op": "pad", "pads": [-1, 0]}]', "cannot be read"),
        ('[{"op": "reshape", "shape": [6], "from": [3, "a"]}]', "cannot be read"),
        ('[{"op": "transpose", "perm": [9]}]', "do not fit"),
        ('[{"op": "pad", "pads": [1]}]', "do not fit"),
    ],
)
def test_steps_that_make_no_sense_are_refused(steps: str, problem: str) -> None:
    proto = onnx.TensorProto(name="w", data_type=1, dims=[6])
    proto.metadata_props.add(key="relayout.transform", value=steps)
    with pytest.raises(InputError, match=problem) as caught:
        AbsentTensor.from_proto(proto)
    assert "constant 'w'" in str(caught.value)


def test_a_constant_notes_all_steps_from_its_source_until_they_undo_each_other() -> None:
    """Also one that is converted in place, after it was read anew."""
    value, data, turn = ir.Value(name="w"), ir.tensor(ARRAY), STEPS[0]
    first = STEPS[:2]
    for steps, noted in ((first, first), ([turn], [*first, turn]), ([turn], first), ([turn, turn], first)):
        value.const_value = relaid(data, steps)
        note_transform(value, value, data)
        assert [*noted_transform(value)] == noted
        data = ir.tensor(value.const_value.numpy())


# Nothing tells the shape before a reshape that does not say it.
LOST = '[{"op": "transpose", "perm": [5]}, {"op": "transpose", "perm": [9]}, {"op": "reshape", "shape": [2, 3]}]'


@pytest.mark.parametrize("text", ["[1", '[{"op": "turn"}]', '[{"op": "transpose", "perm": [0]}]', LOST])
def test_a_note_that_does_not_fit_is_none(text: str) -> None:
    value = ir.Value(name="w", const_value=ir.tensor(ARRAY), metadata_props={"relayout.transform": text})
    assert noted_transform(value) == ()
