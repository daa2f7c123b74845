"""What a run gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..ir.execution import Meter, Outcome, Run, RunSpec, RunSummary, Usage
from ..ir.graph import Graph

if TYPE_CHECKING:
    from ..ir.draw import Format
    from ..ir.record import RunRecord
    from .state import State

R = TypeVar("R")


class Result(Generic[R]):
    """The end of one run.

    state: the final state, for reading. graph: everything that was appended. error: why the run failed, or None; then
    `value` raises it. usage, seed: from the runtime. first_failure: the first failed node, also where the program dealt with it.
    raised_by_body: whether the body itself raised `error`, or it was a failure that the body never looked at.
    """

    __slots__ = (
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
        return self.state._finished()

    @property
    def record(self) -> RunRecord:
        """What the run leaves behind: `ir.record.save_record` stores it, a replay backend runs it again."""
        return self._run.record()

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What each finished node resolved to, by node id."""
        return self.state._outcomes()

    def draw(self, format: Format = "html") -> str:  # noqa: A002  the word that `ir.draw.draw` uses
        """A picture of the graph, with what the run gave; the HTML page has the prompts as the model got them."""
        from ..ir.draw import draw

        meter = self._meter() if format == "html" else None
        return draw(self.graph, format, outcomes=self.outcomes, meter=meter)

    def __repr__(self) -> str:
        ended = f"value={self._value!r}" if self.error is None else f"error={self.error!r}"
        return f"<Result {self._spec.program} {ended}>"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run or a batch. `results`: one per item; what did not finish holds an error, and None stands for what
    had not begun (or did not end in time, in code of its own).
    """

    def __init__(self, results: Sequence[Result[Any] | None]) -> None:
        done = sum(result is not None and result.error is None for result in results)
        super().__init__(f"interrupted; {done} of {len(results)} runs had finished")
        self.results = list(results)
