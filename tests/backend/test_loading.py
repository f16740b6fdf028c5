"""Backends are found by name, class, file and table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from installed_packages import install

from relayout.backend import load_backend
from relayout.backend.calls import ask
from relayout.backend.registry import find_backends
from relayout.errors import BackendError

EXAMPLE = Path(__file__).parents[1] / "example_plugin"
SHIPPED = [
    *["auto-nhwc", "canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"],
    *["tpu", "x86-nchwc", "xla-cpu"],
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example plugin is installed into, by the installer that installs relayout."""
    folder = tmp_path_factory.mktemp("site")
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv is not None, "the tests run under uv: uv run pytest"
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder, EXAMPLE]
    subprocess.run(command, check=True)
    return folder


def conv(channels: int) -> ir.Node:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,{channels},8,8] x, float[4,{channels},3,3] w) => (float[1,4,6,6] y) {{ y = Conv (x, w) }}"""
    return ir.from_proto(onnx.parser.parse_model(text)).graph[0]


# The backends that ship


def test_the_backends_that_ship_are_found_as_strangers_are() -> None:
    found = find_backends()
    assert [name for name, plugin in found.items() if plugin.distribution == "relayout"] == SHIPPED
    assert list(found) == sorted(found)
    assert found["nhwc"].owner == f"relayout {distribution('relayout').version}"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_backend_that_ships_goes_by_its_name_and_says_what_it_is(name: str) -> None:
    backend = load_backend(name)
    assert backend.name == name
    assert type(backend).__doc__


def test_finding_backends_imports_none_and_loading_one_imports_nothing_heavy() -> None:
    program = """
import sys
from relayout.backend.registry import find_backends
from relayout.backend import load_backend
find_backends()
print(sorted(name for name in sys.modules if name.startswith("relayout_backends")))
load_backend("convert-layout", options={"desired_layouts": {"Conv": ["NHWC", "default"]}})
load_backend("opencl")
print(sorted({"numpy", "onnx", "onnx_ir", "ortools", "pydantic", "relayout_backends.nhwc"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


# A plugin of another package


def test_a_package_that_is_installed_brings_its_backend(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)
    plugin = find_backends()["example"]
    assert (plugin.owner, plugin.value) == ("relayout-example 1.2.3", "relayout_example:Example")
    backend = load_backend("example")
    assert backend.name == "example"
    assert [str(each.inputs[0]) for each in ask(backend, conv(3))] == ["NHWC", "NCHW"]
    assert [each.cost for each in ask(backend, conv(3))] == [0, 4096]
    assert [str(each.inputs[1]) for each in ask(backend, conv(64))] == ["HWIO"]


def test_an_installed_backend_takes_options(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)
    assert len(ask(load_backend("example", options={"many": 2}), conv(3))) == 1


def test_a_declarative_backend_may_extend_an_installed_one(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)
    backend = load_backend({"name": "mine", "extends": "example", "rule": [{"op": "MaxPool", "data": "NCHW"}]})
    assert len(ask(backend, conv(3))) == 2


def test_an_entry_point_may_be_an_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "from relayout.backend import Backend\nclass B(Backend):\n    name = 'ready'\nready = B()\n"
    install(tmp_path, "made", "ready = made_layouts:ready", {"made_layouts": module})
    monkeypatch.syspath_prepend(tmp_path)
    assert load_backend("ready").name == "ready"


def test_two_distributions_with_one_name_are_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "their-layouts", "nhwc = theirs:B")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError) as caught:
        load_backend("nhwc")
    assert "relayout" in caught.value.found
    assert "their-layouts 1.0 (theirs:B)" in caught.value.found
    assert {"nhwc", "nchw"} <= set(find_backends())
    with pytest.raises(BackendError, match="several backends are named 'nhwc'"):
        find_backends()["nhwc"].load()
    assert load_backend("nchw").name == "nchw"


def test_a_plugin_that_fails_at_import_is_named_only_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path, "broken-layouts", "broken = broken_layouts:B", {"broken_layouts": "raise RuntimeError('no chip')"}
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "broken" in find_backends()
    assert load_backend("onnx").name == "onnx"
    with pytest.raises(BackendError, match=r"(?s)'broken' of broken-layouts 1.0.*RuntimeError: no chip"):
        load_backend("broken")


@pytest.mark.parametrize("value", ["missing_module:B", "json:missing", "json:dumps"])
def test_an_entry_point_that_is_no_backend_is_an_error_that_names_its_distribution(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "odd-layouts", f"odd = {value}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError) as caught:
        load_backend("odd")
    assert "odd-layouts 1.0" in str(caught.value)
    assert caught.value.where == value


def test_an_unknown_name_comes_with_near_ones_and_the_list() -> None:
    with pytest.raises(BackendError) as caught:
        load_backend("nwhc")
    assert "nhwc" in caught.value.hint
    assert all(name in caught.value.expected for name in SHIPPED)
    with pytest.raises(BackendError) as caught:
        load_backend("something else entirely")
    assert caught.value.hint == ""


@pytest.mark.parametrize("name", ["backend.toml", "./backend.json", "../../secret.toml"])
def test_a_service_never_reads_a_file_that_a_request_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("backend.toml").write_text('name = "mine"\n')
    for spec in (name, Path(name)):
        with pytest.raises(BackendError, match="files are not accepted here"):
            load_backend(spec, allow_files=False)


CODE = """
from relayout import Backend

class First(Backend):
    name = "first"

class Second(Backend):
    name = "second"

other = 5
"""


def test_a_class_that_is_not_installed_is_loaded_from_its_file_or_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_of_them.py").write_text(CODE)
    (tmp_path / "one.py").write_text(CODE.partition("class Second")[0])
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(4)\n")
    (tmp_path / "table.yaml").write_text("name: table\n")
    monkeypatch.chdir(tmp_path)
    assert load_backend("two_of_them.py:Second").name == "second"
    assert load_backend("two_of_them:First").name == "first"
    assert load_backend("one.py").name == "first"
    for spec, said in {
        "two_of_them.py": "name one, as in two_of_them.py:First",
        "two_of_them:other": "that is no backend",
        "two_of_them:Third": "expected: First or Second",
        "none_there:Third": "ModuleNotFoundError",
        "none_there.py": "no such file",
        "none_there:Backend": "ModuleNotFoundError: No module named 'none_there'",
        "leaving.py": "SystemExit: 4, in leaving.py, line 2",
        "table.yaml": "expected: .toml or .json for a table, .py for a class",
        "one": "did you mean the file one.py?",
    }.items():
        with pytest.raises(BackendError) as caught:
            load_backend(spec)
        assert said in str(caught.value)
    for spec in ("one.py", "two_of_them:First", "table.yaml", "one"):
        with pytest.raises(BackendError, match="there is no backend") as caught:
            load_backend(spec, allow_files=False)
        assert "the file" not in caught.value.hint
