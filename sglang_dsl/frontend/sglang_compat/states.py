"""SGLang's `ProgramState` and the group that `fork` gives.

A call's Meta under SGLang's keys.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Literal, overload

from ...errors import ProgramError, SpecError
from ...ir.execution import ChoiceScore, Meta, TokenScore
from ...ir.specs import JoinMode
from ..bindings import Given
from ..branches import Forked, JoinRequest, fork
from ..call_sites import Site, caller_origin
from ..expressions import Chain, Turn
from ..result import Result
from ..state import NamedSpan, OpenTurn, State, cursor_of
from ..statement import say
from ..stream import Chunk, Stream


def meta_info(meta: Meta) -> dict[str, Any]:
    """Counts, finish reason, and log-probabilities as `[logprob, id, text]`."""
    info: dict[str, Any] = {
        "prompt_tokens": meta.prompt_tokens,
        "completion_tokens": meta.generated_tokens,
        "cached_tokens": meta.cached_tokens,
        "finish_reason": _finish_reason(meta),
    }
    if meta.token_scores:
        info["output_token_logprobs"] = [_score(score) for score in meta.token_scores]
        info["output_top_logprobs"] = [_top(score) for score in meta.token_scores]
    if meta.choices:
        info["normalized_prompt_logprobs"] = [choice.score for choice in meta.choices]
        info["input_token_logprobs"] = [_choice(choice) for choice in meta.choices]
    return info


def partial_info(call_id: str, pieces: int) -> dict[str, Any]:
    """What is known of a call while it writes: so many pieces of text have come. `meta_info` comes at its end."""
    return {"id": call_id, "completion_tokens": pieces, "finish_reason": None}


def _finish_reason(meta: Meta) -> dict[str, Any]:
    if meta.finish_reason == "length":
        return {"type": "length", "length": meta.generated_tokens}
    if meta.finish_reason == "cancelled":
        return {"type": "abort", "message": "cancelled"}
    return {"type": "stop", "matched": meta.matched}


def _score(score: TokenScore) -> list[Any]:
    return [score.logprob, score.token_id, score.token_bytes.decode("utf-8", "replace")]


def _top(score: TokenScore) -> list[list[Any]]:
    return [[logprob, token_id, text.decode("utf-8", "replace")] for token_id, logprob, text in score.top]


def _choice(choice: ChoiceScore) -> list[list[Any]]:
    return [[logprob, token_id, None] for token_id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)]


Gather = Literal["gather_variable", "concate_and_append"]


class ProgramState:
    """What a program appends to, with SGLang's methods. Over a State of ours, which is `state.inner`."""

    def __init__(self, inner: State) -> None:
        self.inner = inner
        self._cursor = cursor_of(inner)
        self.stream: Stream[Any] | None = None
        self.finish: Callable[[], Result[Any]] | None = None  # of a run that is under way: waits for its end
        self._result: Result[Any] | None = None
        self._ending = threading.Lock()

    # appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> ProgramState:
        self._say(other, self._site(sys._getframe(1)))
        return self

    def _say(self, item: Any, site: Site) -> None:
        say(self._cursor, item, site)

    def _site(self, frame: Any) -> Site:
        return self._cursor.recorder.sites.at(frame)

    def system(self, expr: Any = None) -> Any:
        """With an expression: append that turn (what it returns adds nothing more). Without: a with-form."""
        return self._turn("system", expr, self._site(sys._getframe(1)))

    def user(self, expr: Any = None) -> Any:
        """Like `system`, for the user's turn."""
        return self._turn("user", expr, self._site(sys._getframe(1)))

    def assistant(self, expr: Any = None) -> Any:
        """Like `system`, for the assistant's turn."""
        return self._turn("assistant", expr, self._site(sys._getframe(1)))

    def _turn(self, role: str, expr: Any, site: Site) -> Any:
        if expr is None:
            return OpenTurn(self._cursor, role, site)
        self._say(Turn(role, (expr,)), site)
        return Chain(())  # so that `s += s.user("x")`, which tutorials show, appends the turn once

    def var_scope(self, name: str) -> NamedSpan:
        """`with s.var_scope("story"): ...`: the name stands for the text appended inside."""
        return NamedSpan(self._cursor, name)

    # reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.inner

    def get_var(self, name: str) -> Any:
        """Its value; waits for it, and raises why it failed."""
        return self.inner[name]

    def set_var(self, name: str, value: Any) -> None:
        """Give a name a value by hand."""
        self._cursor.rebind(name, Given(value, name))

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Counts, finish reason and log-probabilities of a call, under SGLang's keys."""
        found: Meta = self.inner.meta(name)
        return meta_info(found)

    def text(self) -> str:
        """All text so far; waits for it."""
        return self.inner.text

    def messages(self) -> list[dict[str, str]]:
        """The turns so far, without the blanks that their text begins with."""
        return [{**message, "content": message["content"].lstrip()} for message in self.inner.messages()]

    def sync(self) -> None:
        """Wait for all text so far. Raises nothing: `error()` tells."""
        self.error()

    def error(self) -> BaseException | None:
        """Why the state failed, or None; waits for its end."""
        if self._result is not None or self.stream is not None or self.finish is not None:
            return self._ended().error
        try:
            _ = self.inner.text
        except Exception as error:  # noqa: BLE001  whatever failed is what was asked for
            return error
        return None

    @property
    def ret_value(self) -> Any:
        """What the program returned; waits for its end."""
        return self._ended().value

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it is written (`run(stream=True)`), or at once."""
        if self.stream is None or self.stream.spent:
            yield self.text() if var_name is None else str(self.get_var(var_name))
            return
        yield from self.stream if var_name is None else self.stream.of(var_name)

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Like `text_iter`; with `return_meta_data` (of a variable) pairs of text and meta info: of each piece what is
        known by then, and behind a call's last piece an empty one with all.
        """
        if return_meta_data and var_name is None:
            raise SpecError(
                "return_meta_data needs a variable", hint="text_async_iter('answer', return_meta_data=True)"
            )
        if self.stream is None or self.stream.spent:
            text = self.text() if var_name is None else str(self.get_var(var_name))
            yield (text, self.get_meta_info(str(var_name))) if return_meta_data else text
            return
        pieces = self.stream if var_name is None else self.stream.of(var_name)
        if not return_meta_data:
            async for chunk in pieces:
                yield chunk
            return
        written: Chunk | None = None
        pieces_of_call = 0
        async for chunk in pieces:
            if written is not None and written.node is not chunk.node:
                yield "", self._meta_of(written)
                pieces_of_call = 0
            written, pieces_of_call = chunk, pieces_of_call + 1
            yield chunk, partial_info(chunk.node.id, pieces_of_call)
        if written is not None:
            yield "", self._meta_of(written)

    def _meta_of(self, chunk: Chunk) -> dict[str, Any]:
        meta = self._cursor.recorder.outcome(chunk.node.id).meta
        return {"id": chunk.node.id, **({} if meta is None else meta_info(meta))}

    def _ended(self) -> Result[Any]:
        with self._ending:
            if self._result is None and self.finish is not None:
                self._result = self.finish()
        if self._result is None:
            running = None if self.stream is None else self.stream.running
            if running is None:
                raise ProgramError("this state is not that of a whole run", hint="ask the state that run() returned")
            self._result = running.result(raising=False)
        return self._result

    # forking -----------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> ProgramStateGroup:
        """`size` branches. `position_ids_offset` has no effect, as in SGLang."""
        return ProgramStateGroup(fork(self._cursor, size, self._site(sys._getframe(1))))

    def copy(self, position_ids_offset: Any = None) -> AbstractContextManager[ProgramState]:
        """`with s.copy() as c: ...`: a branch whose variables are this state's after the block, as plain values."""
        return self._copied(self._site(sys._getframe(1)))

    @contextmanager
    def _copied(self, site: Site) -> Iterator[ProgramState]:
        (branch,) = fork(self._cursor, 1, site).branches
        yield ProgramState(State(branch, 0))
        for name, bound in branch.names.own.items():
            self._cursor.rebind(name, bound)
        branch.line.closed = site.origin

    def __repr__(self) -> str:
        try:
            return f"ProgramState({self.text()})"
        except Exception as error:  # noqa: BLE001  a repr raises nothing; what failed is part of it
            return f"ProgramState(<failed: {type(error).__name__}: {str(error).splitlines()[0]}>)"


