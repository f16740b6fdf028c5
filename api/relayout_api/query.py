"""The options of an ONNX model, which go in the query: the same as in JSON, named as the command names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from relayout.backend.options import option_value
from relayout.errors import UsageError
from relayout_api.schemas import ExplainWish, LegalizeWish, VerifyWish
from relayout_api.validation import load_body, validated

__all__ = ["ExplainQuery", "LegalizeQuery", "VerifyQuery", "refuse_query"]

# A server takes no more than 64 KiB of headers; each of these fits.
_Pairs = Annotated[list[Annotated[str, Field(max_length=400)]], Field(max_length=128)]


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")

    backend: str = Field("onnx", max_length=32_000, description="an installed backend's name, or a table in JSON")
    dim: _Pairs = Field([], description="NAME=N, the size of a symbolic dim", examples=[["N=8"]])
    desired_layout: _Pairs = Field([], description="OP=LAYOUT[,KERNEL], for the backend convert-layout")
    skip: _Pairs = Field([], description="a node that the backend convert-layout leaves alone")
    backend_option: _Pairs = Field([], description="NAME=VALUE, an option of the backend; JSON or text")

    def _backend(self) -> str | dict[str, Any]:
        return load_body(self.backend.encode(), "query.backend") if self.backend.startswith("{") else self.backend

    def _common(self) -> dict[str, Any]:
        layouts = _pairs(self.desired_layout, "desired_layout")
        return {
            "dims": {name: _number(text) for name, text in _pairs(self.dim, "dim").items()},
            "desired_layouts": {op: text.split(",") for op, text in layouts.items()},
            "skip": self.skip,
            "backend_options": {
                name: option_value(text) for name, text in _pairs(self.backend_option, "backend_option").items()
            },
        }


class _SearchQuery(_Query):
    objective: Literal["bytes", "transposes"] = "bytes"
    time_limit: float | None = Field(None, gt=0, le=1e6, description="seconds to look for a better solution")
    input_layout: _Pairs = Field([], description="NAME[,NAME]=LAYOUT", examples=[["image=NHWC"]])
    output_layout: _Pairs = Field([], description="NAME[,NAME]=LAYOUT")
    engine: Literal["auto", "cp-sat"] = "auto"

    def _search(self) -> dict[str, Any]:
        return {
            **self._common(),
            **self.model_dump(include={"objective", "time_limit", "engine"}),
            "input_layouts": _pairs(self.input_layout, "input_layout"),
            "output_layouts": _pairs(self.output_layout, "output_layout"),
        }


class LegalizeQuery(_SearchQuery):
    """What goes with an ONNX model to legalize."""

    max_transposes: int | None = Field(None, ge=0, le=1 << 31, description="at most so many")
    check: bool = Field(False, description="verify the result against the source")
    inline: bool = Field(False, description="replace the relayout:: functions by their bodies")

    def wish(self) -> LegalizeWish:
        """The same as in JSON. Raises UsageError."""
        options = {**self._search(), **self.model_dump(include={"max_transposes", "check", "inline"})}
        return validated(LegalizeWish, {"backend": self._backend(), "options": options}, "query")


class ExplainQuery(_SearchQuery):
    """What goes with an ONNX model to explain."""

    limit: int = Field(1000, ge=0, le=100_000, description="lift no more requirements, or sets of them")

    def wish(self) -> ExplainWish:
        """The same as in JSON. Raises UsageError."""
        options = {**self._search(), "limit": self.limit}
        return validated(ExplainWish, {"backend": self._backend(), "options": options}, "query")


class VerifyQuery(_Query):
    """What goes with an ONNX model to verify."""

    samples: int = Field(2, ge=1, le=16, description="random inputs to run both models on")

    def wish(self) -> VerifyWish:
        """The same as in JSON. Raises UsageError."""
        options = {**self._common(), "samples": self.samples}
        return validated(VerifyWish, {"backend": self._backend(), "options": options}, "query")


def refuse_query(request: Request) -> None:
    """Raise UsageError if there is a query: a JSON body brings its options itself."""
    if request.query_params:
        raise UsageError(
            "options in the query go with an ONNX model",
            where="query",
            expected="options in the JSON body",
            found=", ".join(request.query_params),
        )


def _pairs(texts: list[str], where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.rpartition("=") if where == "dim" else text.partition("=")
        if not separator or not name:
            raise UsageError("an option is not NAME=VALUE", where=f"query.{where}", expected="NAME=VALUE", found=text)
        pairs[name] = value
    return pairs


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 20:
        raise UsageError("a size is no number", where="query.dim", expected="a whole number", found=text)
    return int(text)
