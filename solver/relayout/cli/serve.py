"""The verb `serve`, `serve settings` and `serve keys`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from relayout.cli.exit_status import BAD_INPUT, DONE
from relayout.cli.terminal import print_data, print_status
from relayout.errors import UsageError
from relayout.report.text_table import aligned

serve = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
keys = typer.Typer(help="Make, list and revoke API keys.", rich_markup_mode=None)
serve.add_typer(keys, name="keys")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="A name for the key.", show_default=False)]


@serve.callback()
def start(
    context: typer.Context,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, metavar="PORT", help="The port to listen on.")
    ] = 8000,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1 << 20,
            metavar="SECONDS",
            help="The time for work in progress when the server is told to stop; jobs start again later. [default: the "
            "variable RELAYOUT_GRACE, else 10]",
            show_default=False,
        ),
    ] = None,
    is_open: Annotated[bool, typer.Option("--open", help="Admit every caller without a key, on any address.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration.")] = False,
) -> int:
    """Run the HTTP service. Its settings are variables, which `relayout serve settings` lists."""
    if context.invoked_subcommand is not None:
        return DONE
    if check:
        return _check(host, is_open)
    _service("server").serve(host, port, grace, is_open=is_open)
    return DONE


def _service(module: str) -> Any:
    """A module of the service. By its name, because the library does not know the service. Raises UsageError."""
    if sys.platform == "win32":
        raise UsageError(
            "the service does not run on Windows",
            where="serve",
            expected="Linux or macOS",
            hint="run it in WSL, or in a container",
        )
    return import_module(f"relayout_api.{module}")


def _check(host: str, is_open: bool) -> int:
    wrong = 0
    for name, found, error in _service("preflight").examine(host, is_open):
        print_data(f"{name:<18}{found if error is None else 'wrong'}\n")
        if error is not None:
            wrong += 1
            print_status(f"relayout: error: {error}")
    return BAD_INPUT if wrong else DONE


@serve.command()
def settings() -> int:
    """List the settings: each variable with its value now, and its meaning."""
    for variable, value, meaning in _service("preflight").listed():
        print_data(f"{variable}={value}\n    {meaning}\n")
    return DONE


@keys.command()
def add(
    name: KeyName,
    scope: Annotated[
        str, typer.Option(metavar="read|legalize|admin", help="The scope of the key; each includes those before it.")
    ] = "legalize",
    rate: Annotated[float | None, typer.Option(min=0.01, max=1e6, metavar="N", help="Requests a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, max=10**6, metavar="N", help="Requests at once.")] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, metavar="N", help="Days until the key expires.")
    ] = None,
) -> int:
    """Make a key and print it. It is shown only now."""
    print_data(_service("access.command").add(name, scope, rate, concurrency, days) + "\n")
    return DONE


@keys.command("list")
def list_() -> int:
    """List the keys, without their secrets."""
    rows = [("name", "scope", "a minute", "at once", "made", "expires"), *_service("access.command").listed()]
    print_data("\n".join(aligned(rows)) + "\n")
    return DONE


@keys.command()
def revoke(name: KeyName) -> int:
    """Delete a key. A running server forgets it within seconds."""
    _service("access.command").revoke(name)
    return DONE
