"""What the commands do: each calls the room that does the work, prints what came of it and returns the exit code."""

from __future__ import annotations

import difflib
import re
import runpy
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import FormatError, SpecError, UnknownNameError
from ..ir.nodes import Gen, ModelCall, Node, Plain, Raw, Select, Text
from .output import (
    DONE,
    FAILED,
    INTERRUPTED,
    Files,
    Observable,
    live,
    output_lost,
    print_finished,
    print_result,
    write_file,
    write_plainly,
)
from .program_file import load_program, program_arguments, program_at, split_program, users_code

if TYPE_CHECKING:
    from ..frontend.program import Program
    from ..frontend.session import Result
    from ..ir.draw import Format
    from ..ir.graph import Graph
    from ..ir.record import RunRecord


@contextmanager
def _given(options: Any) -> Iterator[None]:
    """The command line's options hold for what runs inside; its backend also in threads that the user's code starts."""
    from .. import set_default_backend, use

    with use(options), set_default_backend(options.backend) if options.backend else nullcontext():
        yield


def run_script(file: Path, rest: Sequence[str], options: Any) -> int:
    """Run a file as Python would, with the options of the command line over every run in it."""
    _prepare_process()
    sys.argv = [str(file), *rest]
    sys.path.insert(0, str(file.resolve().parent))  # where Python itself looks first for what a script imports
    with _given(options), users_code():
        _hint_at_programs(file, runpy.run_path(str(file), run_name="__main__"))
    return DONE


def _hint_at_programs(file: Path, names: dict[str, Any]) -> None:
    """A file of programs without a main part does nothing when it is run: say how to run one of them."""
    from ..frontend.program import Program

    programs = [name for name, value in names.items() if isinstance(value, Program)]
    if programs and "__main__" not in file.read_text(encoding="utf-8", errors="replace"):
        print(
            f"{file} has no main part; to run a program of it: sglang-dsl run {file}:PROGRAM ({', '.join(programs)})",
            file=sys.stderr,
        )


def run_program(
    file: Path, name: str, arg: Sequence[str], options: Any, files: Files, *, stream: bool, top: bool
) -> int:
    """Run one program of a file, print what it says and returns, and write the files that were asked for."""
    _prepare_process()
    write_plainly()
    program = load_program(file, name)
    arguments = program_arguments(program, arg)
    with _given(options), _top() if top else nullcontext():
        result = _streamed(program, arguments) if stream else program.attempt(**arguments)
    try:
        if isinstance(result.error, KeyboardInterrupt):
            print_finished(result)
        elif result.error is None:
            print_result(result, text=not stream)
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
                output_lost()
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
    with users_code():
        raise error


def _top() -> AbstractContextManager[None]:
    """The live table of the engine that runs will use."""
    from ..frontend.session import settled
    from ..ir.execution import resolve
    from ..runtime.backends.interpreted import HasTarget

    executor = resolve(settled(None).backend)
    engine = getattr(executor, "engine", None) or (executor.target if isinstance(executor, HasTarget) else None)
    if not isinstance(engine, Observable):
        raise SpecError(f"backend {executor.name!r} has no engine to watch", hint="--top works with local and mock")
    return live(engine)


def trace(target: str, arg: Sequence[str], symbolic: Sequence[str], form: str, out: Path | None) -> int:
    """Print a program's graph, or write it to a file."""
    from ..ir.explain import incomplete

    graph = _traced(program_at(target), arg, symbolic)
    text = _written(graph, form)
    for line in incomplete(graph):
        print(line, file=sys.stderr)
    if out is None:
        write_plainly()
        print(text)
    else:
        write_file(out, text)
    return DONE


def _written(graph: Graph, form: str) -> str:
    from ..ir.draw import draw
    from ..ir.json_format import dumps
    from ..ir.text_format import print_graph

    if form == "text":
        return print_graph(graph)
    if form == "json":
        return dumps(graph)
    return draw(graph, cast("Format", form))  # it was checked when the command line was read


def explain(target: str, arg: Sequence[str], symbolic: Sequence[str], options: Any) -> int:
    """Print what a run would compute, share and hold."""
    from .. import use
    from ..frontend.session import settled
    from ..ir.execution import resolve
    from ..ir.explain import explain as explained

    _prepare_process()
    graph = _traced(program_at(target), arg, symbolic)
    with use(options):
        found = explained(graph, resolve(settled(None).backend).meter())
    write_plainly()
    print(found)
    return DONE


def _traced(program: Program[..., Any], arg: Sequence[str], symbolic: Sequence[str]) -> Graph:
    arguments = program_arguments(program, arg, symbolic=symbolic)
    with users_code():
        return program.trace(symbolic=symbolic, **arguments)


def diff(a: Path, b: Path) -> int:
    """Like `diff`: 0 if the runs are the same, 1 if they differ."""
    from ..ir.record import difference

    found = difference(_record(a), _record(b))
    write_plainly()
    print(found)
    return FAILED if found else DONE