class ProgramStateGroup:
    """The branches of a fork."""

    def __init__(self, forked: Forked) -> None:
        self._fork = forked
        self.states = [ProgramState(State(branch, index)) for index, branch in enumerate(forked.branches)]

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """What `group[i] += x` ends with."""
        if state is not self.states[index]:
            raise ProgramError(f"branch {index} cannot be replaced", hint="group[i] += x", origin=caller_origin())

    def __iadd__(self, other: Any) -> ProgramStateGroup:
        """Append to every branch: text, a call, a list with one item per branch, or a function of the index."""
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                what = f"{len(other)} items for {len(self)} branches"
                raise ProgramError(what, hint="give one item per branch", origin=caller_origin())
            items = list(other)
            other = lambda index: items[index]  # noqa: E731  a function of the index, like any other
        self._fork.say(other, self._fork.parent.recorder.sites.at(sys._getframe(1)))
        return self

    def join(self, mode: Gather = "gather_variable") -> None:
        """Bring the branches together: each variable they bound becomes a list in the parent, one item per branch
        (MISSING where a branch did not bind it), or their text is appended to the parent.

        Raises:
            JoinError: when the list is read and a branch failed; it holds every branch's value or error.
        """
        site = self._fork.parent.recorder.sites.at(sys._getframe(1))
        if mode not in ("gather_variable", "concate_and_append"):
            raise SpecError(
                f"mode={mode!r} is unknown", hint="gather_variable or concate_and_append", origin=site.origin
            )
        ours: JoinMode = "all" if mode == "gather_variable" else "concat"
        self._fork.join(None, JoinRequest(mode=ours, nested=True), site, only_new=True)

    def __enter__(self) -> ProgramStateGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.join()
