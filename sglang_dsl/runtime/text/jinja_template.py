"""A model's own Jinja chat template, cut into what stands before, between and behind the contents.

The template is rendered with a sentinel for each content, so the text around contents depends on the order of roles
only: contents reach the prompt exactly as they are (that a template trims them changes nothing; a role whose text it
encodes or changes is refused), and they can never be taken for template code.

    roles (user, assistant)    <|im_start|>user\\n S0 <|im_end|>\\n<|im_start|>assistant\\n S1 <|im_end|>\\n
                               gap 0              |  gap 1                              |  gap 2 (the end)

A long conversation is shown to the template without its middle where that makes no difference (`_Recent`), so that a turn
costs the same however many stand before it.

A turn's closing text is what all possible continuations of it have in common; the opening text of the next turn is the
rest of the gap. So a prompt that ends in an open turn is what the template itself renders for that conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

from ...errors import MissingExtraError, ModelLoadError, RoleError
from ...ir.nodes import is_role_word
from .tokenizer import ROLES, Turn, Turns, check_known

_PROBES = (("user", "assistant", "user"), ("system", "user", "assistant", "user", "assistant", "user"))
_ROLES = ("user", "assistant", "system", "tool")
_SHOWN_ROLES = 6
# A content that shows what a template does to it: quotes, backslash, line breaks, capitals and length, between noncharacters,
# which no template writes. Trimming does not reach it.
_PROBE = "\"Aa\\n\\\\<&> \u00e9'" * 8
_CONTENT = "\ufdd8%d\ufdd9" + _PROBE + "\ufdda"
_WORDS = re.compile(
    r"""(?<!\[)["']([A-Za-z][A-Za-z0-9_-]{0,63})["'](?!\])"""
)  # what a template may compare a role with
_SENTINEL = re.compile("\ufdd8([0-9]+)\ufdd9" + re.escape(_PROBE) + "\ufdda")
_CHANGED = re.compile("\ufdd8([0-9]+)\ufdd9")

SHOWN_TURNS = 12  # of a long conversation, at its beginning; and about as many at its end
ALIKE_TURNS = 6  # roles before two places, that have to be the same for the turns between to be left out
WHOLE_TURNS = 64
MOST_PROOFS = 4096

Roles: TypeAlias = tuple[str, ...]


class _Refused(Exception):  # noqa: N818  an answer, never seen outside
    """The template raised. The message is its own."""


class _Misplaced(_Refused):
    """The template did not show every content once and in order."""


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """Whether text once rendered stays as later turns are added.

    rewrites: per conversation probed, what the template would have changed; such text is kept as first rendered, so
    no computed prefix is lost, and `rewritten_chars` says how far the prompt is from the template's later rendering.
    """

    rewrites: tuple[str, ...] = ()
    rewritten_chars: int = 0

    @property
    def stable(self) -> bool:
        """No conversation probed was rewritten."""
        return not self.rewrites


class JinjaTemplate:
    """Implements `ChatTemplate`. Thread-safe; renderings are cached by the order of roles.

    Args:
        source: the template.
        variables: what it may use besides the messages: bos_token, eos_token, enable_thinking, ...

    Raises:
        ModelLoadError: a syntax error in the template.
        MissingExtraError: jinja2 is not installed.
    """

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        template = compile_template(source)
        self._roles = ROLES | frozenset(_WORDS.findall(source))  # a template that writes any role knows these
        self._dated = "strftime_now" in source
        counts = _counts(source)
        self._of_day = lru_cache(maxsize=2)(lambda day: _Recent(_Gaps(template, variables or {}), counts=counts))

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`.

        Raises:
            RoleError: the template does not know this role, or refuses it or leaves it out at this place.
        """
        if not is_role_word(role):
            check_known(role, self._roles, len(turns))
        opened = self._today().opening(turns, role)  # its own refusal says more
        check_known(role, self._roles, len(turns))
        return opened

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """Control text that ends the last turn of `turns` (which is open)."""
        return self._today().closing(turns)

    def report(self) -> TemplateReport:
        """Probe a few conversations for text that changes when turns are added."""
        changes = [change for roles in _PROBES for change in self._today().gaps.rewrites(roles)]
        return TemplateReport(tuple(change.text for change in changes), sum(change.chars for change in changes))

    def _today(self) -> _Recent:
        """Renderings of this day: templates may write the date."""
        return self._of_day(date.today() if self._dated else None)


class _Rewrite(NamedTuple):
    text: str
    chars: int


class _Gaps:
    """The text between contents, by the order of roles."""

    def __init__(self, template: Any, variables: Mapping[str, Any]) -> None:
        self._template = template
        self._variables = variables
        self.open = lru_cache(maxsize=4096)(self._open)
        self.close = lru_cache(maxsize=4096)(self._close)
        self._render = lru_cache(maxsize=4096)(self._render_once)

    def rewrites(self, roles: Roles) -> Iterator[_Rewrite]:
        """What the template changes in the text before each turn once all turns are there; nothing if it refuses them."""
        try:
            final = self._between(roles)
            first = [self._first(roles[:i], role) for i, role in enumerate(roles)]
        except (_Refused, RoleError):
            return
        for i, (before, after) in enumerate(zip(first, final, strict=False)):
            if before != after:
                text = f"message {i} ({roles[i]}) of {'/'.join(roles)}: first {before!r}, later {after!r}"
                yield _Rewrite(text, abs(len(after) - len(before)) or len(after))

    def _first(self, before: Roles, role: str) -> str:
        return (self.close(before) if before else "") + self.open(before, role)

    def _open(self, before: Roles, role: str) -> str:
        gap = self._accepted(before, role)
        close = self.close(before) if before else ""
        if role == "assistant" and before:
            gap = self._generation_prompt(before, close) or gap
        return gap[len(_common_prefix([gap, close])) :]

    def _close(self, roles: Roles) -> str:
        following = list(self._continuations(roles))
        try:
            end = self._between(roles)[-1]
        except _Refused:
            return _common_prefix(following)
        return end if all(gap.startswith(end) for gap in following) else _common_prefix(following)

    def _continuations(self, roles: Roles) -> Iterator[str]:
        """The text after the last content, for everything that may follow it."""
        for role in _ROLES:
            with suppress(_Refused):
                yield self._between((*roles, role))[len(roles)]
        with suppress(_Refused):
            yield self._between(roles, generate=True)[-1]

    def _generation_prompt(self, before: Roles, close: str) -> str:
        """The text in front of an answer, as the template gives it on request; "" if it gives none that fits."""
        try:
            asked, plain = self._between(before, generate=True)[-1], self._between(before)[-1]
        except _Refused:
            return ""
        return asked if asked != plain and asked.startswith(close) else ""

    def _accepted(self, before: Roles, role: str) -> str:
        """The gap in front of a new turn. Some templates show a turn only once another follows (system into user)."""
        refusals = []
        for following in ((), ("user",), ("assistant",)):
            try:
                return self._between((*before, role, *following))[len(before)]
            except _Refused as refusal:
                refusals.append(refusal)
        raise RoleError(
            f"the model's chat template refuses role {role!r} as message {len(before)}"
            f" after [{_last(before)}]: {refusals[0]}",
            hint=_hint(role),
        ) from refusals[0]

    def _between(self, roles: Roles, *, generate: bool = False) -> tuple[str, ...]:
        """`_render`, but a system turn that the template moves to a later place stays where it was first shown."""
        try:
            return self._render(roles, generate)
        except _Misplaced:
            if len(roles) < 3 or roles[0] != "system":
                raise
            return ("", *self._render(roles[1:], generate))

    def _render_once(self, roles: Roles, generate: bool) -> tuple[str, ...]:
        """The n + 1 texts around the contents of n turns. Raises _Refused."""
        messages = [{"role": role, "content": _CONTENT % i} for i, role in enumerate(roles)]
        try:
            text = self._template.render(messages=messages, add_generation_prompt=generate, **self._variables)
        except _template_errors() as error:
            raise _Refused(str(error) or type(error).__name__) from error
        parts = _SENTINEL.split(text)
        if changed := _CHANGED.search("".join(parts[::2])):
            i = int(changed[1])
            raise _Refused(
                f"it does not show the text of message {i} ({roles[i]}) as it is, but changed (by tojson, upper, a slice ...)"
            )
        if parts[1::2] != [str(i) for i in range(len(roles))]:
            raise _Misplaced("it does not show every message once and in order")
        return tuple(parts[::2])


class _Recent:
    """The same for long conversations, of which the template sees the beginning and the latest turns.

        all the roles   s u a u a u a u a u a ... u a u a u a u a
        shown           s u a u a u a --------------> u a u a u a     between two places before which the same roles stand,
                                                                      an even number of turns apart

    A template cannot tell the two apart unless it counts turns. One that looks as if it did is always shown the whole. Every other
    is shown the whole, too, for the first WHOLE_TURNS and once more each time a conversation has doubled; where that gives
    anything else, it is shown the whole from then on. counts: whether it looks so.
    """

    def __init__(self, gaps: _Gaps, *, counts: bool) -> None:
        self.gaps = gaps
        self._stable = not counts
        self._proven: set[tuple[object, ...]] = set()

    def opening(self, turns: Sequence[Turn], role: str) -> str:
        """The text between the end of `turns` and the content of a new turn of `role`."""
        return self._shown(turns, lambda roles: self.gaps.open(roles, role), role)

    def closing(self, turns: Sequence[Turn]) -> str:
        """The text that ends the last of `turns`."""
        return self._shown(turns, self.gaps.close, None)

    def _shown(self, turns: Sequence[Turn], gap: Callable[[Roles], str], role: str | None) -> str:
        if self._stable and len(turns) > WHOLE_TURNS:
            short = _without_middle(turns)
            if short is not None and self._is_proven(turns, short, gap, role):
                with suppress(RoleError):  # whose message is of the whole
                    return gap(short)
        return gap(tuple(turn.role for turn in turns))

    def _is_proven(self, turns: Sequence[Turn], short: Roles, gap: Callable[[Roles], str], role: str | None) -> bool:
        """Whether this short conversation gave what the whole one gave when that had as many turns as this one, but for a factor of two."""
        proof = (short, role, len(turns).bit_length())
        if proof not in self._proven:
            whole = tuple(turn.role for turn in turns)
            self._stable = _answer(gap, whole) == _answer(gap, short)
            if len(self._proven) >= MOST_PROOFS:
                self._proven.clear()
            self._proven.add(proof)
        return self._stable


def _answer(gap: Callable[[Roles], str], roles: Roles) -> str | None:
    """None where the template refuses."""
    try:
        return gap(roles)
    except RoleError:
        return None


def _without_middle(turns: Sequence[Turn]) -> Roles | None:
    """The roles of a long conversation without its middle; None where no two places of it look alike."""
    first, latest = _first_roles(turns, SHOWN_TURNS), _last_roles(turns, 2 * SHOWN_TURNS)
    for cut in range(ALIKE_TURNS, SHOWN_TURNS + ALIKE_TURNS):
        left_out = len(turns) - len(latest) + cut - len(first)
        if left_out % 2 == 0 and latest[cut - ALIKE_TURNS : cut] == first[-ALIKE_TURNS:]:
            return first + latest[cut:]
    return None


def _last_roles(turns: Sequence[Turn], count: int) -> Roles:
    return turns.last_roles(count) if isinstance(turns, Turns) else tuple(turn.role for turn in turns[-count:])


def _first_roles(turns: Sequence[Turn], count: int) -> Roles:
    return turns.first_roles[:count] if isinstance(turns, Turns) else tuple(turn.role for turn in turns[:count])


def _counts(source: str) -> bool:
    """Whether a template looks as if it counted turns: by a number as large as what is always shown, by arithmetic that makes large
    ones, by the rest of a division other than by two, or by writing a position or a length.
    """
    from jinja2 import nodes

    tree = _environment().parse(source)
    numbers = [node.value for node in tree.find_all(nodes.Const)]
    if any(isinstance(n, (int, float)) and not isinstance(n, bool) and abs(n) >= SHOWN_TURNS for n in numbers):
        return True
    if next(tree.find_all((nodes.Mul, nodes.Pow, nodes.Div, nodes.FloorDiv)), None) is not None:
        return True
    if any(not (isinstance(m.right, nodes.Const) and m.right.value in (1, 2)) for m in tree.find_all(nodes.Mod)):
        return True
    return any(_writes_a_count(output) for output in tree.find_all(nodes.Output))


def _writes_a_count(output: Any) -> bool:
    from jinja2 import nodes

    positions = {"index", "index0", "revindex", "revindex0", "length", "depth"}
    return any(found.attr in positions for found in output.find_all(nodes.Getattr)) or any(
        found.name in ("length", "count") for found in output.find_all(nodes.Filter)
    )


def _common_prefix(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    low, high = min(texts), max(texts)
    return low[: next((i for i, char in enumerate(low) if char != high[i]), len(low))]


def _last(roles: Roles) -> str:
    shown = roles[-_SHOWN_ROLES:]
    return ", ".join(shown if len(shown) == len(roles) else ("...", *shown))


def _hint(role: str) -> str:
    if role == "system":
        return "put this text into the first user turn"
    return "use the roles and the order the model was trained on"


@cache
def _template_errors() -> tuple[type[Exception], ...]:
    """What a template raises: on purpose, or by treating a message in a way it does not allow."""
    from jinja2 import TemplateError

    return (TemplateError, TypeError, ValueError, LookupError)


def compile_template(source: str) -> Any:
    """A template in the environment the model's authors wrote it for.

    Source: transformers, utils/chat_template_utils.py (sandbox, block trimming, loop controls, tojson, raise_exception,
    strftime_now, generation blocks).
    """
    try:
        from jinja2 import TemplateSyntaxError
    except ImportError as error:
        raise MissingExtraError("chat templates need jinja2", hint="pip install 'sglang-dsl[engine]'") from error
    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise ModelLoadError(
            f"the model's chat template has a syntax error in line {error.lineno}: {error.message}",
            hint="report it to the model's authors, or give the model another template",
        ) from error


@cache
def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}` marks what training learns from; it shows its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            """The block's own statements."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **options})
