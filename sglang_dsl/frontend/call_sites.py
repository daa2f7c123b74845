"""Call sites: which statement of which function appends, as a stable number and an `Origin` for messages.

A site's number counts the statements of its function that can append (`+=` and calls of State's and Branches' methods)
in source order, so an edit in another function, a comment or an unrelated line changes no node id. Sites are looked up
on every append; each code object is read once and each instruction's Origin is made once.

The user's line, also where a library of others stands between it and us.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Origin

if TYPE_CHECKING:
    from dis import Instruction


APPENDING_METHODS = frozenset(
    [
        "append",
        "fork",
        "join",
        "settle",
        "first",
        "quorum",
        "vote",
        "best",
        "concat",
        "map",
        "call",
        "switch",
        "loop",
        "role",
        "system",
        "user",
        "assistant",
        "var_scope",
    ]
)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_INPLACE_ADD = 13  # the argument of BINARY_OP for `+=` (CPython 3.11 to 3.14, Include/opcode.h NB_INPLACE_ADD)


class CallSite(NamedTuple):
    """Where an append stands. `label`: the number in the program's own body, `name.number` in another function."""

    label: str
    origin: Origin


class CallSites:
    """The sites of one program. Owner: the Program; entries live as long as it does. Thread-safe without a lock: a table is
    only read once it is whole, and two threads that fill it at once write the same.
    """

    __slots__ = ("_bodies", "_codes", "_known", "_numbers", "_program")

    def __init__(self, program: str, body: CodeType | None) -> None:
        self._program = program
        self._bodies: list[CodeType] = [] if body is None else [body]
        self._codes: dict[int, CodeType] = {}  # keeps each code object alive, so that its id stays its own
        self._numbers: dict[int, dict[int, int]] = {}
        self._known: dict[tuple[int, int], CallSite] = {}

    def at(self, frame: FrameType) -> CallSite:
        """The site at which `frame` stands now."""
        key = (id(frame.f_code), frame.f_lasti)
        site = self._known.get(key)
        return site if site is not None else self._learn(key, frame.f_code)

    def know_body(self, code: CodeType) -> None:
        """Take `code` as the body of a nested program: its sites are named by number alone, its scope names it."""
        if not any(known is code for known in self._bodies):
            self._bodies.append(code)

    def _learn(self, key: tuple[int, int], code: CodeType) -> CallSite:
        numbers = self._numbers.get(key[0])
        if (
            numbers is None
        ):  # several threads may be here at once: what they find is equal, and published when it is whole
            numbers = _numbers(code)
            self._codes[key[0]] = code
            self._numbers[key[0]] = numbers
        number = numbers.get(key[1])
        # an append in a form the table does not know (exec, functools.partial, ...) is named by its instruction
        place = str(number) if number is not None else f"at{key[1]}"
        label = place if any(code is body for body in self._bodies) else f"{code.co_name.strip('<>')}.{place}"
        site = self._known[key] = CallSite(label, origin_of(code, key[1], self._program))
        return site


def origin_of(code: CodeType, lasti: int, program: str = "") -> Origin:
    """The source range of the instruction at byte offset `lasti`."""
    positions: tuple[int | None, ...] = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = positions
    if line is None:
        return Origin(code.co_filename, code.co_firstlineno, program)
    on_one_line = end_line == line and column is not None and end_column is not None
    if not on_one_line or column is None or end_column is None:
        return Origin(code.co_filename, line, program)
    return Origin(code.co_filename, line, program, column, end_column)


def caller_origin() -> Origin:
    """The user's line: the innermost frame outside of this package. For messages only."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Origin("<unknown>", 0) if frame is None else origin_of(frame.f_code, frame.f_lasti)


def _numbers(code: CodeType) -> dict[int, int]:
    """Byte offset -> number, for the instructions that can append. While a Python function is called the offset points
    into the inline cache behind the call, so every offset up to the next instruction counts.
    """
    import dis

    instructions = list(dis.get_instructions(code))
    ends = [instruction.offset for instruction in instructions[1:]] + [len(code.co_code)]
    numbers: dict[int, int] = {}
    number = 0
    method_starts: set[tuple[int | None, int | None]] = set()
    for instruction, end in zip(instructions, ends, strict=True):
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and instruction.argval in APPENDING_METHODS:
            method_starts.add(_start(instruction))
        elif _can_append(instruction, method_starts):
            number += 1
            numbers.update((offset, number) for offset in range(instruction.offset, end, 2))
    return numbers


def _can_append(instruction: Instruction, method_starts: set[tuple[int | None, int | None]]) -> bool:
    if instruction.opname == "BINARY_OP":
        return instruction.arg == _INPLACE_ADD
    return instruction.opname.startswith("CALL") and _start(instruction) in method_starts


def _start(instruction: Instruction) -> tuple[int | None, int | None]:
    where = instruction.positions
    return (where.lineno, where.col_offset) if where is not None else (None, None)


_NOT_THE_USERS = tuple(
    {
        *(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    }
)


def is_library(code: CodeType) -> bool:
    """Whether code is Python's own, ours, of an installed package, or written by one (a dataclass's `__eq__`)."""
    written = code.co_filename == "<string>" and code.co_name.startswith("__")
    return written or code.co_filename.startswith((*_NOT_THE_USERS, "<frozen", "<attrs generated"))


def user_origin() -> Origin:
    """The innermost frame that belongs to no library; else the innermost outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code):
            return origin_of(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return caller_origin()
