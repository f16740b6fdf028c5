"""Random messages and broken ones: what is parsed without the data of constants is what protobuf makes of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.model import onnx_file
from relayout.model.onnx_file import Parsed, parse

FEW = 8
"""Bytes of data that are large here."""

WEIGHT = 1028
"""Bytes of data that no stage reads, of 257 floats."""


def number(value: int, *, longer: bool = False) -> bytes:
    """A varint, or one that is longer than it must be."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value | 0x80, 0] if longer else [*encoded, value])


def field(key: int, content: bytes) -> bytes:
    return number(key << 3 | 2) + number(len(content)) + content


def longer(key: int, content: bytes) -> bytes:
    return number(key << 3 | 2) + number(len(content), longer=True) + content


BYTES = st.binary(max_size=12)
ODD = st.one_of(
    st.builds(lambda key, content: field(key, content), st.integers(0, 2100), BYTES),
    st.builds(lambda key, value: number(key << 3) + number(value), st.integers(0, 40), st.integers(0, (1 << 64) - 1)),
    st.sampled_from(
        [
            *(number(30 << 3 | 5) + b"four", number(30 << 3 | 1) + b"eight888"),
            *(number(30 << 3 | 3) + b"\x08\x01" + number(30 << 3 | 4), number(30 << 3 | 4), number(30 << 3 | 3)),
            *(number(5 << 3 | 2, longer=True) + b"\0", b"\x2a\x80\0", b"\x28\x05", b"\x48\x05", b"\x2b", b"\xff" * 12),
        ]
    ),
)
"""Fields that no writer of ONNX writes, and some that are none."""


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """A constant of floats with data that fit its shape, and sometimes with what makes them unusual."""
    size = draw(st.sampled_from([WEIGHT, WEIGHT, 2 * WEIGHT, 0, 4, FEW]))
    short = draw(st.sampled_from([0, 0, 0, 1]))
    data = draw(st.sampled_from([field, field, field, longer]))(9, (bytes(range(256)) * 9)[: size - short])
    parts = [number(1 << 3) + number(size // 4), number(2 << 3) + number(1), field(8, b"w"), data]
    extra = st.one_of(
        ODD,
        st.sampled_from([data, field(9, b"last"), field(4, b"one."), field(12, b"doc"), field(16, b""), b"\x70\0"]),
        st.sampled_from([b"\x70\1", number(2 << 3) + number(8), number(1 << 3) + number(2), field(1, b"\1")]),
    )
    parts += draw(st.lists(extra, max_size=draw(st.sampled_from([0, 0, 1, 2]))))
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A model with such constants among the fields of one graph or two, which may be broken."""
    frames = st.sampled_from([*[field] * 12, longer])
    constant = st.builds(lambda write, tensor: write(5, tensor), frames, tensors())
    parts = st.one_of(constant, constant, st.sampled_from([field(1, b""), field(2, b"g"), field(11, field(1, b"x"))]))
    graph = st.builds(
        lambda write, parts: write(7, b"".join(parts)),
        frames,
        st.lists(st.one_of(*[parts] * 20, ODD), min_size=1, max_size=6),
    )
    head = [number(1 << 3) + number(8), field(8, number(2 << 3) + number(draw(st.sampled_from([20, 20, 20, 6]))))]
    rest = [*draw(st.lists(graph, min_size=1, max_size=2)), *draw(st.sampled_from([[], [], [], [draw(ODD)]]))]
    file = bytearray(b"".join(draw(st.permutations([*head, *rest]))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(file)))
        change = draw(st.sampled_from(["cut off", "insert", "replace", "remove"]))
        end = {"cut off": len(file), "insert": place, "replace": place + 1, "remove": place + 1}[change]
        file[place:end] = draw(st.binary(min_size=1, max_size=1)) if change in ("insert", "replace") else b""
    return bytes(file)


@pytest.fixture(autouse=True, scope="module")
def _few_bytes_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "LARGE", FEW)
        patch.setattr(onnx_file, "BYTES_A_FIELD", 1)
        yield


@settings(max_examples=250)
@given(files())
def test_a_file_is_parsed_as_protobuf_parses_it(file: bytes) -> None:
    assert outcome(lambda: with_all_data(parse(file))) == outcome(lambda: onnx.ModelProto.FromString(file))


def outcome(parsed: Callable[[], onnx.ModelProto]) -> bytes | str:
    """The protobuf's bytes, or the error."""
    try:
        return parsed().SerializeToString(deterministic=True)
    except Exception as error:
        return repr(error)


def with_all_data(parsed: Parsed) -> onnx.ModelProto:
    for index, data in parsed.data.items():
        tensor = parsed.proto.graph.initializer[index]
        assert not tensor.HasField("raw_data")
        tensor.raw_data = bytes(data)
    return parsed.proto
