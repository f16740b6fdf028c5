"""The plugin package that `relayout backends new NAME` writes: a backend, its entry point and its test."""

from __future__ import annotations

import re
from pathlib import Path

from relayout.backend.registry import find_backends
from relayout.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = ("check", "new", "show")

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{package}"
version = "0.1.0"
description = "The layout requirements of {name}, for relayout"
requires-python = ">=3.11"
dependencies = ["relayout[check]"]

[project.entry-points."relayout.backends"]
{name} = "{module}:{kind}"

[tool.hatch.build.targets.wheel]
include = ["{module}.py"]
"""

_BACKEND = '''\
"""The layouts that {name} requires."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout import Backend, Implementation, Layout
from relayout.backend import rank_of


class {kind}(Backend):
    """Max pools of images run on NHWC, and on NCHW at the cost of reading 64 KiB more."""

    name = "{name}"
    # The answers depend on operators, attributes and types only, so that relayout asks once for nodes that are alike.
    answers_by_type = True

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "MaxPool" or rank_of(node.inputs[0]) != 4:
            return super().implementations(node)
        nhwc, nchw = Layout.parse("NHWC"), Layout.parse("NCHW")
        return [
            Implementation(inputs=(nhwc,), results=(nhwc,) * len(node.outputs)),
            Implementation(inputs=(nchw,), results=(nchw,) * len(node.outputs), cost=65536),
        ]
'''

_TEST = '''\
"""{name} is a sound backend: relayout's kit runs it through generated graphs and models that ship with onnx."""

from __future__ import annotations

from {module} import {kind}

from relayout.testing import BackendTests


class Test{kind}(BackendTests):
    backend = {kind}
'''


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package for a backend of this name into a new folder, and return its files.

    Raises UsageError for a name that is none or that an installed backend has, or where the folder exists.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED:
        expected = "a lower-case letter, then such letters and digits, with single - between them; "
        expected += f"and none of {', '.join(_RESERVED)}"
        raise UsageError("that is no name for a backend", expected=expected, found=repr(name))
    if (owner := find_backends().get(name)) is not None:
        found = f"{name!r} of {owner.owner}"
        raise UsageError("a backend of this name is installed", expected="a name of its own", found=found)
    words = {
        "name": name,
        "package": f"relayout-{name}",
        "module": f"relayout_{name.replace('-', '_')}",
        "kind": "".join(part.capitalize() for part in name.split("-")),
    }
    files = {"pyproject.toml": _PROJECT, f"{words['module']}.py": _BACKEND, f"tests/test_{words['module']}.py": _TEST}
    try:
        folder.mkdir(parents=True)
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(exist_ok=True)
            target.write_text(text.format(**words))
    except OSError as error:
        raise UsageError(
            "the package cannot be written",
            where=str(folder),
            expected="a folder that is not there yet, where this user may make one",
            found=error.strerror or str(error),
            hint="name another one with --folder",
        ) from error
    return [folder / path for path in files]
