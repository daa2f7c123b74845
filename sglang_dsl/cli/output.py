"""What the command writes: messages, values, the files that were asked for, and the live table of an engine."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..errors import DslError, FormatError, SpecError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..frontend.session import Result
    from ..ir.draw import Format
    from ..runtime.engine.metrics import EngineSnapshot, Health, HistogramName

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


def complain(what: str, code: int = REFUSED) -> int:
    """Say on stderr what is wrong. Returns the exit code."""
    with suppress(BrokenPipeError):
        print(what, file=sys.stderr)
    return code


def output_lost() -> int:
    """Whoever read the output has gone: nothing more is written to it, also not when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


# --- files -----------------------------------------------------------------------------------------------------------


class Files:
    """What a run leaves behind on disk: its record and its picture. Owner: one `run`."""

    def __init__(self, save: Path | None, picture: Path | None) -> None:
        self.save = save
        self.picture = picture
        self.form: Format = "html"
        if picture is not None:
            self.form = by_suffix(picture, PICTURES, "--picture")
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
        from ..ir.record import dump_record

        failed: list[DslError] = []
        for path in (self.save, self.picture):
            try:
                if path is not None:
                    write_file(path, dump_record(result.record) if path is self.save else result.draw(self.form))
            except DslError as error:
                failed.append(error)
        if failed:
            raise failed[0]


def by_suffix(path: Path, known: Mapping[str, Any], option: str) -> Any:
    """What the suffix of a file stands for. Raises SpecError, which names `option`, for one that is not known."""
    if path.suffix not in known:
        what = f"the suffix {path.suffix!r} is unknown" if path.suffix else "it has no suffix to say what to write"
        raise SpecError(f"{option} {path}: {what}", hint=f"one of {', '.join(known)}")
    return known[path.suffix]


def check_writable(path: Path, option: str) -> None:
    """Make the folder of a file that is to be written, and see that it can be.

    Raises:
        SpecError: it cannot.
    """
    from ..ir.record import aside_of

    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("r+b" if path.is_file() else "wb"):
                pass
        if not path.exists() or path.is_file():
            probe = aside_of(path)
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
    from ..ir.record import save_text

    try:
        save_text(path, text)
    except OSError as error:
        raise FormatError(f"{path} cannot be written: {error.strerror or error}", hint="give another path") from None
    print(path)


# --- printing --------------------------------------------------------------------------------------------------------


PLAIN = str.maketrans(
    {"├": "|", "└": "`", "│": "|", "─": "-", "“": '"', "”": '"', "’": "'", "…": "...", "→": "->", "⇠": "<-", "×": "x", "·": "-", "–": "-", "—": "-"}
)  # fmt: skip


def write_plainly() -> None:
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


def print_result(result: Result[Any], *, text: bool = True, usage: bool = True) -> None:
    """Print a run's text, its value and, on stderr, its usage."""
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


def print_finished(result: Result[Any]) -> None:
    """Print what had finished of a run that was interrupted."""
    print(f"interrupted; {len(result.finished)} values had finished", file=sys.stderr)
    for name, value in result.finished.items():
        print(f"  {name} = {_shown(value)}")
    _print_usage(result)


# --- a live table ----------------------------------------------------------------------------------------------------


_STYLES = {"ok": "green", "degraded": "yellow", "closed": "red"}

_LATENCIES: dict[HistogramName, str] = {
    "first_token_s": "first token",
    "inter_token_s": "next token",
    "request_s": "request",
}
_STEP_PARTS: dict[HistogramName, str] = {"schedule_s": "schedule", "worker_s": "model", "output_s": "output"}


@runtime_checkable
class Observable(Protocol):
    """What can be shown: an Engine."""

    def snapshot(self) -> EngineSnapshot:
        """All counters."""

    def health(self) -> Health:
        """Its state."""


@contextmanager
def live(engine: Observable, console: Console | None = None, *, per_second: float = 2.0) -> Iterator[None]:
    """Show the table while the block runs, and leave its last state on the screen.

    Args:
        console: stderr by default, so that what a program prints stays apart.
    """
    shown = [engine.snapshot()]

    def render() -> Table:
        shown.append(engine.snapshot())
        return table(shown[-1], engine.health(), before=shown.pop(0))

    from rich.console import Console
    from rich.live import Live

    with Live(console=console or Console(stderr=True), get_renderable=render, refresh_per_second=per_second):
        yield


def table(snapshot: EngineSnapshot, health: Health, *, before: EngineSnapshot | None = None) -> Table:
    """One row per group of numbers. With `before`, an earlier snapshot, also the rates since then."""
    from rich.table import Table

    shown = Table(title=f"engine {snapshot.model}", title_justify="left", show_header=False, expand=False)
    shown.add_column(style="bold")
    shown.add_column()
    shown.add_row("health", f"[{_STYLES[health.status]}]{health.status}[/] {'; '.join(health.reasons)}".strip())
    for name, text in _rows(snapshot, before):
        shown.add_row(name, text)
    return shown


def _rows(now: EngineSnapshot, before: EngineSnapshot | None) -> Iterator[tuple[str, str]]:
    pages = now.scheduler
    yield (
        "requests",
        f"{pages.running} running, {pages.waiting} waiting, {pages.compiling} compiling, {now.ended} ended",
    )
    yield "failed", f"{sum(now.failed.values())} failed, {now.cancelled} cancelled, {now.step_faults} step faults"
    yield (
        "prompt tokens",
        f"{now.prompt_tokens:,} asked, {now.computed_tokens:,} computed, {now.cache_hit_rate:.1%} from the cache",
    )
    yield "generated", f"{now.generated_tokens:,} tokens{_rate(now, before)}"
    yield (
        "pages",
        f"{pages.free_pages:,} free, {pages.evictable_pages:,} cached, of {pages.total_pages:,}; peak {pages.peak_used_pages:,}",
    )
    yield "latency", ", ".join(_latencies(now))
    yield "step", ", ".join(_step_split(now))


def _rate(now: EngineSnapshot, before: EngineSnapshot | None) -> str:
    if before is None or now.at_s <= before.at_s:
        return ""
    return f", {(now.generated_tokens - before.generated_tokens) / (now.at_s - before.at_s):,.0f} per second"


def _latencies(now: EngineSnapshot) -> Iterator[str]:
    for name, label in _LATENCIES.items():
        histogram = now.histograms[name]
        yield f"{label} p50 ≤ {histogram.quantile(0.5):g} s, p95 ≤ {histogram.quantile(0.95):g} s"


def _step_split(now: EngineSnapshot) -> Iterator[str]:
    yield f"{now.steps:,} steps"
    for name, label in _STEP_PARTS.items():
        yield f"{label} {now.histograms[name].mean * 1000:.2f} ms"
    yield f"{now.histograms['step_rows'].mean:.1f} rows"
