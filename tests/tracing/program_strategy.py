"""Random programs: written by hypothesis as Python source, compiled, decorated.

Every statement of the language comes up: texts, gens, selects, turns, forks (nested, joined or not), reads, f-strings, recorded
operations, `if` on selects and bools, Python loops, `while` on a select, nested programs, var scopes, `s.switch` (also one in another on the
same value), `s.loop` with any kind of result, `s.map` over known and unknown items. Races
(`first`, `vote`) do not: who wins depends on the order of steps, and a body that reads in between has another one.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any, Literal

from hypothesis import strategies as st

import sglang_dsl
from sglang_dsl import Program

_numbers = itertools.count()
CHOICES = ("yes", "no", "maybe so", "Ja")
TEXTS = ("Q", "tell me", "é\n", " and ", "<b>", "{x}", "7")
WRAPS = ("{}", 'f"<{{{}}}>"', "{}.strip().upper()", "{} + '!'", 'f"{{{}:>6}}"', "{}[:2]", "'%s.' % {}", 'f"{{{}!r}}"')


class Writer:
    """Writes one program. Owner: one draw of the strategy."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.fresh = 0
        self.splits = 0  # decisions so far: programs stay below the number of paths that are all followed
        self.helpers: list[str] = []

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def value(self, state: str, names: list[str]) -> str:
        """An expression of text."""
        if not names or self.draw(st.integers(0, 3)) == 0:
            return repr(self.pick(TEXTS))
        return self.pick(WRAPS).format(f"{state}[{self.pick(names)!r}]" if "'" not in names[0] else names[0])

    def block(
        self, depth: int, state: str, names: list[str], kinds: dict[str, str], size: int, forks: int, turn: bool
    ) -> None:
        """Statements. `names`: bound to text; `kinds`: selects in reach; `forks`: levels of forking left."""
        for _ in range(self.draw(st.integers(1, size))):
            self.statement(depth, state, names, kinds, size, forks, turn)

    def statement(
        self, depth: int, state: str, names: list[str], kinds: dict[str, str], size: int, forks: int, turn: bool
    ) -> None:
        options = ["text", "gen", "gen", "select", "read", "number"]
        if size > 1:
            options += ["scope", "repeat", "nested", "loop", "map", "known_map", "loop_value"] + (
                [] if turn else ["turn", "turn"]
            )
            if forks:
                options += ["fork", "fork", "samples"]
            if kinds and self.splits < 5:
                options += ["if", "if", "switch", "switch_twice"]
            if self.splits < 4 and size > 2:
                options += ["while", "bool"]
        getattr(self, "w_" + self.pick(options))(depth, state, names, kinds, size - 1, forks, turn)

    def w_text(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.line(depth, f"{state} += {self.value(state, names)}")

    def w_gen(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        bound = [name for name in names if name.startswith("g")]  # a select stays what it is: it may be asked later
        name = self.pick(bound) if bound and self.draw(st.booleans()) else self.name("g")
        self.line(depth, f"{state} += {self.pick(TEXTS)!r} + gen({name!r}, max_tokens={self.pick((4, 16))})")
        if name not in names:
            names.append(name)

    def w_select(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        name = self.name("k")
        choices = list(CHOICES[: self.draw(st.integers(2, 3))])
        self.line(depth, f"{state} += select({name!r}, {choices!r})")
        names.append(name)
        kinds[name] = choices

    def w_number(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        name = self.name("n")
        kind = self.pick(("int", "float"))
        self.line(depth, f"{state} += gen({name!r}, type={kind})")
        self.line(depth, f'{state} += f"({{{state}[{name!r}]}})"')

    def w_read(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        local = self.name("x")
        self.line(depth, f"{local} = {self.value(state, names)}")
        self.line(depth, f"{state} += {local}")

    def w_turn(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.line(depth, f"with {state}.{self.pick(('user', 'assistant'))}():")
        self.block(depth + 1, state, names, kinds, max(size, 1), forks, True)

    def w_scope(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        name = self.name("v")
        self.line(depth, f"with {state}.var_scope({name!r}):")
        self.line(depth + 1, f"{state} += 'in ' + gen({self.name('g')!r})")
        self.line(depth, f"{state} += {state}[{name!r}]")

    def w_repeat(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.line(depth, f"for i in range({self.draw(st.integers(1, 2))}):")
        self.line(depth + 1, f"{state} += f'{{i}}.'")
        self.block(depth + 1, state, names, {}, max(size, 1), 0, turn)

    def w_if(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.splits += 1
        name = self.pick(sorted(kinds))
        choice = self.pick(kinds[name])
        question = self.pick(("{} == {!r}", "{} != {!r}", "{!r} == {}", "{}.startswith({!r})", "{} in ({!r}, 'x')"))
        read = f"{state}[{name!r}]"
        asked = question.format(choice, read) if question.startswith("{!r}") else question.format(read, choice)
        self.line(depth, f"if {asked}:")
        self.block(depth + 1, state, list(names), dict(kinds), max(size, 1), forks, turn)
        if self.draw(st.booleans()):
            self.line(depth, "else:")
            self.block(depth + 1, state, list(names), dict(kinds), max(size, 1), forks, turn)

    def w_bool(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.splits += 1
        name = self.name("b")
        self.line(depth, f"{state} += gen({name!r}, type=bool)")
        self.line(depth, f"{state} += gen('y') if {state}[{name!r}] else 'no'")

    def w_while(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.splits += 3
        count, name = self.name("c"), self.name("w")
        self.line(depth, f"{count} = 0")
        self.line(depth, f"{state} += select({name!r}, ['more', 'stop'])")
        self.line(depth, f"while {state}[{name!r}] == 'more' and {count} < 2:")
        self.line(depth + 1, f"{count} += 1")
        self.line(depth + 1, f"{state} += gen({self.name('g')!r})")
        self.line(depth + 1, f"{state} += select({name!r}, ['more', 'stop'])")

    def w_switch(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        self.splits += 1
        name = self.pick(sorted(kinds))
        arm, other, result = self.name("arm"), self.name("arm"), self.name("r")
        for body in (arm, other):
            self.line(depth, f"def {body}(s):")
            self.line(depth + 1, f"s += {self.pick(TEXTS)!r} + gen('sw')")
            self.line(depth + 1, "return s['sw']")
        self.line(depth, f"{result} = {state}.switch({name!r}, {{{kinds[name][0]!r}: {arm}}}, default={other})")
        self.line(depth, f"{state} += f'[{{{result}}}]'")

    def w_loop(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        body, result = self.name("body"), self.name("r")
        self.line(depth, f"def {body}(s):")
        self.line(depth + 1, "s += 'round ' + gen('lt') + select('lk', ['go', 'halt'])")
        if self.draw(st.booleans()):
            self.line(depth + 1, "s += '!' if s['lk'] == 'go' else gen('lg')")
        self.line(depth + 1, "return s['lt']")
        limit = self.draw(st.integers(1, 3))
        self.line(depth, f"{result} = {state}.loop({body}, until='lk', stop_value='halt', limit={limit})")
        self.line(depth, f'{state} += f"[{{{result}}}]"')

    def w_map(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        name, body, result = self.name("list"), self.name("body"), self.name("r")
        self.line(depth, f"{state} += gen({name!r}, schema=list[str])")
        self.line(depth, f"def {body}(s, item):")
        self.line(depth + 1, "s += " + self.pick(("item", "item.upper()", 'f"<{item}>"')))
        if self.draw(st.booleans()):
            self.w_asking_body(depth + 1, size, forks, turn)
        self.line(depth + 1, "s += gen('mt')")
        self.line(depth + 1, "return s['mt'].strip()")
        self.line(depth, f"{result} = {state}.map({state}[{name!r}], {body})")

    def w_asking_body(self, depth: int, size: int, forks: int, turn: bool) -> None:
        """A question of the map's body about a call of its own, and what hangs on the answer: any statements."""
        self.splits += 1
        name = self.name("mk")
        self.line(depth, f"s += select({name!r}, {list(CHOICES[:2])!r})")
        self.line(depth, f"if s[{name!r}] == {CHOICES[0]!r}:")
        self.block(depth + 1, "s", [], {name: list(CHOICES[:2])}, max(size, 1), forks, turn)
        if self.draw(st.booleans()):
            self.line(depth + 1, f"return {self.pick(('item', repr('none'), f's[{name!r}]'))}")
        elif self.draw(st.booleans()):
            self.line(depth, "else:")
            self.line(depth + 1, "s += item + gen('mother')")

    def w_known_map(
        self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool
    ) -> None:
        body, result = self.name("body"), self.name("r")
        self.line(depth, f"def {body}(s, item):")
        self.block(depth + 1, "s", [], {}, max(size, 1), 0, turn)
        self.line(depth + 1, "s += item + gen('km')")
        self.line(depth + 1, "return s['km']")
        self.line(depth, f"{result} = {state}.map(['one', 'two'], {body})")
        self.line(depth, f"{state} += ', '.join({result})")

    def w_loop_value(
        self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool
    ) -> None:
        body, result = self.name("body"), self.name("r")
        value, shown = self.pick(
            (("'done'", "{}"), ("f\"<{s['lv']}>\"", "{}"), ("(s['lv'], 'x', 3)", "'{{0}}{{1}}{{2}}'.format(*{})"),
             ("{'a': s['lv'], 'n': [1]}", "{}['a'] + str({}['n'])"), ("[s['lv']] * 2", "{}[1]"))
        )  # fmt: skip
        self.line(depth, f"def {body}(s):")
        self.line(depth + 1, "s += 'again ' + gen('lv')")
        self.line(depth + 1, f"return {value}")
        self.line(depth, f"{result} = {state}.loop({body}, limit=2)")
        self.line(depth, f"{state} += {shown.format(result, result)}")

    def w_switch_twice(
        self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool
    ) -> None:
        self.splits += 1
        name = self.pick(sorted(kinds))
        inner, arm, other = self.name("arm"), self.name("arm"), self.name("arm")
        choice = kinds[name][0]
        self.line(depth, f"def {inner}(s):")
        self.line(depth + 1, "s += gen('in')")
        self.line(depth, f"def {other}(s):")
        self.line(depth + 1, "s += 'other'")
        self.line(depth, f"def {arm}(s):")
        self.line(depth + 1, f"s.switch({name!r}, {{{choice!r}: {inner}}}, default={other})")
        self.line(depth, f"{state}.switch({name!r}, {{{choice!r}: {arm}}}, default={arm})")

    def w_samples(
        self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool
    ) -> None:
        name = self.name("m")
        self.line(depth, f"{state} += gen({name!r}, n=2)")
        self.line(depth, f"{state} += ' / '.join({state}[{name!r}])")

    def w_fork(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        branches, branch, name = self.name("fk"), self.name("s"), self.name("j")
        width = self.draw(st.integers(1, 3))
        self.line(depth, f"{branches} = {state}.fork({width})")
        self.line(depth, f"for i, {branch} in enumerate({branches}):")
        self.line(depth + 1, f"{branch} += f'b{{i}} '")
        before = self.splits
        self.block(depth + 1, branch, list(names), dict(kinds), max(size, 1), forks - 1, turn)
        self.splits += (width - 1) * (self.splits - before)
        self.line(depth + 1, f"{branch} += gen({name!r})")
        match self.pick(("all", "all", "concat", "none", "read")):
            case "all":
                self.line(depth, f"{name} = {branches}.join({name!r})")
                self.line(depth, f"{state} += ', '.join(x.strip() for x in {name})")
            case "concat":
                self.line(depth, f"{branches}.concat()")
            case "read":
                self.line(depth, f"{state} += {branches}[-1][{name!r}]")
                self.line(depth, f"{branches}.join({name!r})")

    def w_nested(self, depth: int, state: str, names: list[str], kinds: Any, size: int, forks: int, turn: bool) -> None:
        helper = self.name("helper")
        inner = Writer(self.draw)
        inner.fresh = self.fresh + 100
        inner.splits = self.splits
        inner.line(0, "@program")
        inner.line(0, f"def {helper}(s, given):")
        inner.line(1, "s += given")
        inner.block(1, "s", [], {}, max(size, 1), forks, turn)
        inner.line(1, "s += gen('out')")
        inner.line(1, "return s['out']")
        self.splits, self.fresh = inner.splits, inner.fresh
        self.helpers += [*inner.helpers, *inner.lines]
        result = self.name("r")
        self.line(depth, f"{result} = {helper}({state}, {self.value(state, names)})")
        self.line(depth, f"{state} += {result}.lower()")


@st.composite
def programs(draw: Any, size: int = 4, role: Literal[True, False] = True) -> Program[..., Any]:
    """A program without arguments. Its last call is a gen named "end", whose prompt is all text before it."""
    writer = Writer(draw)
    names: list[str] = []
    writer.block(1, "s", names, {}, size, 2, not role)
    result = f"s[{names[-1]!r}]" if names else "None"
    source = "\n".join(
        ["from sglang_dsl import gen, program, select", "", *writer.helpers, "@program", "def generated(s):", *writer.lines,
         "    s += gen('end')", f"    return {result}", ""]
    )  # fmt: skip
    return compiled(source)


def compiled(source: str) -> Program[..., Any]:
    """The program of a source text, with its lines at hand for messages. `source` is kept on the function."""
    file = f"<program {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "generated_program", "sglang_dsl": sglang_dsl}
    exec(compile(source, file, "exec"), namespace)
    made: Program[..., Any] = namespace["generated"]
    made.function.__doc__ = source
    return made
