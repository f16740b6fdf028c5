"""The structure of the code, computed from syntax trees: cycles, sizes, late imports, package files, names, tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "solver", ROOT / "backends", ROOT / "api")
LIBRARY = ROOT / "solver" / "relayout"

# Imports of our own modules inside functions: the importing module or package, the imported ones, and the reason. Each
# saves start-up time of the command, of a worker or of `import relayout`.
LATE = {
    "relayout.cli": ("*", "--help and a wrong option need no model, no solver and no report"),
    "relayout.options": ("relayout.backend.options relayout.layout.layout", "the parser of the command needs neither"),
    "relayout.legalization": (
        "relayout.verification.cost.certificate_findings relayout.verification.onnx_checks "
        "relayout.verification.verifier",
        "only --check and --certify need the verifier",
    ),
    "relayout.pipeline": ("relayout.report.drawing", "only a drawing needs it, and pydantic's schema of it"),
    "relayout.model.io": (
        "relayout.model.graph_json.codec relayout.model.graph_json.schema",
        "only graph JSON needs pydantic's schema of it",
    ),
    "relayout.verification.numeric.runtimes": (
        "relayout.verification.numeric.scans",
        "only the reference evaluator needs it, and imports onnx.reference",
    ),
    "relayout.verification.verifier": (
        "relayout.verification.against_original relayout.verification.cost.certificate_findings "
        "relayout.verification.numeric.bodies relayout.verification.numeric.compare "
        "relayout.verification.numeric.in_pieces",
        "only --against compares and runs models, and only --certificate reads a file",
    ),
    "relayout.verification.cost.stated_prices": (
        "relayout.backend.declarative",
        "only tables need pydantic's schema of them",
    ),
    "relayout.backend.loading": (
        "relayout.backend.declarative relayout.backend.declarative_reader",
        "only tables need pydantic's schema of them",
    ),
    "relayout.testing.pytest_plugin": ("relayout.testing.checks", "every run of pytest loads it"),
    "relayout_backends.canonical": ("relayout.ops", "a backend that is loaded but not asked needs no operator table"),
    "relayout_backends.x86_nchwc.backend": (
        "relayout_backends.x86_nchwc.checks.blocked relayout_backends.x86_nchwc.checks.blocked_types "
        "relayout_backends.x86_nchwc.checks.bodies",
        "only the verifier runs the checks of a backend",
    ),
    "relayout.ops.logical_node": ("relayout.ops.logical_view", "loading a backend does not import onnx_ir"),
    "relayout.solve.engines": (
        "relayout.solve.kernel_search relayout.solve.or_tools",
        "most problems are solved without ortools, whose import takes longest",
    ),
    "relayout.client.protocol": (
        "relayout.model.graph_json.schema relayout.report.schema",
        "only graph JSON and a result need pydantic's schemas of them",
    ),
    "relayout_api.app": (
        "relayout_api.access.keys relayout_api.access.tokens",
        "a service without keys imports no database and no cryptography at its start",
    ),
    "relayout_api.preflight": (
        "relayout_api.access.keys relayout_api.access.tokens relayout_api.store",
        "a service without keys imports no database at its start",
    ),
    "relayout_api.workers.tasks": ("*", "the server process does no work and imports none of it"),
    "relayout_api.workers.template": (
        "relayout_api.workers.tasks relayout_api.workers.worker",
        "the template leaves the terminal's signals alone before the imports, which take a second",
    ),
    "relayout_api.jobs.jobs": (
        "relayout_api.jobs.engine",
        "DBOS and SQLAlchemy take a second to import, in which the service already answers",
    ),
    "relayout_api.server": (
        "relayout_api.app relayout_api.http_protocol relayout_api.preflight relayout_api.settings "
        "relayout_api.telemetry.logs",
        "the template of the workers starts first, and imports at the same time",
    ),
}


@cache
def modules() -> Mapping[str, Path]:
    """Every module of the three source roots, by its dotted name; a package has the name of its folder."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for root in SOURCES
        for path in sorted(root.rglob("*.py"))
    }


