"""The parser of the command line: it collects the verbs, one module each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

VERBS = ("legalize", "verify", "explain", "inspect", "layout", "batch", "backends", "serve")
"""The verbs in the order of the help. Each is in the module of its name."""


def verb_named(name: str) -> Callable[..., int] | typer.Typer:
    """The verb of this name: a function, or a group with verbs of its own."""
    verb: Callable[..., int] | typer.Typer = getattr(import_module(f"relayout.cli.{name}"), name)
    return verb


class _Verbs(TyperGroup):
    """The group of all verbs. Each is imported, and its options are declared, when it is named: both take as long as
    the work on a small model."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # For a name that no verb has, the parser looks for the nearest among all.
        for name in [cmd_name] if cmd_name in VERBS else VERBS:
            if name not in self.commands:
                self.commands[name] = _declared(name)
        return super().get_command(ctx, cmd_name)


def _declared(name: str) -> Any:
    verb = verb_named(name)
    if not isinstance(verb, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(verb)
        verb = alone
    command = typer.main.get_command(verb)
    command.name = name
    return command


app = typer.Typer(
    name="relayout",
    cls=_Verbs,
    help="Make a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.",
    epilog="Exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 no solution in time, "
    "5 an internal error.",
    no_args_is_help=False,
    add_completion=True,
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
