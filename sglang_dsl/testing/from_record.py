"""From a recorded node to a pytest: the program runs on the mock with the recorded answers, and the node must be as it was."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UnknownNameError
from ..ir.nodes import Gen, ModelCall, Node, Plain, Raw, Select, Text
from ..ir.record import RunRecord

_TEST = '''\
"""From a record of {program} (seed {seed}): what {title} was asked and what it answered."""

from sglang_dsl import RunOptions
from sglang_dsl.testing import mock

from {module} import {program}

ANSWERS = {answers}
ASKED = {asked}


def test_{function}_as_recorded():
    backend = mock(ANSWERS)
    {program}.run({arguments}options=RunOptions(backend=backend, seed={seed}))
    (call,) = backend.calls({node!r})
    for text in ASKED:
        assert text in call.prompt
    assert call.text == ANSWERS[{node!r}]
'''


def test_source(record: RunRecord, node: str, *, file: Path, program: str, arguments: Mapping[str, Any]) -> str:
    """The source of a pytest for one model call of a record.

    Args:
        node: its id, or the name of a call (the first of that name).
        file, program: where the program stands, for the import.
        arguments: what the program is run with (a record holds what was asked, not the arguments).

    Raises:
        UnknownNameError: the record has no finished model call of this id or name.
    """
    chosen = _call(record, node)
    title = f"gen {chosen.name!r}" if isinstance(chosen, Gen) else f"select {chosen.name!r}"
    return _TEST.format(
        program=program,
        seed=record.seed,
        title=title if chosen.name else f"node {chosen.id}",
        module=file.stem,
        answers=_lines({n.id: record.outcomes[n.id].text for n in _calls(record).values()}),
        asked=_lines([text for n in record.graph.path(chosen.id) for text in _plain_texts(n)]),
        function=re.sub(r"\W+", "_", f"{program}_{chosen.name or chosen.id}").strip("_").lower(),
        arguments="".join(f"{name}={value!r}, " for name, value in arguments.items()),
        node=chosen.id,
    )


def _calls(record: RunRecord) -> dict[str, ModelCall]:
    return {n.id: n for n in record.graph if isinstance(n, (Gen, Select)) and n.id in record.outcomes}


def _call(record: RunRecord, node: str) -> ModelCall:
    calls = _calls(record)
    found = calls.get(node) or next((n for n in calls.values() if n.name == node), None)
    if found is None:
        known = [*calls, *{n.name for n in calls.values() if n.name}]
        near = difflib.get_close_matches(node, known, 3) or known[:8]
        raise UnknownNameError(
            f"the record of {record.program} has no finished call {node!r}", hint=f"one of: {', '.join(near)}"
        )
    return found


def _plain_texts(node: Node) -> list[str]:
    return (
        [p.text for p in node.pieces if isinstance(p, (Plain, Raw)) and p.text.strip()]
        if isinstance(node, Text)
        else []
    )


def _lines(values: dict[str, str] | list[str]) -> str:
    """A literal with an entry per line."""
    if isinstance(values, dict):
        return "{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in values.items()) + "}"
    return "[\n" + "".join(f"    {value!r},\n" for value in values) + "]"