@dataclass(frozen=True, slots=True)
class Contents:
    """The parts of a module that the tests read: a syntax tree has a million objects, which would stay to the end."""

    imports: frozenset[str]
    """Modules of ours, wherever the statement stands."""
    late: frozenset[str]
    """Those that are imported inside functions."""
    borrowed: frozenset[str]
    """Names that are imported from modules of ours, each behind its module."""
    public: tuple[str, ...]
    """Functions and classes."""
    error_texts: tuple[str, ...]
    """The texts inside calls of errors."""


@cache
def contents(name: str) -> Contents:
    found = tree(name)
    functions = [node for node in statements(found) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    calls = [each for each in ast.walk(found) if isinstance(each, ast.Call)]
    errors = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id.endswith("Error")]
    texts = [each.value for error in errors for each in ast.walk(error) if isinstance(each, ast.Constant)]
    return Contents(
        imports=frozenset(imported(statements(found))),
        late=frozenset(module for function in functions for module in imported(statements(function))),
        borrowed=frozenset(
            f"{node.module}.{alias.name}"
            for node in statements(found)
            if isinstance(node, ast.ImportFrom) and node.module in modules()
            for alias in node.names
        ),
        public=tuple(node.name for node in found.body if isinstance(node, kinds) and not node.name.startswith("_")),
        error_texts=tuple(text for text in texts if isinstance(text, str)),
    )


def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements inside a node. Expressions, most of a tree, have none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules of ours that these statements import; `from package import module` imports the module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from [inner] if inner in modules() else [node.module] if node.module in modules() else []


@cache
def graph() -> Mapping[str, Set[str]]:
    """Module -> the modules that it imports, wherever the statement stands."""
    return {name: contents(name).imports for name in modules()}


def circle(edges: Mapping[str, Set[str]]) -> list[str]:
    """One circle of these edges, or none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def merged(edges: Mapping[str, Set[str]], depth: int) -> dict[str, Set[str]]:
    """The edges between packages: between the first `depth` parts of the modules' names."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in edges.items():
        own = ".".join(name.split(".")[:depth])
        found[own] |= {".".join(other.split(".")[:depth]) for other in others} - {own}
    return dict(found)


def package_of(name: str) -> str:
    return name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(graph()) == []


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_package_imports_itself_by_way_of_others(depth: int) -> None:
    # `relayout` itself names what its modules export, for type checkers.
    inner = {name: others for name, others in graph().items() if name != "relayout" or depth == 1}
    assert circle(merged(inner, depth)) == []


def test_circles_are_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert circle(merged({"p.a.x": {"p.b.x"}, "p.b.y": {"p.a.y"}}, 2))
    assert not circle(merged({"p.a.x": {"p.b.x"}, "p.b.y": {"p.b.x"}}, 2))
    assert "relayout.backend.interface" in graph()["relayout.backend"], "an import for type checkers counts"
    assert "relayout_api.workers.work" in graph()["relayout_api.workers.tasks"], "an import inside a function counts"


def test_the_library_has_few_packages_and_few_modules_beside_them() -> None:
    packages = [path for path in LIBRARY.iterdir() if (path / "__init__.py").is_file()]
    # Twelve stages and subjects, and `testing`, which is the plugin author's and no stage imports.
    assert len(packages) <= 13
    assert len(list(LIBRARY.glob("*.py"))) <= 6


def test_no_package_has_too_many_modules() -> None:
    sizes = Counter(package_of(name) for name in modules() if modules()[name].name != "__init__.py")
    assert {name: size for name, size in sizes.items() if size > 25} == {}


def test_the_import_contracts_are_short_and_between_packages() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    start = text.index("[tool.importlinter]")
    lines = [line for line in text[start:].splitlines() if line]
    assert len(lines) <= 20
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    named = {name for each in contracts for layer in each.get("layers", ()) for name in layer.split(" : ")}
    assert [name for name in named if name.count(".") > 0] == []


