"""The `sglang-dsl` command: wiring only. The command line is read first, and refused where it is wrong; then one function calls
the room that does the work.

Exit codes: 0 done; 1 the user's program raised, two runs differ, or nobody reads the output any more; 2 wrong use, or an error
of ours that says what to do (also: a file that cannot be read or written); 130 interrupted. What was asked for with `--save`
and `--picture` is written in every case. A script's own exit code is passed on.
"""

from __future__ import annotations

import codecs
import errno
import importlib
import importlib.util
import inspect
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer
from typer.exceptions import TyperException

from .errors import DslError, FormatError, ProgramError, SpecError

if TYPE_CHECKING:
    from .frontend.program import Program
    from .frontend.result import Result
    from .ir.draw import Format
    from .ir.graph import Graph
    from .ir.record import RunRecord

Work: TypeAlias = Callable[[], int]
DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
PICTURES: Mapping[str, Format] = {  # what `run --picture` draws, by the suffix of the file
    ".html": "html",
    ".svg": "svg",
    ".mmd": "mermaid",
    ".dot": "dot",
    ".txt": "terminal",
    ".json": "trace",
}
GRAPHS: Mapping[str, str] = {**PICTURES, ".txt": "text", ".json": "json"}  # what `trace --out` writes
GRAPH_FORMATS = ("text", "mermaid", "html", "terminal", "dot", "svg", "json")
EXIT_CODES = (
    "Exit codes: 0 done; 1 the program raised, or two runs differ; 2 wrong use or a clear error; 130 interrupted. "
    "A script's own code is passed on."
)

app = typer.Typer(
    help="Write, look at and run prompt programs.", epilog=EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)
models_app = typer.Typer(help="List or fetch models.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")

