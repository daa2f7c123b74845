"""The `sglang-dsl` command: wiring only. The command line is read here first, and refused where it is wrong; then one
function of `commands.py` calls the room that does the work.

Exit codes: 0 done; 1 the user's program raised, two runs differ, or nobody reads the output any more; 2 wrong use, or an error
of ours that says what to do (also: a file that cannot be read or written); 130 interrupted. What was asked for with `--save`
and `--picture` is written in every case. A script's own exit code is passed on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer
from typer.exceptions import TyperException

from ..errors import DslError, SpecError
from . import commands
from .output import DONE, GRAPHS, INTERRUPTED, Files, by_suffix, check_writable, complain, output_lost
from .program_file import UserExitError, split_program, split_target

Work: TypeAlias = Callable[[], int]
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
    except UserExitError as end:
        code = end.code
    except DslError as error:
        code = complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        code = output_lost()
    except OSError as error:  # of our own reading and writing: what the user's code raises has been shown
        output_lost()
        code = complain(f"a file or the output cannot be read or written: {error.strerror or error}")
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BrokenPipeError:
        code = code or output_lost()
    except OSError as error:
        output_lost()
        code = code or complain(f"the output cannot be written: {error.strerror}")
    return code


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
    file, name = split_target(target)
    options = _options(backend, model, seed)
    if name is None:
        of_a_program = {"--arg": arg, "--stream": stream, "--top": top, "--save": save, "--picture": picture}
        for option, given in of_a_program.items():
            if given:
                raise SpecError(
                    f"{option} needs a program: a script makes its own runs",
                    hint=f"sglang-dsl run {target}:PROGRAM {option} ..., or after -- to give it to the script",
                )
        return partial(commands.run_script, file, context.args, options)
    _refuse_rest(context.args)
    if stream and top:
        raise SpecError("--stream and --top both write to the terminal", hint="choose one of them")
    files = Files(save, picture)
    return partial(commands.run_program, file, name, arg, options, files, stream=stream, top=top)


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
    split_program(target)
    if out is not None:
        check_writable(out, "--out")
    return partial(commands.trace, target, arg, symbolic, form, out)


@app.command(epilog=EXIT_CODES)
def explain(
    target: Target,
    arg: Args = [],  # noqa: B006
    symbolic: Symbolic = [],  # noqa: B006
    backend: BackendName = None,
    model: ModelName = None,
) -> Work:
    """What a run would compute, share and hold, before it runs."""
    split_program(target)
    return partial(commands.explain, target, arg, symbolic, _options(backend, model, None))


@app.command(epilog=EXIT_CODES)
def diff(a: Path, b: Path) -> Work:
    """Two recorded runs: where they part, and what it cost. Exit code 1 if they differ."""
    return partial(commands.diff, a, b)


@app.command(epilog=EXIT_CODES)
def replay(record: Path, target: Target, arg: Args = []) -> Work:  # noqa: B006
    """Run a program again from its record: no model, the same values."""
    split_program(target)
    return partial(commands.replay, record, target, arg)


@app.command(epilog=EXIT_CODES)
def trace2test(
    record: Path,
    node: Annotated[str, typer.Argument(help="Its id, or its name.")],
    target: Target,
    arg: Args = [],  # noqa: B006
) -> Work:
    """Turn a recorded node into a pytest."""
    split_program(target)
    return partial(commands.trace2test, record, node, target, arg)


@models_app.command("list")
def models_list() -> Work:
    """What can be used, and what is here."""
    return commands.list_models


@models_app.command("pull")
def models_pull(name: str) -> Work:
    """Fetch a model into the cache folder."""
    return partial(commands.pull_model, name)


@app.command()
def doctor() -> Work:
    """What is installed, what is missing, which settings apply."""
    return commands.doctor


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
    split_program(target)
    return partial(commands.bench, target, arg, _options(backend, model, seed), repeat)


# --- options ---------------------------------------------------------------------------------------------------------


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
    from .. import RunOptions

    if backend and model:
        raise SpecError("--backend and --model exclude each other", hint="--model X is short for --backend local:X")
    return RunOptions(backend=f"local:{model}" if model else backend, seed=seed)


def _graph_format(form: str | None, out: Path | None) -> str:
    if form is not None and form not in GRAPH_FORMATS:
        raise SpecError(f"--format {form!r} is unknown", hint=f"one of {', '.join(GRAPH_FORMATS)}")
    if form is None:
        return "text" if out is None else by_suffix(out, GRAPHS, "--out")
    named = GRAPHS.get(out.suffix) if out is not None else None
    if named not in (None, form) and (form, named) != ("terminal", "text"):
        raise SpecError(f"--format {form} and a file named {out} do not fit", hint=f"--out {out} alone writes {named}")
    return form
