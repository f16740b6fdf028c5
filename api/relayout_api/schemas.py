"""The requests and responses as pydantic models, the source of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from relayout.backend.declarative_schema import BackendTable
from relayout.model.graph_json.schema import GraphJson
from relayout.options import Option, options_of
from relayout.report.drawing_schema import Drawing
from relayout.report.schema import Report

MOST_SAMPLES = int(next(option.most for option in options_of("verify") if option.name == "samples") or 0)
"""The most samples of a comparison."""
FILES = ("model", "against", "inputs")
"""The files of a form: the model, the original, and an .npz file for each sample."""

_Name = Annotated[str, Field(max_length=1024)]
_Word = Annotated[str, Field(max_length=256)]
_Samples = list[dict[str, JsonValue]]
_VALUES: dict[Any, Any] = {str: _Word, object: JsonValue, Any: JsonValue}
_Fields = TypeVar("_Fields", bound="Strict")


class Strict(BaseModel):
    """A JSON object without fields that are not declared, whose values have exactly the declared types."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


def with_fields(fields: Mapping[str, Any]) -> Callable[[type[_Fields]], type[_Fields]]:
    """A class decorator that adds these fields to a model."""

    def extended(schema: type[_Fields]) -> type[_Fields]:
        return create_model(schema.__name__, __base__=schema, __module__=schema.__module__, **fields)

    return extended


def value_type(option: Option) -> Any:
    """The type of an option's value or, of a mapping, of the mapping's values, within the service's bounds."""
    if option.choices:
        return Literal.__getitem__(option.choices)
    if option.type is float:
        # Before the bounds: no number is less than NaN or more.
        return Annotated[float, Field(ge=option.least, gt=option.above, le=option.most, allow_inf_nan=False)]
    if option.type is int:
        return Annotated[int, Field(ge=option.least, gt=option.above, le=option.most)]
    return _VALUES.get(option.type, option.type)


def _option_fields(verb: str) -> dict[str, Any]:
    """The fields of the options of `verb`, derived from `relayout.options.Options`."""
    fields: dict[str, Any] = {}
    for option in options_of(verb):
        value = value_type(option)
        kind = dict.__class_getitem__((_Name, value)) if option.is_mapping else value
        default = {} if option.is_mapping else option.default
        fields[option.name] = kind | None if default is None else kind, Field(default, description=option.help)
    return fields


@with_fields(_option_fields("legalize"))
class LegalizeOptions(Strict):
    """The options beside the backend. `time_limit` is the solver's; the server has a limit of its own."""


@with_fields(_option_fields("explain"))
class ExplainOptions(Strict):
    """The options beside the backend. `time_limit` is for the solution and its reasons together."""


@with_fields(_option_fields("verify"))
class VerifyOptions(Strict):
    """The options beside the backend."""


_Backend = Field("onnx", description="the name of an installed backend, or a declarative backend")
_Drawn = Field(None, description="null: only the graph itself is drawn, and no other is made")
_Recorded = Field(
    None, description="the name of an installed backend, or a declarative backend; by default the one recorded"
)
_Inputs: Any = Field(
    [],
    max_length=MOST_SAMPLES,
    description="the inputs of a comparison in place of random ones: for each sample, the numbers of each input of the "
    "original, nested as its shape; implies `check`",
)
_Weights = Field(True, description="false: leave the data of constants above 1 KiB out of the answer's graph")


class LegalizeParameters(Strict):
    """All of a request but the graph."""

    backend: str | dict[str, Any] = _Backend
    options: LegalizeOptions = LegalizeOptions()
    weights: bool = _Weights
    inputs: _Samples = _Inputs


class ExplainParameters(Strict):
    """All of a request but the graph."""

    backend: str | dict[str, Any] = _Backend
    options: ExplainOptions = ExplainOptions()


class VerifyParameters(Strict):
    """All of a request but the graphs."""

    backend: str | dict[str, Any] | None = _Recorded
    options: VerifyOptions = VerifyOptions()
    inputs: _Samples = _Inputs


class GraphParameters(Strict):
    """All of a request but the graph."""

    backend: str | dict[str, Any] | None = _Drawn
    options: LegalizeOptions = LegalizeOptions()


Parameters = LegalizeParameters | ExplainParameters | VerifyParameters | GraphParameters


class LegalizeRequest(Strict):
    """A graph to legalize for a backend."""

    graph: GraphJson
    backend: _Word | BackendTable = _Backend
    options: LegalizeOptions = LegalizeOptions()
    weights: bool = _Weights
    inputs: _Samples = _Inputs


class ExplainRequest(Strict):
    """A graph whose conversions are to be explained."""

    graph: GraphJson
    backend: _Word | BackendTable = _Backend
    options: ExplainOptions = ExplainOptions()


class VerifyRequest(Strict):
    """A graph to verify for a backend, against its original if that is given."""

    graph: GraphJson
    against: GraphJson | None = Field(None, description="the original, to compare with by running both")
    backend: _Word | BackendTable | None = _Recorded
    options: VerifyOptions = VerifyOptions()
    inputs: _Samples = _Inputs


class GraphRequest(Strict):
    """A graph to draw, and a backend to draw the legal graph of as well."""

    graph: GraphJson
    backend: _Word | BackendTable | None = _Drawn
    options: LegalizeOptions = LegalizeOptions()


class GraphResponse(Strict):
    """The graph to draw, with the alternatives of each node if there is a backend; then also the legal graph, with the
    conversions of the report that each node performs, and the report."""

    source: Drawing | None = None
    legal: Drawing | None = None
    report: Report | None = None


class LegalizeResponse(Strict):
    """The legal graph, and the report."""

    graph: GraphJson
    report: Report


class ModelResponse(Strict):
    """The legal model in base64, and the report."""

    model: str = Field(description="the ONNX model, in base64")
    report: Report


class ReportResponse(Strict):
    """The findings are in the report's `verification`, the reasons in its `conversions` and `explanation`."""

    report: Report


class OptionInfo(Strict):
    """An option of a backend: its type in words and as a JSON schema, its default as JSON text, and its description."""

    name: str
    expected: str
    json_schema: dict[str, JsonValue] = Field(description="empty: any value")
    default: str
    about: str


class BackendInfo(Strict):
    """An installed backend: its name, its distribution, its description, and its options."""

    name: str
    distribution: str
    version: str
    summary: str
    options: list[OptionInfo] = []


class BackendList(Strict):
    """The installed backends, sorted by name."""

    backends: list[BackendInfo]


class Limits(Strict):
    """The limits of this server: the size of a body, and the seconds of a request and of a job in a worker."""

    max_body_bytes: int
    time_limit: float
    job_time_limit: float


class LayoutText(Strict):
    """A layout in Glow's language, TVM's or XLA's."""

    layout: Annotated[str, Field(max_length=4096, examples=["N[a=32]HWC", "NCHW16c", "{1,0}"])]


class DimInfo(Strict):
    """A dimension, outermost first: its name or axis number, its extensions as written, its alignment in bytes."""

    name: str
    extensions: list[str]
    alignment: int


class LayoutInfo(Strict):
    """The parts of a layout. `tvm` is the layout in TVM's notation, null if TVM cannot express it."""

    layout: str
    names: str
    rank: int
    dims: list[DimInfo]
    tvm: str | None
