"""The verb `backends`: list them, describe one, check one, begin a new one."""

from __future__ import annotations

import json
import shlex
import sys
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from relayout.cli.exit_status import DONE, FINDINGS
from relayout.cli.terminal import print_data, print_result, print_status, results_alone
from relayout.errors import BackendError, UsageError
from relayout.report.text_table import aligned, how_many

if TYPE_CHECKING:
    from relayout.backend.interface import Backend
    from relayout.backend.registry import Plugin
    from relayout.testing.checks import BackendReport, Fault
    from relayout.testing.description import NodeRequirement

WIDTH = 100
_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE|MODULE:CLASS",
        help="An installed backend, a .toml, .json or .py file, or a class.",
        show_default=False,
    ),
]
_Options = Annotated[
    list[str],
    typer.Option("--backend-option", metavar="NAME=VALUE", help="An option of the backend. May be repeated."),
]
_Format = Annotated[
    Literal["text", "json"], typer.Option("--format", metavar="text|json", help="The format of the output.")
]


class _Group(TyperGroup):
    """The first argument is a verb of this group, or else the name of a backend to show.

    Before another name it can only be a verb, and the parser knows the nearest to a wrong one.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if get_close_matches(args[0], self.commands) and args[1:] and not args[1].startswith("-"):
            return super().resolve_command(ctx, args)
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


backends = typer.Typer(
    name="backends",
    cls=_Group,
    help="List the backends, describe one, check one, or begin a new one.\n\n"
    "`relayout backends NAME` is short for `relayout backends show NAME`.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"ignore_unknown_options": True},
)


@backends.callback(invoke_without_command=True)
def list_backends(context: typer.Context) -> int:
    """Print the installed backends, each with the first line of its documentation and where it comes from."""
    if context.invoked_subcommand is not None:
        return DONE
    from relayout.backend.registry import find_backends

    rows = [
        (plugin.name, ", ".join(each.owner for each in (plugin, *plugin.others)), _about(plugin))
        for plugin in find_backends().values()
    ]
    print_result("\n".join(aligned(rows)) or "no backend is installed")
    return DONE


@backends.command()
@results_alone()
def show(
    name: _Name,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="Show each node's requirement, and whether the source meets it."),
    ] = None,
    backend_option: _Options = [],
    format: _Format = "text",
) -> int:
    """Describe a backend: options, hooks, rules and requirements.

    The requirements are its answers about sample nodes. With --model they are those of the model's nodes, each with
    whether the source meets it, before anything is solved."""
    from relayout.backend.loading import load_backend
    from relayout.testing.checks import backend_faults

    backend = load_backend(name, options=_given(backend_option))
    for fault in backend_faults(backend):
        print_status(f"warning: {fault}")
    if model is not None:
        return _show_model(backend, model, format)
    from relayout.testing.description import (
        conversion_lines,
        first_line,
        hook_lines,
        operator_blocks,
        rule_lines,
        support_lines,
        unsupported,
    )

    options, hooks, rules = _option_lines(name), hook_lines(backend), rule_lines(backend)
    blocks, conversions = operator_blocks(backend), conversion_lines(backend)
    if format == "json":
        requirements = {operators.replace("\n", " "): lines for operators, lines in blocks}
        print_data(
            json.dumps(
                {
                    "name": backend.name, "about": first_line(backend), "options": options, "hooks": hooks,
                    "rules": rules, "requirements": requirements, "conversions": conversions,
                    "unsupported": unsupported(backend),
                },
                indent=2,
            ) + "\n"
        )  # fmt: skip
        return DONE
    parts = [f"{backend.name}: {first_line(backend)}"]
    for title, lines in (
        ("Options, as --backend-option NAME=VALUE:", options),
        ("Rules, the first that fits decides:", [f"  {line}" for line in rules]),
        ("Hooks of its own:", [f"  {line}" for line in hooks]),
    ):
        parts += ["\n".join([title, *lines])] if lines else []
    parts += ["\n".join([operators, *_wrapped(lines)]) for operators, lines in blocks]
    # A rule or a hook may be about nodes that no sample is like.
    answers = any(line.startswith(("implementations ", "nth_")) for line in hooks)
    others = f"All {'other ' * bool(blocks)}{'sample nodes' if rules or answers else 'operators'}"
    parts.append(f"{others} are as ONNX defines them.")
    if conversions:
        parts.append("\n".join(["Conversions of 1x16x8x8 floats:", *[f"  {line}" for line in conversions]]))
    if lines := support_lines(backend):
        parts.append("\n".join(lines))
    print_result("\n\n".join(parts))
    return DONE


def _wrapped(lines: list[str]) -> list[str]:
    """A long line goes on at each further implementation."""
    return [f"  {line}" if len(line) <= WIDTH else f"  {line}".replace(" or ", "\n      or ") for line in lines]


def _show_model(backend: Backend, path: Path, format: str) -> int:
    from relayout.cli.job import read_file
    from relayout.testing.description import model_requirements

    rows = model_requirements(backend, read_file(path))
    if format == "json":
        from dataclasses import asdict

        print_data(json.dumps({"backend": backend.name, "nodes": [asdict(row) for row in rows]}, indent=2) + "\n")
        return DONE
    print_result("\n".join(_model_lines(rows)))
    return DONE


def _model_lines(rows: list[NodeRequirement]) -> list[str]:
    table = [("node", "operator", "satisfied", "requires")]
    table += [(row.node, row.operator, "yes" if row.is_satisfied else "no", row.requires) for row in rows]
    head, *aligned_rows = aligned(table)
    indent = max(len(cells[0]) for cells in table) + 4
    lines = [head]
    for row, line in zip(rows, aligned_rows, strict=True):
        lines += [line, *(" " * indent + unmet for unmet in row.unmet)]
    count = sum(not row.is_satisfied for row in rows)
    return [*lines, "", f"{how_many(len(rows), 'node')}, {count} not satisfied in the source"]


@backends.command()
@results_alone()
def check(
    name: _Name,
    graphs: Annotated[
        list[str],
        typer.Option(
            "--graphs", metavar="PATTERN", help="Only graphs whose name fits, such as 'Conv*'. May be repeated."
        ),
    ] = [],
    model: Annotated[
        list[Path], typer.Option("--model", metavar="MODEL", help="A model of your own besides. May be repeated.")
    ] = [],
    allow_infeasible: Annotated[
        list[str],
        typer.Option("--allow-infeasible", metavar="PATTERN", help="Graphs that may have no legal model."),
    ] = [],
    backend_option: _Options = [],
    format: _Format = "text",
) -> int:
    """Run a backend through generated graphs and onnx's own models.

    Its answers are checked, each graph is legalized, verified with numbers, and legalized again. The exit status is 1
    where there is a fault."""
    from fnmatch import fnmatchcase

    from relayout.cli.job import read_file
    from relayout.cli.progress import Bar
    from relayout.model.io import to_proto
    from relayout.testing.checks import check_backend
    from relayout.testing.graphs import SampleGraph, sample_graphs

    chosen = [each for each in sample_graphs() if not graphs or any(fnmatchcase(each.name, one) for one in graphs)]
    chosen += [SampleGraph(str(path), to_proto(read_file(path))) for path in model]
    if not chosen:
        names = [each.name for each in sample_graphs()]
        near = [name for name in names if any(one.strip("*?").lower() in name.lower() for one in graphs)][:6]
        raise UsageError(
            "no graph is left to check",
            where="--graphs",
            expected="patterns that the name of a graph fits, such as 'Conv*' or 'onnx/*'",
            found=", ".join(graphs),
            hint=f"there are {', '.join(near)}" if near else f"some of {len(names)}: {', '.join(names[::20])}",
        )
    with Bar(len(chosen)) as bar:
        report = check_backend(
            name, options=_given(backend_option), graphs=chosen, allow_infeasible=allow_infeasible, progress=bar
        )
    if format == "json":
        from dataclasses import asdict

        print_data(json.dumps({**asdict(report), "passed": report.passed}, indent=2) + "\n")
    else:
        print_result("\n".join(_check_lines(report)))
    return DONE if report.passed else FINDINGS


def _check_lines(report: BackendReport) -> list[str]:
    """Each fault once, with the other graphs that have its kind; then the graphs not compared, and the verdict."""
    alike: dict[tuple[str, str], list[Fault]] = {}
    for fault in report.faults:
        alike.setdefault((fault.kind, fault.message.partition("\n")[2] or fault.message), []).append(fault)
    lines = []
    for faults in alike.values():
        lines.append(f"error: {faults[0]}")
        others = [fault.graph for fault in faults[1:]]
        if others:
            lines += _first_names(f"  and in {len(others)} more: ", others)
    reasons: dict[str, list[str]] = {}
    for graph, reason in report.not_compared.items():
        reasons.setdefault(reason, []).append(graph)
    for reason, names in reasons.items():
        lines += _first_names(f"{len(names)} not compared, {reason}: ", names)
    if report.infeasible:
        lines.append(f"no legal model, as allowed: {', '.join(report.infeasible)}")
    verdict = "passed" if report.passed else f"failed: {how_many(len(report.faults), 'fault')}"
    unseen = len(report.not_compared)
    left = f", numbers compared in {report.graphs - unseen} of them" if unseen else ""
    return [*lines, f"{how_many(report.graphs, 'graph')}{left}, backend {report.backend}: {verdict}"]


def _first_names(text: str, names: list[str]) -> list[str]:
    shown = [*names[:6], "..."] if len(names) > 6 else names
    return wrap(text + ", ".join(shown), WIDTH, subsequent_indent="  ")


@backends.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backend's name: letters, digits and -.")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="The package's folder. [default: NAME]", show_default=False),
    ] = None,
) -> int:
    """Write a plugin package with a backend and its test."""
    from relayout.testing.template import write_package

    target = Path(name) if folder is None else folder
    for path in write_package(name, target):
        print_result(str(path))
    print_status(f"next: cd {shlex.quote(str(target))} && {_pip()} install -e . pytest && python3 -m pytest")
    return DONE


def _pip() -> str:
    """The command that installs into this environment. One of uv has no pip, and its uv may lie in the checkout alone,
    where the README installs it."""
    if find_spec("pip"):
        return "python3 -m pip"
    own = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    return f"{shlex.quote(str(own))} pip" if which("uv") is None and own.is_file() else "uv pip"


def _given(options: list[str]) -> dict[str, Any]:
    """The backend options of a command line. Raises UsageError."""
    from relayout.options import options_of

    [option] = [each for each in options_of("legalize") if each.name == "backend_options"]
    return dict(option.parse(options, option.flag))


def _option_lines(name: str) -> list[str]:
    """Each option with its default, its type and its description; a table has none."""
    from relayout.backend.options import options_of
    from relayout.backend.plugin_files import import_backend, is_code
    from relayout.backend.registry import find_backends

    plugin = find_backends().get(name)
    found = plugin.load() if plugin is not None else import_backend(name) if is_code(name) else None
    lines: list[str] = []
    for option in options_of(found) if isinstance(found, type) else ():
        lines.append(f"  {option.name}={option.default_text}  ({option.expected})")
        lines += wrap(option.about, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


def _about(plugin: Plugin) -> str:
    from relayout.testing.description import first_line

    try:
        return first_line(plugin.load())
    except BackendError as error:
        # A broken package must not hide the others.
        return f"broken: {error.problem} ({error.found})"
