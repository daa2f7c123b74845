"""How many small faults the unit tests notice: `make mutants`, or `python tests/mutants.py --help`.

A mutant is the program with one small change (`<` becomes `<=`, a call is left out, a branch is always taken ...). It is killed if a
test fails or does not end; one that survives shows behaviour that nobody judges. Mutants are drawn by a seed from the source of each
room, wherever its files stand. A first run of the unit tests under coverage tells which tests reach which line, and a mutant is
given to those only, nearest and quickest first.

Each mutant is a forked process that imports the changed source instead of the file: nothing is written, and the tests run in a copy
of the tree, so that it may be edited meanwhile. Mutants that no test can tell from the program are listed in `mutants_equivalent.toml`,
each with the reason, and are not drawn.

Why not a tool: those that are well kept either write mutants into the working tree and run one command for each (cosmic-ray), or wrap
every function in another (mutmut), which changes the frames that call sites are read from; neither draws a sample in a given time.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOMS = ("schedule", "cache", "interpret", "constrain")
JUDGED = ("schedule", "cache", "interpret")  # `--check` holds these to LEAST
LEAST = 0.9
TESTS = ("cache", "schedule", "constrain", "interpret", "engine", "mock", "proof")
UNIT = "not engine and not model and not long and not browser"
LENGTHY = (
    "growth or storm or random_programs or ten_thousand"  # in names of tests that take long and are given to no mutant
)
NEAR_S, FAR_S = 30.0, 30.0  # of tests in the room's own folder, and of others, that a mutant is given at most
PRELOADED = ("hypothesis", "pydantic", "jsonschema", "greenlet", "lark", "regex", "networkx", "rich", "asyncio")
MEMORY_BYTES = 8 << 30  # address space of a process; a mutant may allocate for ever
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")


@dataclass(frozen=True)
class Mutant:
    """One change of one place. `lines`: where a test has to pass to notice it."""

    room: str
    path: str
    function: str
    lines: tuple[int, ...]
    start: int
    end: int
    before: str
    after: str

    def line(self, source: bytes) -> str:
        """The line it begins in, as `mutants_equivalent.toml` names it."""
        first = source.rfind(b"\n", 0, self.start) + 1
        return source[first : source.find(b"\n", self.start)].decode().strip()

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        old, new = source.decode().splitlines(), self.apply(source).decode().splitlines()
        changed = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
        return "\n".join(f"      {line}" for line in changed)


# Which changes there are ---------------------------------------------------------------------------------------------

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
TYPES_ONLY = {"cast", "TypeVar", "ParamSpec", "NewType"}


def changes(node: ast.AST) -> Iterator[str]:
    """The texts that may stand in place of `node`."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield _with(node, ops=[*ops[:i], COMPARISONS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield f"({_with(node, op=ARITHMETIC[type(op)]())})"
        case ast.BoolOp(op=op, values=values):
            yield f"({_with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())})"
            for i in range(len(values)):
                yield (
                    f"({_with(node, values=values[:i] + values[i + 1 :])})"
                    if len(values) > 2
                    else f"({ast.unparse(values[1 - i])})"
                )
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield repr(value + 1)
            if value > 1:
                yield repr(value - 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(ast.IfExp(test=test, body=orelse, orelse=body))})"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield _with(node, func=ast.Name(id=SWAPPED[name]))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise() | ast.Break():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AugAssign(op=op):
            yield "pass"
            if type(op) in ARITHMETIC:
                yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None"


