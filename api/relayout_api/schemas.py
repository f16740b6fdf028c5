"""What requests and responses look like, as pydantic models: the JSON edge, and the source of the OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from relayout.backend.declarative_schema import BackendTable
from relayout.model.graph_json.schema import GraphJson
from relayout.report.schema import Report

__all__ = [
    "BackendInfo",
    "BackendList",
    "DimInfo",
    "ExplainOptions",
    "ExplainRequest",
    "ExplainWish",
    "LayoutInfo",
    "LayoutText",
    "LegalizeOptions",
    "LegalizeRequest",
    "LegalizeResponse",
    "LegalizeWish",
    "ModelResponse",
    "OptionInfo",
    "ReportResponse",
    "VerifyOptions",
    "VerifyRequest",
    "VerifyWish",
]

_Name = Annotated[str, Field(max_length=1024)]
_Word = Annotated[str, Field(max_length=256)]
_Size = Annotated[int, Field(ge=1, le=1 << 48)]
_Seconds = Annotated[float, Field(gt=0, le=1e6)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _SearchOptions(_Strict):
    objective: Literal["bytes", "transposes"] = "bytes"
    time_limit: _Seconds | None = Field(None, description="seconds to look for a better solution")
    input_layouts: dict[_Name, _Word] = Field(
        {}, description="how graph inputs lie: NHWC, or any; names with commas between them lie alike"
    )
    output_layouts: dict[_Name, _Word] = Field({}, description="how graph outputs lie, in the same words")
    dims: dict[_Name, _Size] = Field({}, description="sizes of symbolic dims, for pricing only")
    engine: Literal["auto", "cp-sat"] = "auto"
    desired_layouts: dict[_Name, list[_Word]] = Field({}, description="for the backend convert-layout")
    skip: list[_Name] = Field([], description="nodes that the backend convert-layout leaves alone")
    backend_options: dict[_Name, JsonValue] = Field({}, description="options of the backend: GET /v1/backends has them")


class LegalizeOptions(_SearchOptions):
    """What may be chosen beside the backend. `time_limit` is the solver's; the server's own limit holds besides."""

    max_transposes: Annotated[int, Field(ge=0, le=1 << 31)] | None = Field(None, description="at most so many")
    check: bool = Field(False, description="verify the result against the source")
    inline: bool = Field(False, description="replace the relayout:: functions by their bodies")
    weights: bool = Field(True, description="false: leave the data of constants above 1 KiB out of the answer's graph")


class ExplainOptions(_SearchOptions):
    """What may be chosen beside the backend. `time_limit` is for the solution and its reasons together."""

    limit: Annotated[int, Field(ge=0, le=100_000)] = Field(1000, description="lift no more requirements or sets")


class VerifyOptions(_Strict):
    """What may be chosen beside the backend."""

    dims: dict[_Name, _Size] = Field({}, description="sizes of symbolic dims")
    desired_layouts: dict[_Name, list[_Word]] = Field({}, description="for the backend convert-layout")
    skip: list[_Name] = Field([], description="nodes that the backend convert-layout leaves alone")
    backend_options: dict[_Name, JsonValue] = Field({}, description="options of the backend: GET /v1/backends has them")
    samples: Annotated[int, Field(ge=1, le=16)] = Field(2, description="random inputs to run both models on")


_Backend = Field("onnx", description="the name of an installed backend, or a declarative backend")


class LegalizeWish(_Strict):
    """All but the graph."""

    backend: str | dict[str, Any] = _Backend
    options: LegalizeOptions = LegalizeOptions()


class ExplainWish(_Strict):
    """All but the graph."""

    backend: str | dict[str, Any] = _Backend
    options: ExplainOptions = ExplainOptions()


class VerifyWish(_Strict):
    """All but the graphs."""

    backend: str | dict[str, Any] = _Backend
    options: VerifyOptions = VerifyOptions()


class LegalizeRequest(_Strict):
    """A graph to legalize for a backend."""

    graph: GraphJson
    backend: _Word | BackendTable = _Backend
    options: LegalizeOptions = LegalizeOptions()


class ExplainRequest(_Strict):
    """A graph whose conversions are to be explained."""

    graph: GraphJson
    backend: _Word | BackendTable = _Backend
    options: ExplainOptions = ExplainOptions()


class VerifyRequest(_Strict):
    """A graph to verify for a backend, against its original if that is given."""

    graph: GraphJson
    against: GraphJson | None = Field(None, description="the original, to compare with by running both")
    backend: _Word | BackendTable = _Backend
    options: VerifyOptions = VerifyOptions()


class LegalizeResponse(_Strict):
    """The legal graph, and what it cost."""

    graph: GraphJson
    report: Report


class ModelResponse(_Strict):
    """The legal model in base64, and what it cost."""

    model: str = Field(description="the ONNX model, in base64")
    report: Report


class ReportResponse(_Strict):
    """The findings are in the report's `verification`, the reasons in its `conversions` and `explanation`."""

    report: Report


class OptionInfo(_Strict):
    """An option of a backend: what it takes, in words, its default as JSON text, and what it does."""

    name: str
    expected: str
    default: str
    about: str


class BackendInfo(_Strict):
    """An installed backend: its name, the distribution that brings it, what it says of itself, and its options."""

    name: str
    distribution: str
    version: str
    summary: str
    options: list[OptionInfo] = []


class BackendList(_Strict):
    """The installed backends, sorted by name."""

    backends: list[BackendInfo]


class LayoutText(_Strict):
    """A layout in Glow's language, TVM's or XLA's."""

    layout: Annotated[str, Field(max_length=4096, examples=["N[a=32]HWC", "NCHW16c", "{1,0}"])]


class DimInfo(_Strict):
    """A dimension, outermost first: its name or axis number, its extensions as written, its alignment in bytes."""

    name: str
    extensions: list[str]
    alignment: int


class LayoutInfo(_Strict):
    """A layout taken apart. `tvm` is TVM's word for it, null where TVM has none."""

    layout: str
    names: str
    rank: int
    dims: list[DimInfo]
    tvm: str | None
