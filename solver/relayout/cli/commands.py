"""The parser of the command line: it collects the verbs, one module each."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from relayout.cli.backends import backends
from relayout.cli.batch import batch
from relayout.cli.explain import explain
from relayout.cli.inspect import inspect
from relayout.cli.layout import layout
from relayout.cli.legalize import legalize
from relayout.cli.serve import service
from relayout.cli.verify import verify

__all__ = ["app"]

app = typer.Typer(
    name="relayout",
    help="Make a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.",
    epilog="Exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 no solution in time, "
    "5 an internal error.",
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for verb in (legalize, verify, explain, inspect, layout, batch):
    app.command()(verb)
app.add_typer(backends)
app.add_typer(service, name="serve")


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