def conditions(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Conditions of `node`, and what they may become."""
    if isinstance(node, ast.If):
        yield from ((node.test, "True"), (node.test, "False"))
    elif isinstance(node, ast.While):
        yield node.test, "False"
    elif isinstance(node, ast.comprehension):
        yield from ((test, "True") for test in node.ifs)


def _with(node: Any, **fields: Any) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def mutants_of(room: str, path: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of one file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(node: Any, function: str, statement: Any, after: str) -> Iterator[Mutant]:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source[start:end].decode().split())
        lines = tuple(sorted({statement.lineno, *range(node.lineno, node.end_lineno + 1)}))
        if before != after:
            yield Mutant(room, path, function, lines, start, end, before, after)

    def walk(node: ast.AST, function: str, statement: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, (ast.stmt, ast.excepthandler)):
            statement = node
        if hasattr(node, "lineno"):
            for after in changes(node):
                yield from at(node, function, statement, after)
        for test, after in conditions(node):
            yield from at(test, function, statement, after)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        for child in _judged_parts(node):
            yield from walk(child, function, statement)

    tree = ast.parse(source)
    yield from walk(tree, "", tree)


def _judged_parts(node: ast.AST) -> Iterator[ast.AST]:
    """What of a node a test could judge: no types, decorators, messages of errors or texts for people."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return
        case ast.FunctionDef(decorator_list=decorators) if any("overload" in ast.unparse(d) for d in decorators):
            return
        case ast.ClassDef(bases=bases) if any("Protocol" in ast.unparse(base) for base in bases):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.AnnAssign(annotation=annotation) if "TypeAlias" in ast.unparse(annotation):
            return
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return
        case ast.Assign(value=ast.Subscript(value=ast.Name(id=name))) if name[:1].isupper():
            return  # the name of a type
        case ast.Call(func=ast.Name(id=name)) if name in TYPES_ONLY:
            return
        case ast.keyword(arg="strict"):  # of zip: a guard against a fault of ours
            return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            yield from (
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            )


# Running tests in forked processes -----------------------------------------------------------------------------------


class ChangedSource(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports one module from a changed source. Nothing is written, no compiled file either."""

    def __init__(self, module: str, path: str, source: bytes) -> None:
        super().__init__(module, path)
        self.source = source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        inside = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=inside
        )

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Picked:
    """A pytest plugin: these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )


class Reached:
    """A pytest plugin: which tests reach which lines, and how long they take."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.took_s: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.took_s[report.nodeid] = report.duration


def pytest_in(tree: Path, arguments: Sequence[str], plugin: Any) -> int:
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    # plain asserts: those that pytest rewrites are imported by a hook of its own, and it takes the package for a plugin
    common = ("-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", UNIT)
    return int(pytest.main([*common, *arguments], plugins=[plugin]))


CHILDREN: set[int] = set()  # forked and not waited for: ended with this process


def forked(work: Callable[[], int]) -> int:
    """Run `work` in a process of its own, silently. Returns its id."""
    pid = os.fork()
    if pid:
        CHILDREN.add(pid)
        return pid
    code = 70
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = work()
    except BaseException:  # noqa: BLE001  whatever it is: the exit code says so
        code = 71
    os._exit(code)


@dataclass
class Coverage:
    """What the unit tests reach in the unchanged program."""

    took_s: dict[str, float] = field(default_factory=dict)
    by_line: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def measured(cls, tree: Path, rooms: Sequence[str], folders: Sequence[str]) -> Coverage:
        found = tree / "reached.json"
        pid = forked(lambda: _measure(tree, rooms, folders, found))
        _, status = os.waitpid(pid, 0)
        CHILDREN.discard(pid)
        if not found.exists():
            raise SystemExit(f"the unit tests could not be run under coverage (status {status})")
        return cls(**json.loads(found.read_text()))

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests that reach the mutant; for what runs at import, those that reach anything in its file."""
        lines = self.by_line.get(mutant.path, {})
        met = {test for line in mutant.lines for test in lines.get(str(line), ())}
        if not met and any(str(line) in lines for line in mutant.lines):
            met = {test for tests in lines.values() for test in tests} or set(self.took_s)
        return sorted((test for test in met if test in self.took_s), key=lambda test: (self.took_s[test], test))


def _measure(tree: Path, rooms: Sequence[str], folders: Sequence[str], found: Path) -> int:
    import coverage

    os.environ["COVERAGE_CORE"] = "ctrace"
    cover = coverage.Coverage(
        data_file=None, config_file=False, concurrency=["thread", "greenlet"],
        include=[f"{tree}/sglang_dsl/runtime/{room}/*" for room in rooms],
    )  # fmt: skip
    plugin = Reached(cover)
    cover.start()
    found_folders = [f"tests/{name}" for name in folders if (tree / "tests" / name).exists()]
    pytest_in(tree, ["-k", f"not ({LENGTHY})", *found_folders], plugin)
    cover.stop()
    data = cover.get_data()
    by_line = {
        str(Path(file).relative_to(tree)): {
            str(line): [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    found.write_text(json.dumps({"took_s": plugin.took_s, "by_line": by_line}))
    return 0


@dataclass
class Trial:
    """A mutant on its way through its tests."""

    mutant: Mutant
    source: bytes
    stages: list[list[str]]
    pid: int = 0
    until: float = 0.0

    def start(self, tree: Path, took_s: dict[str, float]) -> None:
        tests = self.stages.pop(0)
        self.until = time.monotonic() + 20 + 8 * sum(took_s[test] for test in tests)
        self.pid = forked(lambda: self._run(tree, tests))

    def _run(self, tree: Path, tests: list[str]) -> int:
        module = self.mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        changed = self.mutant.apply(self.source)
        try:
            compile(changed, self.mutant.path, "exec")
        except SyntaxError:
            return 72
        sys.meta_path.insert(0, ChangedSource(module, str(tree / self.mutant.path), changed))
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        return pytest_in(tree, ["-x", *files], Picked(tests))

    def ended(self) -> str | None:
        """ "killed", "passed" (there), "broken", or None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            CHILDREN.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            return "passed" if code == 0 else "broken" if code in (4, 5, 71, 72) else "killed"
        if time.monotonic() > self.until:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            CHILDREN.discard(self.pid)
            return "killed"
        return None


def stages_of(mutant: Mutant, reached: Coverage) -> list[list[str]]:
    """The tests of the room's own folder, then others, each up to its time."""
    near: list[str] = []
    far: list[str] = []
    spent = {True: 0.0, False: 0.0}
    for test in reached.tests(mutant):
        own = test.startswith(f"tests/{mutant.room}/")
        spent[own] += reached.took_s[test]
        if spent[own] <= (NEAR_S if own else FAR_S):
            (near if own else far).append(test)
    return [stage for stage in (near, far) if stage]


def run_all(trials: Sequence[Trial], tree: Path, reached: Coverage, *, jobs: int, until: float) -> dict[Mutant, str]:
    """Try the mutants, `jobs` at a time, until the time is up. Those that were not begun are left out."""
    results: dict[Mutant, str] = {}
    waiting, running = list(reversed(trials)), []
    while running or (waiting and time.monotonic() < until):
        while waiting and len(running) < jobs and time.monotonic() < until:
            trial = waiting.pop()
            if trial.stages:
                trial.start(tree, reached.took_s)
                running.append(trial)
            else:
                results[trial.mutant] = "unreached"
        time.sleep(0.02)
        for trial in list(running):
            how = trial.ended()
            if how == "passed" and trial.stages:
                trial.start(tree, reached.took_s)
            elif how is not None:
                running.remove(trial)
                results[trial.mutant] = "survived" if how == "passed" else how
                print({"killed": ".", "passed": "S", "broken": "?"}[how], end="", flush=True)
    print()
    return results


# The command ---------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help=f"of {', '.join(ROOMS)} (all)")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each room (100)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (1)")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="of trying mutants, after the first run of the tests (20)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"fail under {100 * LEAST:.0f} of 100 mutants killed in {', '.join(JUDGED)}",
    )
    parser.add_argument("--reached", type=Path, help="a file that keeps what the tests reach, for another run")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"folders or files of tests ({', '.join(TESTS)})")
    parser.add_argument("--only", default="", help="only mutants of functions whose name holds this")
    return parser.parse_args()


def equivalents() -> set[tuple[str, str, str, str]]:
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.exists() else []
    return {(entry["function"], entry["line"], entry["before"], entry["after"]) for entry in listed}


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in PRELOADED:
        importlib.import_module(name)
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder).resolve() / "tree"
        leave = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "*.egg-info")
        shutil.copytree(root, tree, ignore=leave, symlinks=True)
        sources = {
            str(path.relative_to(tree)): (room, path.read_bytes())
            for room in options.rooms
            for path in sorted((tree / "sglang_dsl/runtime" / room).rglob("*.py"))
        }
        try:
            return judge(options, tree, sources)
        finally:
            for pid in CHILDREN:
                os.killpg(pid, signal.SIGKILL)


