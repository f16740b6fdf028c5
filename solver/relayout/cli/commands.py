"""The subcommands and their options. What they do is imported when they do it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from relayout.cli.options import (
    BackendName,
    BackendOptions,
    Check,
    DesiredLayouts,
    Dims,
    Engine,
    Inline,
    InputLayouts,
    MaxTransposes,
    Model,
    Objective,
    OutputLayouts,
    Quiet,
    ReportFile,
    Skip,
    TimeLimit,
)

__all__ = ["app"]

app = typer.Typer(
    name="relayout",
    help="Make a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.",
    epilog="Exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 nothing found in the time, "
    "5 a fault of relayout.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"relayout {version('relayout')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def relayout(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        sys.stderr.write(f"{context.get_help()}\n")
        return 2
    return 0


@app.command("legalize", short_help="Make a model legal for a backend, as cheaply as can be.")
def legalize_command(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The legal model: .onnx or .json; - is JSON to stdout.",
            show_default=False,
        ),
    ],
    backend: BackendName = None,
    objective: Objective = "bytes",
    report: ReportFile = None,
    input_layout: InputLayouts = [],  # noqa: B006  # typer reads the default, nothing changes it
    output_layout: OutputLayouts = [],  # noqa: B006
    dim: Dims = [],  # noqa: B006
    time_limit: TimeLimit = None,
    engine: Engine = "auto",
    desired_layout: DesiredLayouts = [],  # noqa: B006
    skip: Skip = [],  # noqa: B006
    backend_option: BackendOptions = [],  # noqa: B006
    check: Check = False,
    inline: Inline = False,
    max_transposes: MaxTransposes = None,
    quiet: Quiet = False,
) -> int:
    """Write the cheapest model that computes the same and is legal for the backend."""
    from relayout.cli.legalize import run_legalize, wanted_of

    wanted = wanted_of(
        backend=backend,
        objective=objective,
        input_layouts=input_layout,
        output_layouts=output_layout,
        dims=dim,
        time_limit=time_limit,
        engine=engine,
        desired_layouts=desired_layout,
        skip=skip,
        backend_options=backend_option,
        check=check,
        inline=inline,
        max_transposes=max_transposes,
    )
    return run_legalize(model, output, wanted, report, quiet=quiet)


@app.command("verify", short_help="List what breaks a backend's contract.")
def verify_command(
    model: Model,
    backend: BackendName = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="ORIGINAL", help="Run both on random inputs, and compare what they compute.", show_default=False
        ),
    ] = None,
    report: ReportFile = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the findings as JUnit XML.", show_default=False)
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the findings as SARIF 2.1.0.", show_default=False)
    ] = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .toml or .json file with max_transposes and max_bytes; more of them is a finding.",
            show_default=False,
        ),
    ] = None,
    dim: Dims = [],  # noqa: B006
    desired_layout: DesiredLayouts = [],  # noqa: B006
    skip: Skip = [],  # noqa: B006
    backend_option: BackendOptions = [],  # noqa: B006
    quiet: Quiet = False,
) -> int:
    """List what breaks the backend's contract; exit status 1 where something does."""
    from relayout.cli.verify import Files, run_verify

    files = Files(report=report, junit=junit, sarif=sarif)
    return run_verify(
        model,
        backend,
        against,
        files,
        budget,
        dims=dim,
        desired=desired_layout,
        skip=skip,
        options=backend_option,
        quiet=quiet,
    )


@app.command("explain", short_help="Say why each conversion is there.")
def explain_command(
    model: Model,
    backend: BackendName = None,
    objective: Objective = "bytes",
    report: ReportFile = None,
    input_layout: InputLayouts = [],  # noqa: B006
    output_layout: OutputLayouts = [],  # noqa: B006
    dim: Dims = [],  # noqa: B006
    time_limit: TimeLimit = None,
    desired_layout: DesiredLayouts = [],  # noqa: B006
    skip: Skip = [],  # noqa: B006
    backend_option: BackendOptions = [],  # noqa: B006
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Lift no more than N requirements and sets of them.")
    ] = 1000,
) -> int:
    """Say why each conversion of the legal model is there: who gives the value, who wants it otherwise, which
    requirements are behind that, and what is saved where each is lifted (solved again, exactly)."""
    from relayout.cli.explain import run_explain
    from relayout.cli.legalize import wanted_of

    wanted = wanted_of(
        backend=backend,
        objective=objective,
        input_layouts=input_layout,
        output_layouts=output_layout,
        dims=dim,
        time_limit=time_limit,
        desired_layouts=desired_layout,
        skip=skip,
        backend_options=backend_option,
        explain=limit,
    )
    return run_explain(model, wanted, report)


@app.command("backends", short_help="List the backends, or what one wants.")
def backends_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="One backend: what it wants, by operator.", show_default=False),
    ] = None,
) -> int:
    """List the installed backends, or what one of them wants of each operator."""
    from relayout.cli.backends import list_backends, show_backend

    return list_backends() if name is None else show_backend(name)


@app.command("layout", short_help="Parse a layout string.")
def layout_command(
    layout: Annotated[str, typer.Argument(help="Such as 'N[a=32]HWC'.", show_default=False)],
    tvm: Annotated[bool, typer.Option("--tvm", help="Read it as TVM writes it, such as NCHW16c.")] = False,
) -> int:
    """Parse a layout string: its dimensions as a table, and what TVM calls it."""
    from relayout.cli.layout import show_layout

    return show_layout(layout, tvm=tvm)


@app.command("batch", short_help="Legalize every model of a folder.")
def batch_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the models are.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where the legal models go, by the same names.", show_default=False
        ),
    ],
    backend: BackendName = None,
    objective: Objective = "bytes",
    report: ReportFile = None,
    dim: Dims = [],  # noqa: B006
    time_limit: TimeLimit = None,
    engine: Engine = "auto",
    desired_layout: DesiredLayouts = [],  # noqa: B006
    skip: Skip = [],  # noqa: B006
    backend_option: BackendOptions = [],  # noqa: B006
    check: Check = False,
    inline: Inline = False,
    max_transposes: MaxTransposes = None,
) -> int:
    """Legalize every model of a folder; one that fails does not stop the others."""
    from relayout.cli.batch import run_batch
    from relayout.cli.legalize import wanted_of

    wanted = wanted_of(
        backend=backend,
        objective=objective,
        dims=dim,
        time_limit=time_limit,
        engine=engine,
        desired_layouts=desired_layout,
        skip=skip,
        backend_options=backend_option,
        check=check,
        inline=inline,
        max_transposes=max_transposes,
        strict=False,
    )
    return run_batch(folder, output, wanted, report)


@app.command("serve", short_help="Run the HTTP service.")
def serve_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
) -> int:
    """Run the HTTP service."""
    from relayout.cli.serve import run_server

    return run_server(host, port)
