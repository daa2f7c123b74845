"""The one error tree.

Every error a user can meet carries a stable code, what happened, where in the user's program the value came from, and
what to write instead. The package sits at the bottom of the import arrows: anything may raise these, and nothing here
imports another part of the project.

`docs/errors.md` lists every code with its cause, an example and its fix.
"""

from __future__ import annotations

import linecache
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

LONG_WORD = 160  # characters; ids of deeply nested nodes, paths and data are cut in the middle of messages
_LONG_WORDS = re.compile(rf"\S{{{LONG_WORD + 1},}}")


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:60]}...{word[0][-60:]}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place in the user's source a node or a value came from.

    `column` and `end_column` are 0-based character offsets on `line` where they are known (-1 where not).
    """

    file: str
    line: int
    program: str = ""
    column: int = -1
    end_column: int = -1

    @property
    def statement(self) -> str:
        """The source line itself, stripped; empty where the source is not at hand."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{self.program}, {where}" if self.program else where


class ChoiceBlankWarning(UserWarning):
    """A blank too many or too few between a text and the choices behind it; given once per line. `s.meta(x).findings` and
    `explain` say the same.
    """


class DslError(Exception):
    """Base of every error this project raises on purpose.

    Args:
        what: one or two sentences: the value, the limit it broke, the names that were possible.
        hint: what to write or run instead.
        origin: the user's line.
        retryable: whether the same call may succeed when it is made again unchanged.

    result: the `Result` of the run that ended with this error, if one did: what had finished, its usage, its picture.
    """

    code: ClassVar[str] = "E000"
    title: ClassVar[str] = "error"
    result: Any = None

    def __init__(self, what: str, *, hint: str = "", origin: Origin | None = None, retryable: bool = False) -> None:
        what = what if len(what) <= LONG_WORD else _LONG_WORDS.sub(_shortened, what)
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.origin = origin
        self.retryable = retryable

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.title}: {self.what}"]
        if self.origin is not None:
            lines.append(f"  in {self.origin}")
            lines.extend(_excerpt(self.origin))
        if self.hint:
            lines.append(f"  write instead: {self.hint}" if self.code < "E4" else f"  what to do: {self.hint}")
        return "\n".join(lines)

    def at(self, origin: Origin | None) -> DslError:
        """This error, with `origin` filled in where it had none."""
        if self.origin is None:
            self.origin = origin
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles with every field and its cause. What cannot go to another process is replaced by its words."""
        state = {name: _sendable(value) for name, value in self.__dict__.items()}
        cause, context = _sendable(self.__cause__), _sendable(self.__context__)
        kind = next(base for base in type(self).__mro__ if "<locals>" not in base.__qualname__)
        return _restored, (kind, self.args, state, cause, context, self.__suppress_context__)

    def __copy__(self) -> DslError:
        return _restored(
            type(self), self.args, self.__dict__, self.__cause__, self.__context__, self.__suppress_context__
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DslError:
        return self.__copy__()  # what it holds is for reading, and may be what cannot be copied


class RemoteError(Exception):
    """Stands for an exception that could not be sent to another process: it holds its class name and its words."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(kind, what)
        self.kind = kind
        self.what = what

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def _restored(
    kind: type[DslError],
    args: tuple[Any, ...],
    state: dict[str, Any],
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
) -> DslError:
    """An error as it was, without asking its `__init__`, whose arguments are the class's own."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = suppress_context
    return error


def _sendable(value: Any) -> Any:
    """`value`, with what does not survive pickling replaced by its words. Errors of ours always survive."""
    if value is None or isinstance(value, (DslError, Origin, bool, int, float, str)):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(_sendable, value))
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  whatever a foreign class does about it
        if isinstance(value, BaseException):
            return RemoteError(type(value).__name__, str(value))
        return repr(value)
    return value


def _excerpt(origin: Origin) -> list[str]:
    """The user's line with a caret below, in the style of Python's own tracebacks."""
    raw = linecache.getline(origin.file, origin.line).rstrip("\n")
    if not raw.strip():
        return []
    indent = len(raw) - len(raw.lstrip())
    start = origin.column if origin.column >= indent else indent
    end = origin.end_column if origin.end_column > start else len(raw.rstrip())
    gutter = f"{origin.line:>6} | "
    return [
        gutter + raw.strip(),
        " " * (len(gutter) - 2) + "| " + " " * (start - indent) + "^" * max(end - start, 1),
    ]


# --- E1xx: the program text (frontend) ---------------------------------------------------------------------------


class ProgramError(DslError):
    """A program used the language in a way that cannot work."""

    code = "E100"
    title = "invalid program"


class ForkError(ProgramError):
    """`fork` was asked for a number of branches it cannot make."""

    code = "E101"
    title = "invalid fork"


class UnknownNameError(ProgramError, KeyError):
    """A name was read that no append so far has bound. Lists near misses. Also a `KeyError`, for plain-Python callers."""

    code = "E102"
    title = "unknown name"

    __str__ = DslError.__str__


class BranchError(ProgramError):
    """A branch was used after its join, or joined by a state that did not fork it."""

    code = "E103"
    title = "branch misused"


class RoleError(ProgramError):
    """Roles were nested, left open, or are refused by the model's chat template (its own message is quoted)."""

    code = "E104"
    title = "invalid role"


