"""The metadata that legalization reads and writes: the black boxes on a value, and the backend of a legal model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from relayout.errors import InputError, LayoutSyntaxError, UsageError
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Box
from relayout.layout.metadata_keys import BACKEND_KEY, BACKEND_OPTIONS_KEY, LAYOUT_KEY
from relayout.model.graph_json.json_text import parse_json


def black_boxes_on(value: ir.Value) -> tuple[Box, ...]:
    """The black boxes by the value's own axes; empty if the metadata has no layout."""
    try:
        layout = Layout.parse(value.metadata_props.get(LAYOUT_KEY, ""))
    except LayoutSyntaxError:
        return ()
    return tuple(sorted((i, 1, *box) for i in range(layout.rank) for box in layout.boxes(i)))


def record_backend(model: ir.Model, name: str, options: Mapping[str, Any] | None) -> bool:
    """Write the backend and its options into the metadata. Returns whether that changed the metadata."""
    wanted = {BACKEND_KEY: name}
    if options:
        wanted[BACKEND_OPTIONS_KEY] = json.dumps(options, sort_keys=True, default=list)
    before = {key: text for key, text in model.metadata_props.items() if key in (BACKEND_KEY, BACKEND_OPTIONS_KEY)}
    for key in before:
        del model.metadata_props[key]
    model.metadata_props.update(wanted)
    return before != wanted


def recorded_backend(model: ir.Model, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """The name and the options of the backend that the model records; those in `options` replace recorded ones.

    Raises UsageError where no backend is recorded, and InputError for options that are no JSON object.
    """
    name = model.metadata_props.get(BACKEND_KEY, "")
    if not name:
        raise UsageError(
            "the model records no backend, so it is not known what to verify it for",
            where="backend",
            expected="a backend, or a model that legalization wrote",
            found="none",
            hint="name the backend that the model is to be legal for",
        )
    text = model.metadata_props.get(BACKEND_OPTIONS_KEY, "{}")
    try:
        recorded = parse_json(text)
    except ValueError:
        recorded = None
    if not isinstance(recorded, dict):
        where = f"model, metadata {BACKEND_OPTIONS_KEY}"
        raise InputError("not the options of a backend", where=where, expected="a JSON object", found=text[:100])
    return name, {**recorded, **(options or {})}
