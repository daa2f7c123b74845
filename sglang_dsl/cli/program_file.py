"""The user's file: its programs, their arguments, and what its code raises."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DslError, ProgramError, SpecError
from .output import FAILED, complain

if TYPE_CHECKING:
    from ..frontend.program import Program


def split_target(target: str) -> tuple[Path, str | None]:
    """`FILE[:PROGRAM]` as the file and the name. Raises SpecError where the file is not there."""
    path, colon, name = target.rpartition(":") if ":" in target and not Path(target).exists() else (target, "", "")
    file = Path(path)
    if not file.is_file():
        what = f"{str(file)!r} is a folder" if file.is_dir() else f"there is no file {str(file)!r}"
        raise SpecError(what, hint="give a Python file, optionally followed by :program")
    if colon and not name:
        raise SpecError(f"{target!r} names no program", hint=f"{file}:PROGRAM, or {file} to run it as a script")
    return file, name or None


def split_program(target: str) -> tuple[Path, str]:
    """`FILE:PROGRAM` as the file and the name. Raises SpecError where either is missing."""
    file, name = split_target(target)
    if name is None:
        raise SpecError(f"{target!r} names no program", hint=f"{file}:PROGRAM")
    return file, name


def program_at(target: str) -> Program[..., Any]:
    """The program of `FILE:PROGRAM`. Raises like `load_program`."""
    return load_program(*split_program(target))


def load_program(file: Path, name: str) -> Program[..., Any]:
    """Read a file and find one of its programs.

    Raises:
        SpecError: it is not a Python file. ProgramError: it has no such program, or ended itself while it was read.
    """
    from ..frontend.program import Program

    module_name, root = _module_name(file.resolve())
    sys.path[:0] = [str(root), str(Path.cwd())]
    sys.argv = [str(file)]  # what it reads of it is not said to us
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{str(file)!r} is not a Python file", hint="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    with users_code():
        package = module_name.rpartition(".")[0]
        if package:
            importlib.import_module(package)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except SystemExit as end:
            raise ProgramError(
                f"{file} ended with sys.exit({'' if end.code is None else repr(end.code)}) while it was read, before {name!r} was there",
                hint='put what runs as a script under `if __name__ == "__main__":`',
            ) from None
    found = getattr(module, name, None)
    if not isinstance(found, Program):
        programs = [key for key, value in vars(module).items() if isinstance(value, Program)]
        near = get_close_matches(name, programs, n=1)
        what = "is no program" if found is not None else "is not there"
        raise ProgramError(
            f"{file} has no program {name!r} (it {what}); it has: {', '.join(programs) or 'none'}",
            hint=f"{file}:{near[0]}" if near else "put @program on the function" if found is not None else "",
        )
    return found


def _module_name(file: Path) -> tuple[str, Path]:
    """What a file is imported as, and the folder to import it from: inside a package with the package's name, so that its relative
    imports work; never as a module that is there already (`json.py`), which others have to go on finding.
    """
    parts, root = [file.stem], file.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier() and root != root.parent:
        parts.insert(0, root.name)
        root = root.parent
    first = sys.modules.get(parts[0])
    theirs = getattr(first, "__file__", None)
    begins = root / parts[0] / "__init__.py" if len(parts) > 1 else file
    if first is not None and (theirs is None or Path(theirs).resolve() != begins):
        return f"sglang_dsl_program_{file.stem}", file.parent
    return ".".join(parts), root


class UserExitError(Exception):
    """The user's code has ended the command, with this exit code; what there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def users_code() -> Iterator[None]:
    """What the user's code raises is shown as Python would show it, without our own frames, and ends the command.

    Errors of ours, Ctrl-C and a closed output pass.
    """
    try:
        yield
    except (DslError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            raise UserExitError(end.code or 0) from None
        raise UserExitError(complain(str(end.code), FAILED)) from None
    except BaseException as error:  # noqa: BLE001  whatever a user's code raises, shown as it is
        shown = traceback.TracebackException.from_exception(error)
        _without_our_frames(shown)
        raise UserExitError(complain("".join(shown.format()).rstrip("\n"), FAILED)) from None


def _without_our_frames(shown: traceback.TracebackException) -> None:
    ours = (str(Path(__file__).parents[1]) + os.sep, "<frozen ")
    seen: set[int] = set()
    left = [shown]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kept = [f for f in one.stack if not f.filename.startswith(ours) and f.filename != runpy.__file__]
        one.stack = traceback.StackSummary.from_list(kept)
        left += [each for each in (one.__cause__, one.__context__, *(one.exceptions or ())) if each is not None]


# --- arguments -------------------------------------------------------------------------------------------------------


def program_arguments(
    program: Program[..., Any], given: Sequence[str], *, symbolic: Sequence[str] | None = None
) -> dict[str, Any]:
    """`name=value` pairs, each read as the type the program's signature names. symbolic: those that stay unknown."""
    parameters = _parameters(program)
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    values: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or (name not in named and not open_ended):
            near = get_close_matches(name, named, n=1)
            raise SpecError(
                f"--arg {pair!r} does not fit; the program takes: {', '.join(named) or 'nothing'}",
                hint=f"--arg {near[0]}={text}" if equals and near else "--arg name=value",
            )
        if name in values:
            raise SpecError(f"--arg {name} is given twice", hint="an argument has one value; give a list as JSON")
        if name in (symbolic or ()):
            raise SpecError(f"{name} is given by --arg and left unknown by --symbolic", hint="choose one of them")
        annotation = named[name].annotation if name in named else inspect.Parameter.empty
        values[name] = _read(name, text, annotation)
    for name in symbolic or ():
        if name not in named:
            raise SpecError(f"--symbolic {name}: the program takes: {', '.join(named) or 'nothing'}")
    missing = [
        key
        for key, parameter in named.items()
        if key not in values and key not in (symbolic or ()) and parameter.default is inspect.Parameter.empty
        if key not in program.bound
    ]
    if missing:
        options = "--arg {0}=..." if symbolic is None else "--arg {0}=... or --symbolic {0}"
        raise SpecError(f"the program needs {', '.join(missing)}", hint=", ".join(map(options.format, missing)))
    return values


def _parameters(program: Program[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(program.function, eval_str=True)
    except Exception:  # noqa: BLE001  an annotation that cannot be resolved, whatever is wrong with it
        signature = inspect.signature(program.function)
    return dict(list(signature.parameters.items())[1:])


def _read(name: str, text: str, annotation: Any) -> Any:
    """The value of `--arg name=text`: JSON where the annotation takes it, else the text itself."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    if annotation is str:
        return text
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return _json_or_text(text)
    try:
        adapter = TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise SpecError(
            f"--arg {name}: a value of type {annotation!r} cannot be written on a command line",
            hint="call the program from Python, or give the parameter a type that JSON has",
        ) from error
    try:
        return adapter.validate_python(_json_or_text(text))
    except ValidationError as error:
        with suppress(ValidationError):
            return adapter.validate_python(text)
        with suppress(ValidationError):
            return adapter.validate_json(text)
        what = error.errors(include_url=False)[0]
        where = ".".join(map(str, what["loc"]))
        raise SpecError(
            f"--arg {name}={text!r}: {f'{where}: ' if where else ''}{what['msg']}", hint="give the value as JSON"
        ) from error


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text
