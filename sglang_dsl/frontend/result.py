"""What a run gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..ir.execution import Meter, Outcome, Run, RunSpec, RunSummary, Usage
from ..ir.graph import Graph
from ..ir.specs import spelled

if TYPE_CHECKING:
    from ..ir.draw import Drawing, Format
    from ..ir.record import RunRecord
    from .cursor import Cursor
    from .state import State

R = TypeVar("R")


class Result(Generic[R]):
    """The end of one run.

    state: the final state, for reading. graph: everything that was appended. error: why the run failed, or None; then
    `value` raises it, and the error's own `result` is this Result. usage, seed: from the runtime. first_failure: the first failed node, also where the program dealt with it.
    raised_by_body: whether the body itself raised `error`, or it was a failure that the body never looked at.
    """

    __slots__ = (
        "_cursor",
        "_meter",
        "_run",
        "_spec",
        "_value",
        "error",
        "first_failure",
        "graph",
        "raised_by_body",
        "seed",
        "state",
        "usage",
    )

    def __init__(
        self,
        value: R | None,
        *,
        state: State,
        cursor: Cursor,
        graph: Graph,
        spec: RunSpec,
        run: Run,
        meter: Callable[[], Meter],
        summary: RunSummary,
        error: BaseException | None = None,
        raised_by_body: bool = False,
    ) -> None:
        self._value = value
        self.raised_by_body = raised_by_body
        self._spec = spec
        self._run = run
        self._meter = meter
        self.state = state
        self._cursor = cursor
        self.graph = graph
        self.usage: Usage = summary.usage
        self.seed = summary.seed
        self.first_failure = summary.error
        self.error = error

    @property
    def value(self) -> R:
        """What the program returned, lazy values resolved. Raises the run's error if it failed."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    @property
    def text(self) -> str:
        """All text of the final state, turn markers included."""
        return self.state.text

    @property
    def finished(self) -> dict[str, Any]:
        """Names of the final state whose values exist, with their values; for looking at a failed or stopped run."""
        return self._cursor.finished()

    @property
    def record(self) -> RunRecord:
        """What the run leaves behind: `ir.record.save_record` stores it, a replay backend runs it again."""
        return self._run.record()

    @property
    def errors(self) -> dict[str, BaseException]:
        """Why nodes have no value, by node id: what failed, what depended on it, and what was cancelled."""
        return dict(self.record.errors)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What each finished node resolved to, by node id."""
        recorder = self._cursor.recorder
        return {node.id: recorder.outcome(node.id) for node in self.graph if recorder.is_finished(node.id)}

    def draw(self, format: Format = "html") -> Drawing:  # noqa: A002  the word that `ir.draw.draw` uses
        """A picture of the graph, with what the run gave and what went wrong in it; the HTML page has the prompts as the
        model got them.
        """
        from ..ir.draw import draw

        record = self.record
        meter = self._meter() if format == "html" else None
        return draw(self.graph, format, outcomes=record.outcomes, errors=record.errors, meter=meter)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the page of the run."""
        return {**self.draw("html")._repr_mimebundle_(), "text/plain": repr(self)}

    def __copy__(self) -> Result[R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Result[R]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ResultElsewhere, (repr(self), self.usage, self.seed)

    def __repr__(self) -> str:
        ended = f"value={spelled(self._value)}" if self.error is None else f"error={self.error!r}"
        return f"<Result {self._spec.program} {ended}>"


@dataclass(frozen=True, slots=True)
class ResultElsewhere:
    """What a Result becomes in another process: a run stays where it was made. Its record can go anywhere
    (`ir.record.save_record`).
    """

    shown: str
    usage: Usage
    seed: int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self.shown} was made in another process, and has no {name!r} here; "
            "save_record(result.record, path) there stores all of it"
        )

    def __repr__(self) -> str:
        return f"<in another process: {self.shown}>"


def attach(result: Result[Any], error: BaseException) -> None:
    """Let an error that ends a run name the Result of that run. A `result` that the user's own class has is left alone."""
    if isinstance(getattr(error, "result", None), (Result, NoneType)):
        with suppress(AttributeError, TypeError):  # a class of the user's may not let itself be written to
            error.result = result  # type: ignore[attr-defined]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run or a batch. `results`: one per item; what did not finish holds an error, and None stands for what
    had not begun (or did not end in time, in code of its own).
    """

    def __init__(self, results: Sequence[Result[Any] | None]) -> None:
        done = sum(result is not None and result.error is None for result in results)
        super().__init__(f"interrupted; {done} of {len(results)} runs had finished")
        self.results = list(results)

    @property
    def result(self) -> Result[Any] | None:
        """That of the first run that did not finish, or None where none had begun."""
        begun = [result for result in self.results if result is not None]
        return next((result for result in begun if result.error is not None), None)