def replay(record: Path, target: str, arg: Sequence[str]) -> int:
    """Run a program against a record: every node gives what it gave then."""
    from ..frontend.session import use
    from ..runtime.backends.replay import RecordedExecutor

    recorded = _record(record)
    program = program_at(target)
    arguments = program_arguments(program, arg)
    with use(backend=RecordedExecutor(recorded)):
        result = program.attempt(**arguments)
    if result.error is None:
        write_plainly()
        print_result(result, usage=False)
    return _end(result)


def trace2test(record: Path, node: str, target: str, arg: Sequence[str]) -> int:
    """Print a pytest for one model call of a record."""

    recorded = _record(record)
    program = program_at(target)
    file, _ = split_program(target)
    source = test_source(recorded, node, file=file, program=program.name, arguments=program_arguments(program, arg))
    write_plainly()
    print(source)
    return DONE


def list_models() -> int:
    """Print the models that can be used, and where they are."""
    from ..runtime.supply import list_models

    write_plainly()
    for model in list_models():
        entry = model.entry
        where = str(model.path) if model.path else f"not here yet: sglang-dsl models pull {entry.name}"
        print(
            f"{entry.name:<12} {entry.size_bytes / 1e6:>5,.0f} MB  {entry.licence:<18}  {entry.about}\n{'':12} {where}"
        )
    return DONE


def pull_model(name: str) -> int:
    """Fetch a model, with a progress bar, and print where it is."""
    from ..runtime.supply import progress_bars, pull

    with progress_bars() as progress:
        path = pull(name, progress)
    print(path)
    return DONE


def doctor() -> int:
    """Print what is installed, what is missing, and which settings apply."""
    from ..runtime.backends.local import report

    _prepare_process()
    write_plainly()
    print(report())
    return DONE


def bench(target: str, arg: Sequence[str], options: Any, repeat: int) -> int:
    """Run a program `repeat` times and print tokens and times."""
    from .. import use

    _prepare_process()
    program = program_at(target)
    arguments = program_arguments(program, arg)
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


def _prepare_process() -> None:
    """Thread and allocator settings have to stand before torch is first imported."""
    from ..runtime.model.options import prepare_process

    prepare_process()


def _record(path: Path) -> RunRecord:
    from ..ir.record import load_record

    try:
        return load_record(path)
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror or error}", hint="run ... --save FILE makes one"
        ) from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not the record of a run: it is not text") from None


# --- a test from a record --------------------------------------------------------------------------------------------


_TEST = '''\
"""From a record of {program} (seed {seed}): what {title} was asked and what it answered."""

from sglang_dsl import RunOptions
from sglang_dsl.testing import mock

from {module} import {program}

ANSWERS = {answers}
ASKED = {asked}


def test_{function}_as_recorded():
    backend = mock(ANSWERS)
    {program}.run({arguments}options=RunOptions(backend=backend, seed={seed}))
    (call,) = backend.calls({node!r})
    for text in ASKED:
        assert text in call.prompt
    assert call.text == ANSWERS[{node!r}]
'''


def test_source(record: RunRecord, node: str, *, file: Path, program: str, arguments: Mapping[str, Any]) -> str:
    """The source of a pytest for one model call of a record.

    Args:
        node: its id, or the name of a call (the first of that name).
        file, program: where the program stands, for the import.
        arguments: what the program is run with (a record holds what was asked, not the arguments).

    Raises:
        UnknownNameError: the record has no finished model call of this id or name.
    """
    chosen = _call(record, node)
    title = f"gen {chosen.name!r}" if isinstance(chosen, Gen) else f"select {chosen.name!r}"
    return _TEST.format(
        program=program,
        seed=record.seed,
        title=title if chosen.name else f"node {chosen.id}",
        module=file.stem,
        answers=_lines({n.id: record.outcomes[n.id].text for n in _calls(record).values()}),
        asked=_lines([text for n in record.graph.path(chosen.id) for text in _plain_texts(n)]),
        function=re.sub(r"\W+", "_", f"{program}_{chosen.name or chosen.id}").strip("_").lower(),
        arguments="".join(f"{name}={value!r}, " for name, value in arguments.items()),
        node=chosen.id,
    )


def _calls(record: RunRecord) -> dict[str, ModelCall]:
    return {n.id: n for n in record.graph if isinstance(n, (Gen, Select)) and n.id in record.outcomes}


def _call(record: RunRecord, node: str) -> ModelCall:
    calls = _calls(record)
    found = calls.get(node) or next((n for n in calls.values() if n.name == node), None)
    if found is None:
        known = [*calls, *dict.fromkeys(n.name for n in calls.values() if n.name)]
        near = difflib.get_close_matches(node, known, 3) or known[:8]
        raise UnknownNameError(
            f"the record of {record.program} has no finished call {node!r}", hint=f"one of: {', '.join(near)}"
        )
    return found


def _plain_texts(node: Node) -> list[str]:
    return (
        [p.text for p in node.pieces if isinstance(p, (Plain, Raw)) and p.text.strip()]
        if isinstance(node, Text)
        else []
    )


def _lines(values: dict[str, str] | list[str]) -> str:
    """A literal with an entry per line."""
    if isinstance(values, dict):
        return "{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in values.items()) + "}"
    return "[\n" + "".join(f"    {value!r},\n" for value in values) + "]"
