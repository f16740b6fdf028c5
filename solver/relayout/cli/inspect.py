"""The verb `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE
from relayout.cli.job import STDIN, read_file
from relayout.cli.model_files import check_no_folder
from relayout.cli.options import Model
from relayout.cli.output_files import STDOUT, check_files, put
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, print_status
from relayout.errors import BackendError, UsageError
from relayout.options import options_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.report.inspection.schema import Inspection

TOP = 20
Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Print at most N entries of a list, the dearest first.")
]


def _file(flag: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar="FILE", help=text, show_default=False)
    return option


def inspect(
    model: Model,
    second: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A second model: print the difference.", show_default=False),
    ] = None,
    top: Top = TOP,
    values: Annotated[bool, typer.Option("--values", help="Print the layouts of all values.")] = False,
    dims: Annotated[
        list[str], typer.Option("--dim", metavar="NAME=N", help="The size of a symbolic dim.", show_default=False)
    ] = [],
    json: Annotated[Path | None, _file("--json", "Write the facts, or the difference, as JSON; - is stdout.")] = None,
    dot: Annotated[
        Path | None, _file("--dot", "Write a picture of the neighbourhood of conversions for Graphviz; - is stdout.")
    ] = None,
    svg: Annotated[Path | None, _file("--svg", "Write the same picture as SVG; - is stdout.")] = None,
    hops: Annotated[
        int | None,
        typer.Option(
            "--hops",
            metavar="N",
            min=0,
            max=8,
            help="Show nodes up to N steps from a conversion in the picture. [default: 1]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show a model, or the difference of two.

    Operators, layouts, and the transposes with their bytes and origin. Nothing is changed."""
    for each in filter(None, (model, second)):
        check_no_folder(each, f"name one model: relayout inspect {each / 'NAME.onnx'}")
    if model == second == STDIN:
        raise UsageError("two models from stdin", where="-", expected="- once", found="both models")
    if hops is not None and dot is None and svg is None:
        raise UsageError("there is no picture", where="--hops", expected="--svg or --dot", found="neither")
    if values and second is not None:
        raise UsageError("a difference lists no values", where="--values", expected="one model", found="two")
    files = {"--json": json, "--dot": dot, "--svg": svg}
    check_files(((flag, path) for flag, path in files.items() if path is not None), reads=[model, second])
    [declared] = [option for option in options_of("verify") if option.name == "dims"]
    sizes = declared.parse(dims, declared.flag)
    from relayout.model.dims.given_sizes import check_dims

    with Bar(1 if second is None else 2) as bar:
        bar("read")
        read = [read_file(model)]
        if second is not None:
            bar("read")
            read.append(read_file(second))
        check_dims(sizes, *read)
        subject = _inspected(read[0], model, sizes)
        if second is not None:
            other = _inspected(read[1], second, sizes)
    from relayout.report.inspection.inspect import difference
    from relayout.report.inspection.pictures import neighbourhood, to_dot, to_svg
    from relayout.report.inspection.text import difference_text, inspection_text

    # Of two models the picture shows the second, which was made from the first.
    drawn, steps = subject if second is None else other, 1 if hops is None else hops
    found = None if second is None else difference(subject, other)
    if json is not None:
        put(json, "--json", (found or subject).model_dump_json(indent=2) + "\n")
    if dot is not None:
        put(dot, "--dot", to_dot(neighbourhood(drawn, steps)))
    if svg is not None:
        put(svg, "--svg", to_svg(neighbourhood(drawn, steps)))
    show = print_status if STDOUT in files.values() else print_result
    show(inspection_text(subject, top, values=values) if found is None else difference_text(found, top))
    return DONE


def _inspected(model: ir.Model, path: Path, sizes: dict[str, int]) -> Inspection:
    from relayout.report.inspection.inspect import inspected

    return inspected(model, str(path), sizes, _conversion_operators())


def _conversion_operators() -> frozenset[tuple[str, str]]:
    """The conversion operators of all installed backends: a model does not tell for which one it was made."""
    from relayout.backend.calls import conversion_operators_of
    from relayout.backend.loading import load_backend
    from relayout.backend.registry import find_backends

    found: set[tuple[str, str]] = set()
    for name in find_backends():
        try:
            found |= conversion_operators_of(load_backend(name))
        except BackendError:
            # A broken package must not hide the model.
            continue
    return frozenset(found)