class DecorationError(ProgramError):
    """`@program` was put on something that cannot be a program (generator, missing state parameter, ...)."""

    code = "E105"
    title = "not a program"


class UnresolvedError(ProgramError):
    """An async body read a value with `s[x]` before it existed; it has to `await s.get(x)`."""

    code = "E106"
    title = "value not there yet"


class SpecError(DslError, ValueError):
    """An option has a value outside its range. Also a `ValueError`, for plain-Python callers."""

    code = "E110"
    title = "invalid option"

    __str__ = DslError.__str__


class ConstraintError(SpecError):
    """A schema, regex or grammar is malformed, unsupported, empty or too large."""

    code = "E120"
    title = "invalid constraint"


class TraceError(DslError):
    """Tracing met something it cannot represent, and `strict=True` was asked for; or a value escaped its trace."""

    code = "E130"
    title = "cannot trace"


class ExportError(TraceError):
    """A graph cannot be stored or sent as a program (Break node, assumed switch, Python key, unregistered tool)."""

    code = "E131"
    title = "graph is not exportable"


# --- E2xx: the graph (ir) ------------------------------------------------------------------------------------------


class GraphError(DslError):
    """A graph broke a rule of `ir/verify.py`. The message names rule, node and the user's line."""

    code = "E200"
    title = "invalid graph"


class FormatError(GraphError):
    """A stored graph, record or cassette cannot be read: syntax, unknown version, or a hash that does not match."""

    code = "E210"
    title = "unreadable file"


# --- E3xx: a run (interpret) ---------------------------------------------------------------------------------------


class RunError(DslError):
    """Base of what can go wrong while a run executes."""

    code = "E300"
    title = "run failed"


class TruncatedError(RunError):
    """Constrained output ended by length. Holds `partial` (the text so far); nothing was repaired."""

    code = "E301"
    title = "constrained output was cut off"

    def __init__(self, what: str, *, partial: str, tokens: int, hint: str = "", origin: Origin | None = None) -> None:
        super().__init__(what, hint=hint, origin=origin)
        self.partial = partial
        self.tokens = tokens


class InvalidValueError(RunError):
    """A finished output does not fit its type or was refused by a validator after all retries. Holds `text`."""

    code = "E302"
    title = "output has the wrong value"

    def __init__(self, what: str, *, text: str = "", hint: str = "", origin: Origin | None = None) -> None:
        super().__init__(what, hint=hint, origin=origin, retryable=True)
        self.text = text


