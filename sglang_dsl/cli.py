"""The `sglang-dsl` command: wiring only. Every subcommand is one function that calls the room that does the work.

Exit codes: 0 done, 1 the program or a check failed, 2 wrong use or a clear error, 130 interrupted (what finished is shown).
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import DslError, ProgramError, SpecError

if TYPE_CHECKING:
    from .frontend.program import Program
    from .frontend.result import Result
    from .ir.graph import Graph

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    parser = _parser()
    chosen, rest = parser.parse_known_args(arguments)
    if rest and not getattr(chosen, "takes_rest", False):
        parser.error(f"unknown argument: {' '.join(rest)}")
    chosen.rest = rest
    command: Command = chosen.command
    try:
        return command(chosen)
    except DslError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang-dsl", description="Write, look at and run prompt programs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a script, or one program of it, on the embedded engine")
    run.add_argument("target", metavar="FILE[:PROGRAM]")
    _add_program_options(run)
    run.add_argument("--stream", action="store_true", help="print the text while it is written")
    run.add_argument("--top", action="store_true", help="show a live table of the engine while it runs")
    run.add_argument("--save", type=Path, metavar="FILE.jsonl", help="store the run's record")
    run.add_argument("--picture", type=Path, metavar="FILE.html", help="draw what happened")
    run.set_defaults(command=_run, takes_rest=True)

    trace = commands.add_parser("trace", help="print or draw a program's graph; no model is run")
    trace.add_argument("target", metavar="FILE:PROGRAM")
    trace.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; JSON or text")
    trace.add_argument("--symbolic", action="append", default=[], metavar="NAME", help="leave this argument unknown")
    trace.add_argument(
        "--format", default="text", choices=["text", "mermaid", "html", "terminal", "dot", "svg", "json"]
    )
    trace.add_argument("--out", type=Path, help="write here instead of printing")
    trace.set_defaults(command=_trace)

    explain = commands.add_parser("explain", help="what a run would compute, share and hold, before it runs")
    explain.add_argument("target", metavar="FILE:PROGRAM")
    _add_program_options(explain)
    explain.add_argument("--symbolic", action="append", default=[], metavar="NAME", help="leave this argument unknown")
    explain.set_defaults(command=_explain)

    diff = commands.add_parser("diff", help="two recorded runs: where they part, and what it cost")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)
    diff.set_defaults(command=_diff)

    replay = commands.add_parser("replay", help="run a program again from its record: no model, the same values")
    replay.add_argument("record", type=Path)
    replay.add_argument("target", metavar="FILE:PROGRAM")
    replay.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; JSON or text")
    replay.set_defaults(command=_replay)

    trace2test = commands.add_parser("trace2test", help="turn a recorded node into a pytest")
    trace2test.add_argument("record", type=Path)
    trace2test.add_argument("node", help="its id, or its name")
    trace2test.add_argument("target", metavar="FILE:PROGRAM")
    trace2test.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; JSON or text"
    )
    trace2test.set_defaults(command=_trace2test)

    models = commands.add_parser("models", help="list or fetch models")
    of_models = models.add_subparsers(required=True, metavar="ACTION")
    of_models.add_parser("list", help="what can be used, and what is here").set_defaults(command=_models_list)
    pull = of_models.add_parser("pull", help="fetch a model into the cache folder")
    pull.add_argument("name")
    pull.set_defaults(command=_models_pull)

    commands.add_parser("doctor", help="what is installed, what is missing, which settings apply").set_defaults(
        command=_doctor
    )

    bench = commands.add_parser("bench", help="run a program several times and print tokens and times")
    bench.add_argument("target", metavar="FILE:PROGRAM")
    _add_program_options(bench)
    bench.add_argument("--repeat", type=int, default=3)
    bench.set_defaults(command=_bench)
    return parser


def _add_program_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; JSON or text")
    parser.add_argument("--backend", help="for example local, local:smollm2, local:/path/to/model, mock")
    parser.add_argument("--model", help="short for --backend local:MODEL")
    parser.add_argument("--seed", type=int)


# --- commands ----------------------------------------------------------------------------------------------------------


def _run(chosen: argparse.Namespace) -> int:
    file, name = _split_target(chosen.target)
    _prepare_process()
    if name is None:
        if chosen.arg:
            raise SpecError(
                "--arg needs a program to give it to", hint=f"sglang-dsl run {chosen.target}:PROGRAM --arg ..."
            )
        return _run_script(file, chosen)
    if chosen.rest:
        raise SpecError(
            f"unknown argument: {' '.join(chosen.rest)}", hint="give a program's arguments as --arg name=value"
        )
    program = _load_program(file, name)
    arguments = _arguments(program, chosen.arg)
    with _options(chosen):
        if chosen.stream:
            for piece in program.stream(**arguments):
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
            return 0
        return _run_program(program, arguments, chosen)


def _run_script(file: Path, chosen: argparse.Namespace) -> int:
    sys.argv = [str(file), *chosen.rest]
    with _options(chosen):
        try:
            _hint_at_programs(file, runpy.run_path(str(file), run_name="__main__"))
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            print(end.code, file=sys.stderr)
            return 1
    return 0


def _hint_at_programs(file: Path, names: dict[str, Any]) -> None:
    """A file of programs without a main part does nothing when it is run: say how to run one of them."""
    from .frontend.program import Program

    programs = [name for name, value in names.items() if isinstance(value, Program)]
    if programs and "__main__" not in file.read_text(encoding="utf-8"):
        print(
            f"{file} has no main part; to run a program of it: sglang-dsl run {file}:PROGRAM ({', '.join(programs)})",
            file=sys.stderr,
        )


def _run_program(program: Program[..., Any], arguments: dict[str, Any], chosen: argparse.Namespace) -> int:
    from .frontend.result import Interrupted

    try:
        with _top() if chosen.top else nullcontext():
            result = program.run(**arguments)
    except Interrupted as stop:
        for partial in filter(None, stop.results):
            _print_finished(partial)
        return 130
    print(result.text)
    if result.value is not None:
        print(f"\n=> {_shown(result.value)}")
    _print_usage(result)
    if chosen.save is not None:
        _save_record(result, chosen.save)
    if chosen.picture is not None:
        _write(chosen.picture, result.draw("html"))
    return 0


def _top() -> AbstractContextManager[None]:
    """The live table of the engine that runs will use."""
    from .frontend.settings import settled
    from .ir.execution import resolve
    from .runtime.backends.interpreted import HasTarget
    from .runtime.engine.top import Watched, live

    executor = resolve(settled(None).backend)
    engine = getattr(executor, "engine", None) or (executor.target if isinstance(executor, HasTarget) else None)
    if not isinstance(engine, Watched):
        raise SpecError(f"backend {executor.name!r} has no engine to watch", hint="--top works with local and mock")
    return live(engine)


def _save_record(result: Result[Any], path: Path) -> None:
    from .ir.record import save_record

    path.parent.mkdir(parents=True, exist_ok=True)
    save_record(result.record, path)
    print(path)


def _explain(chosen: argparse.Namespace) -> int:
    from .frontend.settings import settled
    from .ir.execution import resolve
    from .ir.explain import explain

    program = _program(chosen.target)
    _prepare_process()
    graph = program.trace(symbolic=chosen.symbolic, **_arguments(program, chosen.arg, given_elsewhere=chosen.symbolic))
    with _options(chosen):
        print(explain(graph, resolve(settled(None).backend).meter()))
    return 0


def _diff(chosen: argparse.Namespace) -> int:
    """Like `diff`: 0 if the runs are the same, 1 if they differ."""
    from .ir.difference import difference
    from .ir.record import load_record

    found = difference(load_record(chosen.a), load_record(chosen.b))
    print(found)
    return 1 if found else 0


def _replay(chosen: argparse.Namespace) -> int:
    from .frontend.settings import use
    from .ir.record import load_record
    from .runtime.backends.replay.recorded import RecordedExecutor

    program = _program(chosen.target)
    with use(backend=RecordedExecutor(load_record(chosen.record))):
        result = program.run(**_arguments(program, chosen.arg))
    print(result.text)
    if result.value is not None:
        print(f"\n=> {_shown(result.value)}")
    return 0


def _trace2test(chosen: argparse.Namespace) -> int:
    from .ir.record import load_record
    from .testing.from_record import test_source

    program = _program(chosen.target)
    file, _ = _split_target(chosen.target)
    arguments = _arguments(program, chosen.arg)
    print(test_source(load_record(chosen.record), chosen.node, file=file, program=program.name, arguments=arguments))
    return 0


def _trace(chosen: argparse.Namespace) -> int:
    program = _program(chosen.target)
    graph = program.trace(symbolic=chosen.symbolic, **_arguments(program, chosen.arg, given_elsewhere=chosen.symbolic))
    text = _written(graph, chosen.format)
    if chosen.out is None:
        print(text)
    else:
        _write(chosen.out, text)
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)


def _written(graph: Graph, format_: Any) -> str:
    from .ir.draw import draw
    from .ir.json_format import dumps
    from .ir.text_format import print_graph

    if format_ == "text":
        return print_graph(graph)
    if format_ == "json":
        return dumps(graph)
    return draw(graph, format_)


def _models_list(chosen: argparse.Namespace) -> int:
    from .runtime.supply import list_models

    for model in list_models():
        entry = model.entry
        where = str(model.path) if model.path else f"not here yet: sglang-dsl models pull {entry.name}"
        print(
            f"{entry.name:<12} {entry.size_bytes / 1e6:>5,.0f} MB  {entry.licence:<18}  {entry.about}\n{'':12} {where}"
        )
    return 0


def _models_pull(chosen: argparse.Namespace) -> int:
    from .runtime.supply import progress_bars, pull

    with progress_bars() as progress:
        path = pull(chosen.name, progress)
    print(path)
    return 0


def _doctor(chosen: argparse.Namespace) -> int:
    from .runtime.backends.local.doctor import report

    _prepare_process()
    print(report())
    return 0


def _bench(chosen: argparse.Namespace) -> int:
    if chosen.repeat < 1:
        raise SpecError(f"--repeat {chosen.repeat} is below 1")
    program = _program(chosen.target)
    _prepare_process()
    arguments = _arguments(program, chosen.arg)
    print(f"{'run':>4}{'calls':>7}{'asked':>10}{'computed':>10}{'generated':>11}{'wall s':>9}{'tok/s':>8}")
    with _options(chosen):
        for run in range(chosen.repeat):
            began = time.perf_counter()
            usage = program.run(**arguments).usage
            wall_s = time.perf_counter() - began
            print(
                f"{run:>4}{usage.calls:>7}{usage.asked_tokens:>10,}{usage.computed_tokens:>10,}"
                f"{usage.generated_tokens:>11,}{wall_s:>9.2f}{usage.generated_tokens / wall_s:>8.0f}",
                flush=True,
            )
    return 0


# --- wiring ------------------------------------------------------------------------------------------------------------


def _prepare_process() -> None:
    """Thread and allocator settings have to stand before torch is first imported."""
    from .runtime.model.settings import apply

    apply()


def _split_target(target: str) -> tuple[Path, str | None]:
    path, _, name = target.rpartition(":") if ":" in target and not Path(target).exists() else (target, "", "")
    file = Path(path)
    if not file.is_file():
        raise SpecError(f"there is no file {str(file)!r}", hint="give a Python file, optionally followed by :program")
    return file, name or None


def _program(target: str) -> Program[..., Any]:
    file, name = _split_target(target)
    if name is None:
        raise SpecError(f"{target!r} names no program", hint=f"{file}:PROGRAM")
    return _load_program(file, name)


def _load_program(file: Path, name: str) -> Program[..., Any]:
    from .frontend.program import Program

    sys.path[:0] = [str(file.resolve().parent), str(Path.cwd())]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{str(file)!r} is not a Python file", hint="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not isinstance(found, Program):
        programs = [key for key, value in vars(module).items() if isinstance(value, Program)]
        raise ProgramError(f"{file} has no program {name!r}; it has: {', '.join(programs) or 'none'}")
    return found


def _arguments(
    program: Program[..., Any], given: Sequence[str], *, given_elsewhere: Sequence[str] | None = None
) -> dict[str, Any]:
    """`name=value` pairs, each read as the type the program's signature names."""
    from pydantic import TypeAdapter, ValidationError

    parameters = dict(list(inspect.signature(program.function, eval_str=True).parameters.items())[1:])
    values: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or name not in parameters:
            raise SpecError(
                f"--arg {pair!r} does not fit; the program takes: {', '.join(parameters) or 'nothing'}",
                hint="--arg name=value",
            )
        annotation = parameters[name].annotation
        adapter = TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation)
        try:
            values[name] = adapter.validate_python(text if annotation is str else _json_or_text(text))
        except ValidationError as error:
            raise SpecError(
                f"--arg {name}={text!r}: {error.errors()[0]['msg']}", hint="give the value as JSON"
            ) from error
    missing = [
        key
        for key, parameter in parameters.items()
        if key not in values and key not in (given_elsewhere or ()) and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        options = "--arg {0}=..." if given_elsewhere is None else "--arg {0}=... or --symbolic {0}"
        raise SpecError(f"the program needs {', '.join(missing)}", hint=", ".join(map(options.format, missing)))
    return values


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _options(chosen: argparse.Namespace) -> Any:
    from . import RunOptions, use

    if chosen.backend and chosen.model:
        raise SpecError("--backend and --model exclude each other", hint="--model X is short for --backend local:X")
    return use(RunOptions(backend=f"local:{chosen.model}" if chosen.model else chosen.backend, seed=chosen.seed))


def _shown(value: Any) -> str:
    from pydantic_core import to_json

    return value if isinstance(value, str) else to_json(value, indent=2, fallback=repr).decode()


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