Target = Annotated[str, typer.Argument(metavar="FILE:PROGRAM", show_default=False)]
Args = Annotated[
    list[str], typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the program: JSON or text.")
]
Symbolic = Annotated[list[str], typer.Option("--symbolic", metavar="NAME", help="Leave this argument unknown.")]
BackendName = Annotated[
    str | None, typer.Option("--backend", help="For example local, local:smollm2, local:/path/to/model, mock.")
]
ModelName = Annotated[str | None, typer.Option("--model", help="Short for --backend local:MODEL.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of all draws.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    code = DONE
    try:
        work = app(
            list(sys.argv[1:] if arguments is None else arguments), prog_name="sglang-dsl", standalone_mode=False
        )
        code = work() if callable(work) else int(work or 0)
    except TyperException as error:
        cast("Any", error).show()  # every error of the command line has it
        code = error.exit_code
    except _UserExitError as end:
        code = end.code
    except DslError as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        code = _output_lost()
    except OSError as error:  # of our own reading and writing: what the user's code raises has been shown
        _output_lost()
        code = _complain(f"a file or the output cannot be read or written: {error.strerror or error}")
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BrokenPipeError:
        code = code or _output_lost()
    except OSError as error:
        _output_lost()
        code = code or _complain(f"the output cannot be written: {error.strerror}")
    return code


def _complain(what: str, code: int = REFUSED) -> int:
    with suppress(BrokenPipeError):
        print(what, file=sys.stderr)
    return code


def _output_lost() -> int:
    """Whoever read the output has gone: nothing more is written to it, also not when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sglang-dsl {version('sglang-dsl')}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Write, look at and run prompt programs."""


# --- commands ----------------------------------------------------------------------------------------------------------


@app.command(epilog=EXIT_CODES, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE[:PROGRAM]", show_default=False)],
    arg: Args = [],  # noqa: B006  typer reads it, nobody writes it
    backend: BackendName = None,
    model: ModelName = None,
    seed: Seed = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is written.")] = False,
    top: Annotated[bool, typer.Option("--top", help="Show a live table of the engine while it runs.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Store the run's record.")] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what happened: .html, .svg, .mmd, .dot, .txt; .json is a timeline."),
    ] = None,
) -> Work:
    """Run a script, or one program of it. What is no option here is passed on to a script (after -- everything is)."""
    file, name = _split_target(target)
    options = _options(backend, model, seed)
    if name is None:
        of_a_program = {"--arg": arg, "--stream": stream, "--top": top, "--save": save, "--picture": picture}
        for option, given in of_a_program.items():
            if given:
                raise SpecError(
                    f"{option} needs a program: a script makes its own runs",
                    hint=f"sglang-dsl run {target}:PROGRAM {option} ..., or after -- to give it to the script",
                )
        return partial(_run_script, file, context.args, options)
    _refuse_rest(context.args)
    if stream and top:
        raise SpecError("--stream and --top both write to the terminal", hint="choose one of them")
    files = _Files(save, picture)
    return partial(_run_program, file, name, arg, options, files, stream=stream, top=top)


@app.command(epilog=EXIT_CODES)
def trace(
    target: Target,
    arg: Args = [],  # noqa: B006
    symbolic: Symbolic = [],  # noqa: B006
    format_: Annotated[
        str | None, typer.Option("--format", help=f"One of {', '.join(GRAPH_FORMATS)}.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write here; .html, .svg, .mmd, .dot, .txt and .json choose the format."),
    ] = None,
) -> Work:
    """Print or draw a program's graph; no model is run."""
    form = _graph_format(format_, out)
    _split_program(target)
    if out is not None:
        check_writable(out, "--out")
    return partial(_trace, target, arg, symbolic, form, out)


@app.command(epilog=EXIT_CODES)
def explain(
    target: Target,
    arg: Args = [],  # noqa: B006
    symbolic: Symbolic = [],  # noqa: B006
    backend: BackendName = None,
    model: ModelName = None,
) -> Work:
    """What a run would compute, share and hold, before it runs."""
    _split_program(target)
    return partial(_explain, target, arg, symbolic, _options(backend, model, None))


@app.command(epilog=EXIT_CODES)
def diff(a: Path, b: Path) -> Work:
    """Two recorded runs: where they part, and what it cost. Exit code 1 if they differ."""
    return partial(_diff, a, b)


@app.command(epilog=EXIT_CODES)
def replay(record: Path, target: Target, arg: Args = []) -> Work:  # noqa: B006
    """Run a program again from its record: no model, the same values."""
    _split_program(target)
    return partial(_replay, record, target, arg)


@app.command(epilog=EXIT_CODES)
def trace2test(
    record: Path,
    node: Annotated[str, typer.Argument(help="Its id, or its name.")],
    target: Target,
    arg: Args = [],  # noqa: B006
) -> Work:
    """Turn a recorded node into a pytest."""
    _split_program(target)
    return partial(_trace2test, record, node, target, arg)


@models_app.command("list")
def models_list() -> Work:
    """What can be used, and what is here."""
    return _models_list


@models_app.command("pull")
def models_pull(name: str) -> Work:
    """Fetch a model into the cache folder."""
    return partial(_models_pull, name)


@app.command()
def doctor() -> Work:
    """What is installed, what is missing, which settings apply."""
    return _doctor


@app.command(epilog=EXIT_CODES)
def bench(
    target: Target,
    arg: Args = [],  # noqa: B006
    backend: BackendName = None,
    model: ModelName = None,
    seed: Seed = None,
    repeat: Annotated[int, typer.Option(min=1, help="How many runs.")] = 3,
) -> Work:
    """Run a program several times and print tokens and times."""
    _split_program(target)
    return partial(_bench, target, arg, _options(backend, model, seed), repeat)


# --- what they do ------------------------------------------------------------------------------------------------------


@contextmanager
def _given(options: Any) -> Iterator[None]:
    """The command line's options hold for what runs inside; its backend also in threads that the user's code starts."""
    from . import set_default_backend, use

    with use(options), set_default_backend(options.backend) if options.backend else nullcontext():
        yield


def _run_script(file: Path, rest: Sequence[str], options: Any) -> int:
    _prepare_process()
    sys.argv = [str(file), *rest]
    sys.path.insert(0, str(file.resolve().parent))  # where Python itself looks first for what a script imports
    with _given(options), _users_code():
        _hint_at_programs(file, runpy.run_path(str(file), run_name="__main__"))
    return DONE


def _hint_at_programs(file: Path, names: dict[str, Any]) -> None:
    """A file of programs without a main part does nothing when it is run: say how to run one of them."""
    from .frontend.program import Program

    programs = [name for name, value in names.items() if isinstance(value, Program)]
    if programs and "__main__" not in file.read_text(encoding="utf-8", errors="replace"):
        print(
            f"{file} has no main part; to run a program of it: sglang-dsl run {file}:PROGRAM ({', '.join(programs)})",
            file=sys.stderr,
        )


def _run_program(
    file: Path, name: str, arg: Sequence[str], options: Any, files: _Files, *, stream: bool, top: bool
) -> int:
    _prepare_process()
    _write_plainly()
    program = _load_program(file, name)
    arguments = _arguments(program, arg)
    with _given(options), _top() if top else nullcontext():
        result = _streamed(program, arguments) if stream else program.attempt(**arguments)
    try:
        if isinstance(result.error, KeyboardInterrupt):
            _print_finished(result)
        elif result.error is None:
            _print_result(result, text=not stream)
    except BrokenPipeError:
        files.write(result)
        raise
    files.write(result)
    return _end(result)


def _streamed(program: Program[..., Any], arguments: Mapping[str, Any]) -> Result[Any]:
    """The run's Result, its text printed while it was written. A reader that went away ends the printing, not the run."""
    running = program.start(**arguments)
    try:
        _print_while_written(running.stream())
        if sys.stdout is not None:
            sys.stdout.write("\n")
        return running.result(raising=False)
    except KeyboardInterrupt as interrupt:
        return running.session.interrupted(interrupt)


def _print_while_written(pieces: Iterable[str]) -> None:
    try:
        for piece in pieces:
            try:
                sys.stdout.write(piece)
                sys.stdout.flush()
            except BrokenPipeError:
                _output_lost()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  the run's own failure: its Result has it
        return


def _end(result: Result[Any]) -> int:
    """The exit code of a run that has ended, after saying why it failed."""
    error = result.error
    if error is None:
        return DONE
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    with _users_code():
        raise error


def _top() -> AbstractContextManager[None]:
    """The live table of the engine that runs will use."""
    from .frontend.session import settled
    from .ir.execution import resolve
    from .runtime.backends.interpreted import HasTarget
    from .runtime.engine.top import Observable, live

    executor = resolve(settled(None).backend)
    engine = getattr(executor, "engine", None) or (executor.target if isinstance(executor, HasTarget) else None)
    if not isinstance(engine, Observable):
        raise SpecError(f"backend {executor.name!r} has no engine to watch", hint="--top works with local and mock")
    return live(engine)


def _trace(target: str, arg: Sequence[str], symbolic: Sequence[str], form: str, out: Path | None) -> int:
    from .ir.explain import incomplete

    graph = _traced(_program(target), arg, symbolic)
    text = _written(graph, form)
    for line in incomplete(graph):
        print(line, file=sys.stderr)
    if out is None:
        _write_plainly()
        print(text)
    else:
        write_file(out, text)
    return DONE


def _written(graph: Graph, form: str) -> str:
    from .ir.draw import draw
    from .ir.json_format import dumps
    from .ir.text_format import print_graph

    if form == "text":
        return print_graph(graph)
    if form == "json":
        return dumps(graph)
    return draw(graph, cast("Format", form))  # it was checked when the command line was read


def _explain(target: str, arg: Sequence[str], symbolic: Sequence[str], options: Any) -> int:
    from . import use
    from .frontend.session import settled
    from .ir.execution import resolve
    from .ir.explain import explain as explained

    _prepare_process()
    graph = _traced(_program(target), arg, symbolic)
    with use(options):
        found = explained(graph, resolve(settled(None).backend).meter())
    _write_plainly()
    print(found)
    return DONE


def _traced(program: Program[..., Any], arg: Sequence[str], symbolic: Sequence[str]) -> Graph:
    arguments = _arguments(program, arg, symbolic=symbolic)
    with _users_code():
        return program.trace(symbolic=symbolic, **arguments)


def _diff(a: Path, b: Path) -> int:
    """Like `diff`: 0 if the runs are the same, 1 if they differ."""
    from .ir.record import difference

    found = difference(_record(a), _record(b))
    _write_plainly()
    print(found)
    return FAILED if found else DONE


def _replay(record: Path, target: str, arg: Sequence[str]) -> int:
    from .frontend.session import use
    from .runtime.backends.replay import RecordedExecutor

    recorded = _record(record)
    program = _program(target)
    arguments = _arguments(program, arg)
    with use(backend=RecordedExecutor(recorded)):
        result = program.attempt(**arguments)
    if result.error is None:
        _write_plainly()
        _print_result(result, usage=False)
    return _end(result)


def _trace2test(record: Path, node: str, target: str, arg: Sequence[str]) -> int:
    from .testing.from_record import test_source

    recorded = _record(record)
    program = _program(target)
    file, _ = _split_program(target)
    source = test_source(recorded, node, file=file, program=program.name, arguments=_arguments(program, arg))
    _write_plainly()
    print(source)
    return DONE


def _models_list() -> int:
    from .runtime.supply import list_models

    _write_plainly()
    for model in list_models():
        entry = model.entry
        where = str(model.path) if model.path else f"not here yet: sglang-dsl models pull {entry.name}"
        print(
            f"{entry.name:<12} {entry.size_bytes / 1e6:>5,.0f} MB  {entry.licence:<18}  {entry.about}\n{'':12} {where}"
        )
    return DONE


def _models_pull(name: str) -> int:
    from .runtime.supply import progress_bars, pull

    with progress_bars() as progress:
        path = pull(name, progress)
    print(path)
    return DONE


def _doctor() -> int:
    from .runtime.backends.local import report

    _prepare_process()
    _write_plainly()
    print(report())
    return DONE


def _bench(target: str, arg: Sequence[str], options: Any, repeat: int) -> int:
    from . import use

    _prepare_process()
    program = _program(target)
    arguments = _arguments(program, arg)
    print(f"{'run':>4}{'calls':>7}{'asked':>10}{'computed':>10}{'generated':>11}{'wall s':>9}{'tok/s':>8}", flush=True)
    with use(options):
        for number in range(repeat):
            began = time.perf_counter()
            result = program.attempt(**arguments)
            wall_s = time.perf_counter() - began
            if result.error is not None:
                return _end(result)
            usage = result.usage
            print(
                f"{number:>4}{usage.calls:>7}{usage.asked_tokens:>10,}{usage.computed_tokens:>10,}"
                f"{usage.generated_tokens:>11,}{wall_s:>9.2f}{usage.generated_tokens / wall_s:>8.0f}",
                flush=True,
            )
    return DONE


# --- the user's file ----------------------------------------------------------------------------------------------------


def _prepare_process() -> None:
    """Thread and allocator settings have to stand before torch is first imported."""
    from .runtime.model.options import prepare_process

    prepare_process()


def _split_target(target: str) -> tuple[Path, str | None]:
    path, colon, name = target.rpartition(":") if ":" in target and not Path(target).exists() else (target, "", "")
    file = Path(path)
    if not file.is_file():
        what = f"{str(file)!r} is a folder" if file.is_dir() else f"there is no file {str(file)!r}"
        raise SpecError(what, hint="give a Python file, optionally followed by :program")
    if colon and not name:
        raise SpecError(f"{target!r} names no program", hint=f"{file}:PROGRAM, or {file} to run it as a script")
    return file, name or None


def _split_program(target: str) -> tuple[Path, str]:
    file, name = _split_target(target)
    if name is None:
        raise SpecError(f"{target!r} names no program", hint=f"{file}:PROGRAM")
    return file, name


def _program(target: str) -> Program[..., Any]:
    return _load_program(*_split_program(target))


def _load_program(file: Path, name: str) -> Program[..., Any]:
    from .frontend.program import Program

    module_name, root = _module_name(file.resolve())
    sys.path[:0] = [str(root), str(Path.cwd())]
    sys.argv = [str(file)]  # what it reads of it is not said to us
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{str(file)!r} is not a Python file", hint="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    with _users_code():
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


class _UserExitError(Exception):
    """The user's code has ended the command, with this exit code; what there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def _users_code() -> Iterator[None]:
    """What the user's code raises is shown as Python would show it, without our own frames, and ends the command.

    Errors of ours, Ctrl-C and a closed output pass.
    """
    try:
        yield
    except (DslError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            raise _UserExitError(end.code or 0) from None
        raise _UserExitError(_complain(str(end.code), FAILED)) from None
    except BaseException as error:  # noqa: BLE001  whatever a user's code raises, shown as it is
        shown = traceback.TracebackException.from_exception(error)
        _without_our_frames(shown)
        raise _UserExitError(_complain("".join(shown.format()).rstrip("\n"), FAILED)) from None


def _without_our_frames(shown: traceback.TracebackException) -> None:
    ours = (str(Path(__file__).parent) + os.sep, "<frozen ")
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


# --- arguments ----------------------------------------------------------------------------------------------------------


def _arguments(
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


def _refuse_rest(rest: Sequence[str]) -> None:
    if not rest:
        return
    known = ["--arg", "--backend", "--model", "--seed", "--stream", "--top", "--save", "--picture"]
    near = get_close_matches(rest[0].partition("=")[0], known, n=1)
    raise SpecError(
        f"unknown argument: {' '.join(rest)}",
        hint=f"did you mean {near[0]}?" if near else "give a program's arguments as --arg name=value",
    )


def _options(backend: str | None, model: str | None, seed: int | None) -> Any:
    from . import RunOptions

    if backend and model:
        raise SpecError("--backend and --model exclude each other", hint="--model X is short for --backend local:X")
    return RunOptions(backend=f"local:{model}" if model else backend, seed=seed)


# --- files --------------------------------------------------------------------------------------------------------------


class _Files:
    """What a run leaves behind on disk: its record and its picture. Owner: one `run`."""

    def __init__(self, save: Path | None, picture: Path | None) -> None:
        self.save = save
        self.picture = picture
        self.form: Format = "html"
        if picture is not None:
            self.form = _by_suffix(picture, PICTURES, "--picture")
        if save is not None and save.suffix in PICTURES.keys() - {".json", ".txt"}:
            raise SpecError(f"--save {save}: a record is JSON lines", hint=f"--save run.jsonl, or --picture {save}")
        if save is not None and picture is not None and save.absolute() == picture.absolute():
            raise SpecError(f"--save and --picture name the same file {save}", hint="give them two")
        self.check()

    def check(self) -> None:
        """Refuse paths that cannot be written, before there is something to lose."""
        for option, path in (("--save", self.save), ("--picture", self.picture)):
            if path is not None:
                check_writable(path, option)

    def write(self, result: Result[Any]) -> None:
        """Write what was asked for, also of a run that failed. One file that cannot be written keeps no other from it."""
        from .ir.record import dump_record

        failed: list[DslError] = []
        for path in (self.save, self.picture):
            try:
                if path is not None:
                    write_file(path, dump_record(result.record) if path is self.save else result.draw(self.form))
            except DslError as error:
                failed.append(error)
        if failed:
            raise failed[0]


def _graph_format(form: str | None, out: Path | None) -> str:
    if form is not None and form not in GRAPH_FORMATS:
        raise SpecError(f"--format {form!r} is unknown", hint=f"one of {', '.join(GRAPH_FORMATS)}")
    if form is None:
        return "text" if out is None else _by_suffix(out, GRAPHS, "--out")
    named = GRAPHS.get(out.suffix) if out is not None else None
    if named not in (None, form) and (form, named) != ("terminal", "text"):
        raise SpecError(f"--format {form} and a file named {out} do not fit", hint=f"--out {out} alone writes {named}")
    return form


def _by_suffix(path: Path, known: Mapping[str, Any], option: str) -> Any:
    if path.suffix not in known:
        what = f"the suffix {path.suffix!r} is unknown" if path.suffix else "it has no suffix to say what to write"
        raise SpecError(f"{option} {path}: {what}", hint=f"one of {', '.join(known)}")
    return known[path.suffix]


def check_writable(path: Path, option: str) -> None:
    """Make the folder of a file that is to be written, and see that it can be.

    Raises:
        SpecError: it cannot.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("r+b" if path.is_file() else "wb"):
                pass
        if not path.exists() or path.is_file():
            probe = _aside(path)
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise SpecError(
            f"{option} {path} cannot be written: {error.strerror or error}", hint="give another path"
        ) from None


def write_file(path: Path, text: str) -> None:
    """Write a file and print its name. It appears whole or not at all; what is no regular file is written to as it is.

    Raises:
        FormatError: it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="surrogatepass")
        else:
            aside = _aside(target)
            try:
                aside.write_text(text, encoding="utf-8", errors="surrogatepass")
                aside.replace(target)
            finally:
                aside.unlink(missing_ok=True)
    except OSError as error:
        raise FormatError(f"{path} cannot be written: {error.strerror or error}", hint="give another path") from None
    print(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{os.getpid()}.part")


def _record(path: Path) -> RunRecord:
    from .ir.record import load_record

    try:
        return load_record(path)
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror or error}", hint="run ... --save FILE makes one"
        ) from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not the record of a run: it is not text") from None


# --- printing -----------------------------------------------------------------------------------------------------------


PLAIN = str.maketrans(
    {"├": "|", "└": "`", "│": "|", "─": "-", "“": '"', "”": '"', "’": "'", "…": "...", "→": "->", "⇠": "<-", "×": "x", "·": "-", "–": "-", "—": "-"}
)  # fmt: skip


def _write_plainly() -> None:
    """A terminal that knows no such characters gets ASCII for our own signs, and escapes for the rest: never an error."""

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        found = error.object[error.start : error.end].translate(PLAIN)
        return found.encode("ascii", "backslashreplace").decode("ascii"), error.end

    codecs.register_error("sglang_dsl.plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="sglang_dsl.plain")


def _shown(value: Any) -> str:
    from pydantic_core import to_json

    return value if isinstance(value, str) else to_json(value, indent=2, fallback=repr).decode()


def _print_result(result: Result[Any], *, text: bool = True, usage: bool = True) -> None:
    if text:
        print(result.text)
    if result.value is not None:
        print(f"\n=> {_shown(result.value)}")
    if usage:
        _print_usage(result)


def _print_usage(result: Result[Any]) -> None:
    u = result.usage
    print(
        f"{u.calls} calls: {u.asked_tokens:,} prompt tokens asked, {u.computed_tokens:,} computed, "
        f"{u.generated_tokens:,} generated in {u.wall_s:.1f} s",
        file=sys.stderr,
    )


def _print_finished(result: Result[Any]) -> None:
    print(f"interrupted; {len(result.finished)} values had finished", file=sys.stderr)
    for name, value in result.finished.items():
        print(f"  {name} = {_shown(value)}")
    _print_usage(result)


if __name__ == "__main__":
    sys.exit(main())
