"""Every page of the manual is run, from top to bottom, in an empty folder and an empty environment of its own.

A `console` block holds commands (`$ ...`) and what they print, where `...` stands for anything; a command with nothing
below it may print what it likes. An `sh` block installs the project, which these tests take as done, and goes on: its
further steps are run, and a `text` block right below it holds what they print. `python` blocks share one namespace a
page, `pycon` blocks are doctests, and a block with a file's name behind its language is that file. `relayout serve` is
started on a free port, and the page's other commands find it there. On all but the first pages the other commands of
`relayout` are forked from a process that has made its imports, which take most of a command's time.

`python tests/test_docs.py [PAGE...]` writes into the pages what their commands print now.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from http_server import free_port

from relayout.backend import Backend
from relayout.testing import check_backend, generated_graphs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TOOLS = ROOT / "tests" / "support" / "bin"
# The environment whose command the pages call; `.ci/run` names one that has the wheel and its dependencies alone.
PREFIX = Path(os.environ.get("RELAYOUT_PREFIX", sys.prefix))
# The pages on which `relayout` is the installed program itself.
FIRST = ("README.md", "quickstart.md")
# The address that a page names, and the languages whose blocks are not run.
ADDRESS = "127.0.0.1:8000"
PROSE = {"", "text"}
# The steps of an `sh` block that make the environment which these tests run in, or that run these tests.
INSTALLS = ("python3 -m pip ", "test -x .uv/bin/uv ", ".uv/bin/uv ")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    file: str
    text: str


def blocks(page: Path) -> list[Block]:
    fences = re.finditer(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(fence[1], fence[2] or "", fence[3]) for fence in fences]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it is said to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = re.sub(r"\\\n *", "", part).partition("\n")
        yield command, printed


def environment(home: Path, *, tools_first: bool = False) -> dict[str, str]:
    """That of a person who has just installed the project, in a new home folder, 100 columns wide: no variable of the
    caller's but its PATH. `tools` stand in for what a machine may lack."""
    path = [os.environ["PATH"]]
    path.insert(0 if tools_first else 1, str(TOOLS))
    path.insert(0, str(PREFIX / "bin"))
    settings = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8"}
    return {**settings, "HOME": str(home), "PATH": os.pathsep.join(path)}