def test_imports_inside_functions_are_those_that_save_start_up_time() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name in modules():
        if late := contents(name).late:
            listed = next((each for each in LATE if name == each or name.startswith(f"{each}.")), name)
            found[listed] |= late
    assert {*found} == {*LATE}
    allowed = {name: {*names.split()} for name, (names, _) in LATE.items()}
    assert {name: late for name, late in found.items() if allowed[name] not in ({"*"}, late)} == {}


PACKAGES = [name for name, path in modules().items() if path.name == "__init__.py"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_file_exports_and_does_nothing_else(name: str) -> None:
    """Imports (in `ops` they register the rows), `__all__`, and the functions of lazy exports.

    The library's own also prepares the import of onnx_ir, which must happen before any other module imports it.
    """
    for node in tree(name).body:
        if isinstance(node, ast.Expr):
            is_preparation = name == "relayout" and ast.unparse(node) == "import_sympy_lazily()"
            assert is_preparation or isinstance(node.value, ast.Constant), "a docstring"
        elif isinstance(node, ast.FunctionDef):
            assert node.name in ("__getattr__", "__dir__")
        elif isinstance(node, ast.Assign):
            [target] = node.targets
            assert isinstance(target, ast.Name)
            assert target.id in ("__all__", "_EXPORTS", "_MODULE_OF")
        elif isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"
        else:
            assert isinstance(node, ast.Import | ast.ImportFrom)


@pytest.mark.parametrize("name", modules())
def test_a_name_with_an_underscore_is_used_in_its_module_alone(name: str) -> None:
    assert [each for each in contents(name).borrowed if each.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_name_is_unique_in_its_package(package: str) -> None:
    # Overloads of one function are one name.
    names = [public for name in modules() if package_of(name) == package for public in {*contents(name).public}]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_module_has_the_name_of_a_function_that_its_package_exports() -> None:
    for package in PACKAGES:
        inner = {name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == package}
        exported = [
            alias.asname or alias.name
            for node in ast.walk(tree(package))
            if isinstance(node, ast.ImportFrom) and f"{node.module}" in modules()
            for alias in node.names
            if f"{node.module}.{alias.name}" not in modules()
        ]
        assert inner & {*exported} == set(), package


def test_the_architecture_page_lists_the_packages_of_the_library() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| package | subject |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))


@pytest.mark.parametrize("module", re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
def test_the_architecture_page_names_files_that_exist(module: str) -> None:
    assert (LIBRARY / module).is_file() or (ROOT / module).is_file()


# Modules without a test file of their own, and the reason.
WITHOUT_TESTS = {
    "layout/metadata_keys.py": "constants only, which the tests of files compare",
}


@pytest.mark.parametrize("package", ["layout", "solve"])
def test_every_module_of_values_and_of_the_solver_has_a_test_file(package: str) -> None:
    files = {path.relative_to(LIBRARY).as_posix() for path in (LIBRARY / package).glob("*.py")}
    files -= {f"{package}/__init__.py"}
    missing = {name for name in files if not (ROOT / "tests" / package / f"test_{name.partition('/')[2]}").is_file()}
    assert missing == {name for name in WITHOUT_TESTS if name.startswith(f"{package}/")}


# Only callers of the command see the errors of these.
OF_THE_COMMAND = (
    *("relayout.cli.", "relayout.testing.", "relayout.verification.cost.certificate_findings"),
    *("relayout_api.preflight", "relayout_api.server", "relayout_api.access.keys"),
)


@pytest.mark.parametrize("name", [each for each in modules() if not each.startswith(OF_THE_COMMAND)])
def test_no_error_of_the_library_or_the_service_names_a_flag(name: str) -> None:
    assert [text for text in contents(name).error_texts if re.search(r"(?<![\w-])--[a-z]", text)] == []