def judge(options: argparse.Namespace, tree: Path, sources: dict[str, tuple[str, bytes]]) -> int:
    listed = equivalents()
    found: dict[str, list[Mutant]] = defaultdict(list)
    for path, (room, source) in sources.items():
        found[room] += (
            m
            for m in mutants_of(room, path, source)
            if (m.function, m.line(source), m.before, m.after) not in listed and options.only in m.function
        )
    drawn = {
        room: random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
        for room, mutants in found.items()
    }
    began = time.monotonic()
    if options.reached and options.reached.exists():
        reached = Coverage(**json.loads(options.reached.read_text()))
    else:
        reached = Coverage.measured(tree, options.rooms, options.tests)
        if options.reached:
            options.reached.write_text(json.dumps({"took_s": reached.took_s, "by_line": reached.by_line}))
    print(f"{len(reached.took_s)} unit tests, {time.monotonic() - began:.0f} s under coverage", flush=True)
    in_turn = [m for at in range(options.sample) for mutants in drawn.values() for m in mutants[at : at + 1]]
    trials = [Trial(m, sources[m.path][1], stages_of(m, reached)) for m in in_turn]
    results = run_all(trials, tree, reached, jobs=options.jobs, until=time.monotonic() + 60 * options.minutes)
    return report(options, found, results, sources)


def report(
    options: argparse.Namespace,
    found: dict[str, list[Mutant]],
    results: dict[Mutant, str],
    sources: dict[str, tuple[str, bytes]],
) -> int:
    failed = False
    for room, mutants in found.items():
        tried = [m for m in results if m.room == room and results[m] != "broken"]
        alive = sorted((m for m in tried if results[m] != "killed"), key=lambda m: (m.path, m.start))
        share = 1 - len(alive) / len(tried) if tried else 0.0
        print(f"\n{room}: {len(tried)} of {len(mutants)} mutants tried, {share:.1%} killed, {len(alive)} survived")
        for m in alive:
            why = " (no test comes here)" if results[m] == "unreached" else ""
            print(f"  {m.path}:{m.lines[0]} {m.function}{why}\n{m.diff(sources[m.path][1])}")
        failed |= room in JUDGED and share < LEAST
    broken = [m for m in results if results[m] == "broken"]
    for m in broken:
        print(f"could not be run: {m.path}:{m.lines[0]} {m.before!r} -> {m.after!r}")
    return int(options.check and (failed or bool(broken)))


if __name__ == "__main__":
    sys.exit(main())
