"""The arguments and options that several subcommands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BackendName",
    "BackendOptions",
    "Check",
    "DesiredLayouts",
    "Dims",
    "Engine",
    "Inline",
    "InputLayouts",
    "MaxTransposes",
    "Model",
    "Objective",
    "OutputLayouts",
    "Quiet",
    "ReportFile",
    "Skip",
    "TimeLimit",
]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model: .onnx or .json.", show_default=False)]
BackendName = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "-b",
        metavar="NAME|FILE",
        help="An installed backend (see `relayout backends`), or a .toml or .json file that declares one. "
        "[default: onnx, or convert-layout with --desired-layout]",
        show_default=False,
    ),
]
BackendOptions = Annotated[
    list[str],
    typer.Option(
        "--backend-option",
        metavar="NAME=VALUE",
        help="An option of the backend (`relayout backends NAME` lists them); a value is JSON where it is JSON, else "
        "text. May be repeated.",
        show_default=False,
    ),
]
Objective = Annotated[str, typer.Option(metavar="bytes|transposes", help="What is to be as little as can be.")]
InputLayouts = Annotated[
    list[str],
    typer.Option(
        "--input-layout",
        metavar="NAME[,NAME]=LAYOUT",
        help="How a graph input arrives in the legal model; `any` lets the solver choose. Several names with commas, "
        "outputs among them, lie alike. May be repeated.",
        show_default=False,
    ),
]
OutputLayouts = Annotated[
    list[str],
    typer.Option(
        "--output-layout",
        metavar="NAME[,NAME]=LAYOUT",
        help="The same of a graph output. May be repeated.",
        show_default=False,
    ),
]
Dims = Annotated[
    list[str],
    typer.Option(
        "--dim", metavar="NAME=N", help="The size of a symbolic dim, for pricing. May be repeated.", show_default=False
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="SECONDS", help="For the solver, of wall-clock time.", show_default=False),
]
Engine = Annotated[str, typer.Option(metavar="auto|cp-sat", help="cp-sat solves without the reduction: a cross-check.")]
DesiredLayouts = Annotated[
    list[str],
    typer.Option(
        "--desired-layout",
        metavar="OP=LAYOUT[,KERNEL]",
        help="For the backend convert-layout: the layout of an operator's data, and of its kernel. May be repeated.",
        show_default=False,
    ),
]
Skip = Annotated[
    list[str],
    typer.Option(
        "--skip",
        metavar="NODE",
        help="For convert-layout: a node to leave as it is, by name or TVM's count of convolutions. May be repeated.",
        show_default=False,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write the report as JSON; - is stdout.", show_default=False),
]
Check = Annotated[bool, typer.Option("--check", help="Verify the result, and run it beside the source.")]
Inline = Annotated[
    bool, typer.Option("--inline", help="Replace relayout's operators by their bodies in standard ONNX.")
]
MaxTransposes = Annotated[
    int | None,
    typer.Option("--max-transposes", min=0, metavar="K", help="Allow no more than K transposes.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")]