class ContextLengthError(RunError):
    """Prompt plus requested tokens exceed the model's context. Holds the counts."""

    code = "E303"
    title = "prompt is longer than the context"

    def __init__(
        self,
        what: str,
        *,
        prompt_tokens: int,
        max_tokens: int,
        context_tokens: int,
        hint: str = "",
        origin: Origin | None = None,
    ) -> None:
        super().__init__(what, hint=hint, origin=origin)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_tokens = context_tokens


class JoinError(RunError):
    """A join met failed branches. `results` holds, per branch in order, its value or its exception."""

    code = "E304"
    title = "a branch failed"

    def __init__(self, what: str, *, results: Sequence[object], hint: str = "", origin: Origin | None = None) -> None:
        super().__init__(what, hint=hint, origin=origin)
        self.results = list(results)


class ToolError(RunError):
    """A tool raised, timed out, or returned what its annotation does not allow."""

    code = "E305"
    title = "tool failed"


class CancelledError(RunError):
    """The run, branch or request was cancelled before this value existed."""

    code = "E306"
    title = "cancelled"


class DeadlineError(RunError):
    """A deadline, a waiting limit or a token budget ran out."""

    code = "E307"
    title = "out of time or budget"


# --- E4xx: the engine ------------------------------------------------------------------------------------------------


class EngineError(DslError):
    """Base of what the engine answers to a request. One request's error never stops the others."""

    code = "E400"
    title = "engine error"


class CapacityError(EngineError):
    """A request can never fit the pool; the message has the numbers."""

    code = "E401"
    title = "request cannot fit"


class QueueFullError(EngineError):
    """The waiting queue is at its limit."""

    code = "E402"
    title = "queue is full"


class EngineClosedError(EngineError):
    """The engine was closed, or its loop died; `health()` says why."""

    code = "E403"
    title = "engine is closed"


class SamplingError(EngineError):
    """A row left no token to sample (everything masked), or a parameter cannot be honoured for this vocabulary."""

    code = "E404"
    title = "nothing to sample"


class IntegrityError(EngineError):
    """A cache invariant does not hold. Always a fault of this project: the report names pages and owners."""

    code = "E405"
    title = "cache invariant broken"


# --- E5xx: models and installation -----------------------------------------------------------------------------------


class ModelNotFoundError(DslError):
    """No model of this name is in the catalogue, the cache folder or on disk."""

    code = "E501"
    title = "model not found"


class ModelLoadError(DslError):
    """A model file is damaged, of an unknown format, or its architecture cannot be run here."""

    code = "E502"
    title = "model cannot be loaded"


class SelfCheckError(ModelLoadError):
    """Packed and plain forward differ for this model; the message has the measured difference."""

    code = "E503"
    title = "model failed its self-check"


class DownloadError(DslError):
    """A model could not be fetched or its checksum is wrong."""

    code = "E504"
    title = "download failed"


class MissingExtraError(DslError, ImportError):
    """An optional part is not installed; the message names the extra and the command."""

    code = "E510"
    title = "part not installed"

    __str__ = DslError.__str__


class BackendNotFoundError(DslError):
    """No backend of this name is registered; the message lists those that are."""

    code = "E511"
    title = "unknown backend"


# --- E6xx: testing kit -----------------------------------------------------------------------------------------------


class ScriptError(DslError, AssertionError):
    """A mock got a call its script does not hold, or a script was not used up. Shows the nearest match."""

    code = "E600"
    title = "mock script mismatch"

    __str__ = DslError.__str__


class CassetteError(ScriptError):
    """A replayed call is not on the cassette; the message shows the field that differs."""

    code = "E601"
    title = "call is not on the cassette"


class GoldenError(ScriptError):
    """A graph is not the golden one kept beside the test; the message lists what changed, by node."""

    code = "E602"
    title = "graph differs from the golden one"