def same(printed: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(printed, got, doctest.ELLIPSIS)


class Reader:
    """One who follows a page to the letter; `stale`: each (line before an output, what is there, what is printed)."""

    def __init__(
        self, folder: Path, servers: contextlib.ExitStack, environment: dict[str, str], forked: Path | None
    ) -> None:
        self.folder = folder
        self.servers = servers
        self.environment = environment
        self.path = os.pathsep.join([*([str(forked)] if forked else []), environment["PATH"]])
        self.address = ADDRESS
        self.names: dict[str, object] = {"__name__": "page"}
        self.stale: list[tuple[str, str, str]] = []

    def follow(self, block: Block, below: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif block.language == "console":
            for command, printed in commands(block.text):
                self.compare(f"$ {command}", printed, self.type(command))
        elif block.language == "sh":
            steps = [step for step in block.text.strip().split(" && ") if not step.startswith(INSTALLS)]
            got = "".join([self.type(step) for step in steps])
            if below.language == "text":
                self.compare("```text", below.text, got)
        elif block.language == "python":
            exec(compile(self.here(block.text), "page", "exec"), self.names)
        elif block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, self.names, "page", None, 0)
            assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed == 0
            self.names.update(test.globs)
        else:
            assert block.language in PROSE, f"nothing runs a block of {block.language}"

    def compare(self, line_before: str, printed: str, got: str) -> None:
        if printed.strip() and not same(printed, got):
            self.stale.append((line_before, printed, got))

    def here(self, text: str) -> str:
        return text.replace(ADDRESS, self.address)

    def type(self, command: str) -> str:
        """The output of a command, without blanks at the ends of lines; it must succeed."""
        if re.match(r"relayout serve(?! keys)(?!.* --check)", command):
            self.address = self.servers.enter_context(serving(command, self.folder, self.environment))
            return ""
        done = subprocess.run(
            ["bash", "-ec", self.here(command)],
            cwd=self.folder,
            env={**self.environment, "PATH": self.path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


@contextlib.contextmanager
def serving(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a server that is ready, and that ends with the context."""
    port = free_port()
    arguments = [*shlex.split(command.removesuffix("&")), "--port", str(port)]
    state = {"RELAYOUT_DATA": str(folder / "data")}
    server = subprocess.Popen(arguments, cwd=folder, env={**environment, **state})
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/healthz")
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def wait_until_healthy(server: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        # Before the server listens, a connection to its port may come from that same port, and answer itself.
        with contextlib.suppress(URLError, HTTPException), urlopen(address):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the server ended with {server.wait(timeout=0.1)} before it answered")
    raise AssertionError("the server did not answer in a minute")


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the command that is forked."""
    from forked_command import forked_command  # run as a program, this module does not find it

    python, start = PREFIX / "bin" / "python", environment(tmp_path_factory.mktemp("home"))
    # A socket's path may not be long.
    with tempfile.TemporaryDirectory() as folder, forked_command(python, Path(folder), start) as program:
        yield program


def read(page: Path, folder: Path, forked: Path | None = None, *, tools_first: bool = False) -> Reader:
    with contextlib.chdir(folder), contextlib.ExitStack() as servers:
        # Where a checkout has its environment.
        (folder / ".venv").symlink_to(PREFIX)
        home = servers.enter_context(tempfile.TemporaryDirectory())
        reader = Reader(folder, servers, environment(Path(home), tools_first=tools_first), forked)
        for block, below in pairwise([*blocks(page), Block("", "", "")]):
            reader.follow(block, below)
        return reader


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, forked: Path) -> None:
    program = None if page.name in FIRST else forked
    assert read(page, tmp_path, program).stale == [], "python tests/test_docs.py brings the pages up to date"


def test_the_page_on_http_needs_no_curl(tmp_path: Path, forked: Path) -> None:
    assert read(ROOT / "docs" / "http.md", tmp_path, forked, tools_first=True).stale == []


def test_each_block_about_backends_runs_alone_and_each_example_is_sound(tmp_path: Path) -> None:
    """A `python` block needs no other, a `pycon` block only the `python` block before it. The kit takes each class."""
    every = blocks(ROOT / "docs" / "backends.md")
    for block in every:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    graphs = [graph for graph in generated_graphs() if graph.name in ("Softmax", "branches")]
    names: dict[str, object] = {"__name__": "page"}
    seen: list[type[Backend]] = []
    with contextlib.chdir(tmp_path):
        (tmp_path / "wrong.toml").write_text((tmp_path / "acme.toml").read_text().replace("multiple_of", "multipleof"))
        for block in [each for each in every if not each.file]:
            if block.language == "python":
                names = {"__name__": "page"}
                exec(compile(block.text, "page", "exec"), names)
                own = [each for each in names.values() if isinstance(each, type) and each.__module__ == "page"]
                seen += [each for each in own if issubclass(each, Backend)]
            elif block.language == "pycon":
                test = doctest.DocTestParser().get_doctest(block.text, dict(names), "page", None, 0)
                assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
        assert len(seen) > 12
        assert {kind.__name__: check_backend(kind, graphs=graphs).faults for kind in seen} == dict.fromkeys(
            [kind.__name__ for kind in seen], ()
        )


def test_every_hook_has_an_example() -> None:
    page = "".join(block.text for block in blocks(ROOT / "docs" / "backends.md") if block.language == "python")
    given_by_composite = {"devices", "at", "host"}
    hooks = {name for name in vars(Backend) if not name.startswith("_") and name != "context"} - given_by_composite
    assert {hook for hook in hooks if not re.search(rf"(def {hook}\(|\b{hook} = )", page)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_internal_link_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def rewrite(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stale = read(page, Path(folder)).stale
    text = page.read_text()
    for line_before, printed, got in stale:
        text = text.replace(f"{line_before}\n{printed}", f"{line_before}\n{got}", 1)
    page.write_text(text)


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        rewrite(path)
