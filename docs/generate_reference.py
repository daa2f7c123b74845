"""Writes docs/reference.md from signatures and docstrings: python docs/generate_reference.py

A test runs `reference()` and compares, so the page is never older than the code.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

PAGE = Path(__file__).with_name("reference.md")
WIDTH = 100

GROUPS: tuple[tuple[str, str, str], ...] = (
    ("Programs", "sglang_dsl", "program Program Result Running Interrupted Stream Chunk"),
    ("What a program appends to", "sglang_dsl", "State Branches Joined Lazy MISSING"),
    ("Calls and text", "sglang_dsl", "gen select raw image Generation Selection Handle Reasoning"),
    (
        "Turns",
        "sglang_dsl",
        "system user assistant role system_begin system_end user_begin user_end assistant_begin assistant_end "
        "role_begin role_end",
    ),
    ("Tools", "sglang_dsl", "tool Tool"),
    ("Options", "sglang_dsl", "RunOptions use set_default_backend local SamplingSpec ConstraintSpec"),
    ("What is known after a call or a run", "sglang_dsl", "Meta Usage"),
    ("Graphs", "sglang_dsl", "Graph execute explain"),
    ("Errors", "sglang_dsl", "DslError Origin"),
    (
        "Testing: the mock",
        "sglang_dsl.testing",
        "mock MockExecutor Calls Call Rule Reply Piece pieces fails cut_off stalls malformed CostModel",
    ),
    (
        "Testing: faults, cassettes, golden graphs",
        "sglang_dsl.testing",
        "Fault with_faults cassette check_golden compare",
    ),
    ("The engine", "sglang_dsl.runtime.engine.engine", "Engine"),
    ("Options of the engine", "sglang_dsl.runtime.engine.border", "EngineConfig"),
    ("Options of the scheduler, which are the engine's too", "sglang_dsl.runtime.schedule.step", "SchedulerConfig"),
    ("Options of a model", "sglang_dsl.runtime.model.options", "ModelOptions"),
    ("Pictures", "sglang_dsl.ir.draw", "draw"),
    ("Records", "sglang_dsl.ir.record", "RunRecord save_record load_record"),
    ("Graphs as JSON", "sglang_dsl.ir.json_format", "dumps loads save load schema graph_hash"),
    ("Graphs as text", "sglang_dsl.ir.text_format", "print_graph parse"),
)
COMMANDS = (
    "run", "trace", "explain", "diff", "replay", "trace2test", "models list", "models pull", "doctor", "bench",
)  # fmt: skip
MADE_ELSEWHERE = frozenset(
    {"Program", "Result", "Running", "Interrupted", "Stream", "Chunk", "State", "Branches", "Joined", "Lazy", "Generation",
     "Selection", "Handle", "Tool", "MockExecutor", "Calls", "Call", "DslError"}
)  # fmt: skip
"""Classes whose objects users get, and do not make."""


def reference() -> str:
    """The page."""
    return "\n".join([*_head(), *(line for group in GROUPS for line in _group(*group)), *_commands()]) + "\n"


def documented(module: str) -> set[str]:
    """Names of a module that the page has."""
    return {name for _, where, names in GROUPS if where == module for name in names.split()}


def _head() -> list[str]:
    return [
        "# Reference",
        "",
        "Made from the docstrings by `docs/generate_reference.py`. To learn the language, read [the guide](guide.md).",
        "",
        *(f"* [{title}](#{_anchor(title)})" for title in (*(title for title, _, _ in GROUPS), "The command line")),
        "",
    ]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _group(title: str, where: str, names: str) -> Iterator[str]:
    yield from (f"## {title}", "", f"`from {where} import ...`", "")
    module = import_module(where)
    for name in names.split():
        yield from _entry(name, getattr(module, name))


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if inspect.isclass(thing):
        yield from _class(name, thing)
    elif callable(thing):
        yield from _code(_signature(name, thing))
        yield from _prose(thing)
    else:
        yield from _prose(type(thing))


def _class(name: str, kind: type) -> Iterator[str]:
    if name not in MADE_ELSEWHERE:
        yield from _code(_signature(name, kind))
    yield from _prose(kind)
    if dataclasses.is_dataclass(kind) and name in MADE_ELSEWHERE:
        yield from _fields(kind)
    for member, found in vars(kind).items():
        if not member.startswith("_"):
            yield from _member(member, found)


def _fields(kind: Any) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        yield f"* `{field.name}: {field.type}`"
    yield ""


def _member(name: str, found: Any) -> Iterator[str]:
    if isinstance(found, property):
        yield from (f"**`.{name}`**", "")
        yield from _prose(found)
    elif inspect.isfunction(found) or isinstance(found, (classmethod, staticmethod)):
        function = getattr(found, "__func__", found)
        yield from (f"**`.{name}`**", "")
        yield from _code(_signature(name, function, bound=not isinstance(found, staticmethod)))
        yield from _prose(function)


def _code(text: str) -> list[str]:
    return ["```py", text, "```", ""]


def _signature(name: str, thing: Any, *, bound: bool = False) -> str:
    prefix = "async def " if inspect.iscoroutinefunction(thing) else ""
    signature = inspect.signature(thing)
    parameters = list(_parameters(list(signature.parameters.values())[1 if bound else 0 :]))
    returned = "" if inspect.isclass(thing) or not signature.return_annotation else f" -> {signature.return_annotation}"
    line = f"{prefix}{name}({', '.join(parameters)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join((f"{prefix}{name}(", *(f"    {parameter}," for parameter in parameters), f"){returned}"))


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """As written in the source, with the bare `*` and `/` between them."""
    before: Any = None
    for parameter in parameters:
        if before is inspect.Parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            yield "*"
        yield _parameter(parameter)
        before = parameter.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    shown = "..." if repr(parameter.default).startswith("<") else repr(parameter.default)
    return f"{text} = {shown}" if len(shown) <= WIDTH // 2 else f"{text} = {type(parameter.default).__name__}(...)"


def _prose(thing: Any) -> Iterator[str]:
    """A docstring as Markdown: sections become lists, examples become code."""
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        if paragraph.strip():
            yield from (*_paragraph(paragraph.splitlines()), "")


def _paragraph(lines: list[str]) -> Iterator[str]:
    section = re.fullmatch(r"(Args|Raises|Returns|Source):\s*(.*)", lines[0])
    if section is not None:
        yield f"**{section[1]}**" + (f" {_escaped(section[2])}" if section[2] else "")
        yield ""
        yield from _items(lines[1:])
    elif _is_list(lines):
        yield from _items([f"    {line}" for line in lines])
    elif len(lines) > 1 and _is_python(lines):
        yield from _code("\n".join(lines))[:-1]
    else:
        yield from map(_escaped, lines)


def _items(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        indent = len(line) - len(line.lstrip())
        text = _escaped(line.strip())
        yield f"* {text}" if indent <= 4 else f"  {text}"


def _is_list(lines: list[str]) -> bool:
    """Whether each line that is not indented begins with a field's name, and something says that it is no sentence."""
    starts = [line for line in lines if not line.startswith(" ")]
    named = all(re.match(r"[a-z_]+(, [a-z_]+)*: ", line) for line in starts)
    return named and (len(starts) > 1 or len(starts) < len(lines))


def _is_python(lines: list[str]) -> bool:
    try:
        parsed = ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return any(not isinstance(statement, (ast.Expr, ast.AnnAssign)) for statement in parsed.body)


def _escaped(text: str) -> str:
    """Stars and angle brackets outside of code are themselves."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else p.replace("*", r"\*").replace("<", r"\<") for p in parts)


def _commands() -> Iterator[str]:
    yield from ("## The command line", "")
    for command in COMMANDS:
        yield from (f"### sglang-dsl {command}", "", "```", _help(command), "```", "")


def _help(command: str) -> str:
    from sglang_dsl.cli import main

    shown = io.StringIO()
    settings = {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    with patch.dict(os.environ, settings), contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return shown.getvalue().rstrip()


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
