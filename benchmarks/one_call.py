"""How many functions and files one text and one call pass through, from calling the program to having read its answer.

    python benchmarks/one_call.py [--check] [--against OLDTREE] [--callers] [--trace]

The program is `s += "Q"; s += gen("a"); return s["a"]`, the backend the mock, which was opened before and is closed after. Counted is, of all
threads together, what runs from the call of the program until its answer has been read and the engine's thread has come to rest:
what that thread still does for the call after the answer, such as giving pages back, is counted. The books that an engine checks
when it has been idle for a while belong to no call; here it is not idle for long enough.

* A *function* is a distinct code object of a `def` or a `lambda` in the package that was entered at least once; methods,
  properties, closures and generator functions are functions. Comprehensions and generator expressions belong to the function
  they stand in; bodies of modules and classes are not counted, nor methods that `dataclasses` generates (they have no
  line in the package; their number is printed beside).
* A *file* is a module of the package in which a function was entered.
* *Calls* are entries of functions; resuming a generator is one, too.

The first run in a process ("cold") also does what is done once: it imports what is imported late, reads sources for line numbers, fills
caches. The bars are for a later run ("warm"). Also printed: the longest chain of imports in the package, in modules.
`--against` measures another copy of the package (for instance a git worktree) with this same script.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MAX_FUNCTIONS, MAX_FILES, MAX_CHAIN = 300, 45, 14
WARMING_RUNS = 3
QUIET_S = 0.1  # no function of the package entered for so long: the engine's thread rests
IDLE_CHECK_S = 600.0  # longer than this takes
CO_OPTIMIZED = 0x1  # set for functions; neither for modules nor for bodies of classes
WITHIN = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class Tally:
    """What of the package is entered while `recording`, in all threads that begin after it was `installed`."""

    def __init__(self, package: Path) -> None:
        self._inside = f"{package}{os.sep}"
        self.recording = False
        self.calls: Counter[CodeType] = Counter()  # in order of first entry
        self.callers: Counter[tuple[CodeType | None, CodeType]] = Counter()
        self.order: list[tuple[int, str]] = []  # every call: depth of the stack within the package, and the function
        self.generated = 0
        self.last_entry = 0.0

    def install(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.recording:
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._inside):
            if code.co_filename == "<string>" and frame.f_globals.get("__name__", "").startswith("sglang_dsl"):
                self.generated += 1
            return
        if not code.co_flags & CO_OPTIMIZED or code.co_name in WITHIN:
            return
        self.last_entry = time.perf_counter()
        self.calls[code] += 1
        above = self._stack_above(frame)
        self.callers[above[0] if above else None, code] += 1
        self.order.append((len(above), name_of(code)))

    def _stack_above(self, frame: FrameType) -> list[CodeType]:
        """The functions of the package that wait for this one, the nearest first."""
        found = []
        at = frame.f_back
        while at is not None:
            if at.f_code.co_filename.startswith(self._inside) and at.f_code.co_name not in WITHIN:
                found.append(at.f_code)
            at = at.f_back
        return found

    def figures(self) -> dict[str, Any]:
        """Plain data: the files in order of first entry, each with its functions and who called them."""
        files: dict[str, list[dict[str, Any]]] = {}
        for code, calls in self.calls.items():
            callers = [name_of(above) for (above, below) in self.callers if below is code and above is not None]
            function = {"name": qualified(code), "line": code.co_firstlineno, "calls": calls, "callers": callers}
            files.setdefault(code.co_filename.removeprefix(self._inside), []).append(function)
        return {"files": files, "generated": self.generated, "order": self.order}


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{qualified(code)}"


def qualified(code: CodeType) -> str:
    return code.co_qualname.replace(".<locals>", "")


def measure() -> dict[str, Any]:
    """Both runs, in this process, of the package that Python finds here."""
    import sglang_dsl
    from sglang_dsl import RunOptions, State, gen, program
    from sglang_dsl.testing import mock

    @program
    def ask(s: State) -> str:
        s += "Q"
        s += gen("a")
        return s["a"]

    package = Path(sglang_dsl.__file__).parent
    found: dict[str, Any] = {"package": str(package), "chain": longest_chain(package)}
    current = Tally(package)
    current.install()  # before the engine's thread begins
    engine_config = mock.__globals__["EngineConfig"]  # wherever it is defined in the tree that is measured
    config = engine_config(idle_check_after_s=IDLE_CHECK_S)
    with mock(["one"] * (WARMING_RUNS + 2), config=config) as backend:
        options = RunOptions(backend=backend)

        def once(tally: Tally) -> None:
            tally.recording = True
            assert ask.run(options=options).value == "one"
            while time.perf_counter() - tally.last_entry < QUIET_S:
                time.sleep(QUIET_S / 4)
            tally.recording = False

        once(current)
        found["cold"] = current.figures()
        for _ in range(WARMING_RUNS):
            ask.run(options=options)
        time.sleep(QUIET_S)
        current.__init__(package)  # type: ignore[misc]  # the engine's thread holds this very object
        once(current)
        found["warm"] = current.figures()
    current.remove()
    return found


# --- the chain of imports -------------------------------------------------------------------------------------------


def longest_chain(package: Path) -> list[str]:
    """Modules of the package, each importing the next when it is imported itself; the longest such path."""
    imports = imports_at_once(package)
    longest: dict[str, list[str]] = {}

    def from_(module: str) -> list[str]:
        if module not in longest:
            longest[module] = []  # a circle would end here
            longest[module] = [module, *max(map(from_, sorted(imports[module])), key=len, default=[])]
        return longest[module]

    return max(map(from_, sorted(imports)), key=len)


def imports_at_once(package: Path) -> dict[str, set[str]]:
    """Module -> modules of the package that its import statements name; not those in functions or for types only."""
    modules = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: _imported(name, path, modules) - {name} for name, path in modules.items()}


def _imported(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    found = set()
    for statement in _at_once(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            base = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            base = base[: len(base) - statement.level + 1] if statement.level else []
            base += statement.module.split(".") if statement.module else []
            for alias in statement.names:
                submodule = ".".join([*base, alias.name])
                found.add(submodule if submodule in modules else ".".join(base))
    return found & set(modules)


def _at_once(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run at import, those within `if` and `try` too."""
    found = []
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            found += _at_once(statement.orelse)
            continue
        found.append(statement)
        if isinstance(statement, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                found += _at_once(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                found += _at_once(handler.body)
    return found


# --- printing -------------------------------------------------------------------------------------------------------


def totals(figures: dict[str, Any]) -> tuple[int, int, int]:
    """Files, functions, calls."""
    functions = [function for file in figures["files"].values() for function in file]
    return len(figures["files"]), len(functions), sum(function["calls"] for function in functions)


def show(figures: dict[str, Any], *, callers: bool) -> None:
    """The files in order of first entry."""
    for file, functions in figures["files"].items():
        print(f"{file}: {len(functions)} functions, {sum(function['calls'] for function in functions)} calls")
        for function in functions:
            by = f"  <- {', '.join(function['callers'])}" if callers else ""
            print(f"    {function['line']:>4} {function['name']} x{function['calls']}{by}")


def elsewhere(tree: Path) -> dict[str, Any]:
    """The same figures of the package in another folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if Path(found["package"]).parent != tree.resolve():
        raise SystemExit(f"measured {found['package']}, not {tree}")
    return found


def rooms(figures: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Files and functions by folder."""
    found: dict[str, tuple[int, int]] = {}
    for file, functions in figures["files"].items():
        room = str(Path(file).parent)
        files, so_far = found.get(room, (0, 0))
        found[room] = files + 1, so_far + len(functions)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"fail above {MAX_FILES} files, {MAX_FUNCTIONS} functions, {MAX_CHAIN} modules",
    )
    parser.add_argument("--against", type=Path, help="a folder that holds another copy of the package")
    parser.add_argument("--callers", action="store_true", help="print who called each function")
    parser.add_argument("--trace", action="store_true", help="print every call of the warm run, indented by depth")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    options = parser.parse_args()
    found = measure()
    if options.json:
        print(json.dumps(found))
        return 0
    if options.trace:
        for depth, name in found["warm"]["order"]:
            print(f"{'  ' * depth}{name}")
        return 0
    show(found["warm"], callers=options.callers)
    print(f"\nlongest chain of imports, {len(found['chain'])} modules: {' -> '.join(found['chain'])}\n")
    trees = {"now": found} | ({"before": elsewhere(options.against)} if options.against else {})
    for name, tree in trees.items():
        for run in ("cold", "warm"):
            files, functions, calls = totals(tree[run])
            generated = tree[run]["generated"]
            print(
                f"{name}, {run}: {files} files, {functions} functions, {calls} calls (and {generated} of generated methods)"
            )
        print(f"{name}: longest chain of imports {len(tree['chain'])} modules")
    print()
    by_room = {name: rooms(tree["warm"]) for name, tree in trees.items()}
    for room in sorted({room for counted in by_room.values() for room in counted}):
        cells = [
            f"{name} {counted.get(room, (0, 0))[0]:>2} files {counted.get(room, (0, 0))[1]:>3} functions"
            for name, counted in by_room.items()
        ]
        print(f"{room:<32} {'    '.join(cells)}")
    files, functions, _ = totals(found["warm"])
    above = files > MAX_FILES or functions > MAX_FUNCTIONS or len(found["chain"]) > MAX_CHAIN
    return int(options.check and above)


if __name__ == "__main__":
    sys.exit(main())
