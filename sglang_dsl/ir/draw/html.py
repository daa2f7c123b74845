"""One self-contained HTML page: zoom, search, folding, and the exact prompt of every node.

The page is `page/` (markup, style, scripts) with the graph put in as JSON. Prompt text can never execute: the JSON holds
no `<`, scripts put text in as text only, and a content policy allows exactly our own script and style by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from ..analysis import rendered
from ..execution import Meter, Outcome, Segment
from ..graph import Graph
from ..nodes import Gen, Join, ModelCall, Node, Plain, Raw, Reference, Select, Text, data_of
from ..outcome import PathText
from ..specs import spelled
from .labels import Names, missing_of, names_of, notes, printable, show, show_reference, title, ways, ways_taken
from .picture import folded_forks
from .status import PLANNED, RunAccount, TimelineBar, calls_of_run, unjoined

SCRIPTS = ("model.js", "layout.js", "paint.js", "panel.js", "timeline.js", "main.js")
SHOWN_VALUE_CHARACTERS = 20_000
SHOWN_TOKENS = 2_000
FOLD_FROM = 12  # forks with more branches begin folded


def draw_html(account: RunAccount, meter: Meter | None, executed: Mapping[str, Outcome]) -> str:
    """The page. With a meter the prompt preview is the model's own rendering, with token counts. `executed`: outcomes by the
    ids of the run, for the timeline.
    """
    graph = account.graph
    style = _part("page.css")
    script = "".join(_part(name) for name in SCRIPTS)
    slots = {
        "POLICY": _policy(style, script),
        "TITLE": html.escape(_head(graph)),
        "STYLE": style,
        "DATA": script_safe_json(_page_data(account, meter, calls_of_run(graph, executed))),
        "SCRIPT": script,
    }
    return re.sub(r"@@([A-Z]+)@@", lambda slot: slots[slot[1]], _part("page.html"))  # one pass: text is never a slot


def script_safe_json(data: Any) -> str:
    """JSON that can stand inside a script element: no character of it can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _part(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A content security policy under which nothing but this very style and script can act, and nothing can be fetched."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _head(graph: Graph) -> str:
    return " – ".join(filter(None, (printable(graph.name) or "program", missing_of(graph))))


def _page_data(account: RunAccount, meter: Meter | None, calls: Sequence[TimelineBar]) -> dict[str, Any]:
    graph = account.graph
    known = _texts(graph, account.outcomes)
    page = _PageData(account, {} if meter is None else rendered(graph, meter, known))
    page.add(graph, sub=-1)
    page.count_users()
    return {
        "name": _head(graph),
        "model": meter.model if meter is not None else None,
        "ran": account.ran,
        "nodes": page.nodes,
        "subs": page.subs,
        "calls": [_call_entry(call, page.index) for call in calls],
    }


def _texts(graph: Graph, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """What each node adds to its prompt; a character that two nodes wrote stands where it became whole."""
    known = {node_id: outcome.text for node_id, outcome in outcomes.items()}
    torn = [node for node in graph if node.id in outcomes and (found := outcomes[node.id].torn) and found.head]
    for node in torn:
        above = graph.path(node.id)[-2::-1]
        first = next((n.id for n in above if known.get(n.id)), None)
        if first is None:
            continue
        path = PathText()
        for each in reversed(above):
            if (said := outcomes.get(each.id)) is not None:
                path.add(said.text, said.torn)
        if path.half:
            before = len(path.text) - 1
            path.add(outcomes[node.id].text, outcomes[node.id].torn)
            known[node.id] = path.text[before:]
            known[first] = known[first].removesuffix("\ufffd")
    return known


def _call_entry(call: TimelineBar, index: Mapping[str, int]) -> list[Any]:
    """[node, name, asked, admitted, first token, end], in seconds of the run."""
    meta = call.meta
    asked = meta.started_s if meta.asked_s is None else min(meta.asked_s, meta.started_s)
    times = (asked, meta.started_s, meta.first_token_s, meta.finished_s)
    return [index.get(call.node, -1), call.name, *(round(time, 6) for time in times)]


class _PageData:
    """Nodes and sub-graphs by index. Owner: one `_page_data`."""

    def __init__(self, account: RunAccount, segments: Mapping[str, Sequence[Segment]]) -> None:
        self.account = account
        self.names: Names = names_of(account.graph)
        self.outcomes = account.outcomes
        self.segments = segments
        self.nodes: list[dict[str, Any]] = []
        self.subs: list[dict[str, Any]] = []
        self.index: dict[str, int] = {}

    def add(self, graph: Graph, sub: int) -> None:
        """Add the nodes of a graph, which is sub-graph number `sub` (-1: the program itself)."""
        folded = folded_forks(graph, FOLD_FROM, self.account.status)
        aside = unjoined(graph)
        for node in graph:
            index = len(self.nodes)
            self.index[node.id] = index
            self.nodes.append(self._entry(node, sub))
            if node.context is not None and node.branch is not None and (node.context, node.branch) in aside:
                self.nodes[-1]["aside"] = True
            if (fork := folded.get(node.id)) is not None:
                groups = zip(fork.hidden, fork.like, strict=True)
                self.nodes[-1]["fold"] = {"shown": fork.shown, "more": [[len(group), like] for group, like in groups]}
            taken = ways_taken(node, self.outcomes, self.account.errors)
            for number, (label, inner) in enumerate(ways(node)):
                self.subs.append({"holder": index, "parent": sub, "label": label, "taken": taken[number]})
                self.add(inner, len(self.subs) - 1)

    def _entry(self, node: Node, sub: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": node.id,
            "kind": node.kind,
            "title": title(node, self.names),
            "context": self.index.get(node.context or "", -1),
            "sub": sub,
            "segments": list(self._segments_of(node)),
            "refs": self._indices(data_of(node)),
            **_facts(node, self.names),
        }
        if node.branch is not None:
            entry["branch"] = node.branch
        if node.control:
            entry["control"] = self._indices(node.control)
        if isinstance(node, Join):
            entry["fork"] = self.index.get(node.fork, -1)
            entry["tips"] = self._indices(node.tips)
        status = self.account.status.get(node.id, PLANNED)
        if self.account.ran:
            entry["state"] = status.state
        if status.error:
            entry["error"] = status.error
        if status.facts:
            entry["facts"] = list(status.facts)
        if (outcome := self.outcomes.get(node.id)) is not None:
            entry["outcome"] = _outcome_entry(outcome)
        return entry

    def _segments_of(self, node: Node) -> Iterator[list[Any]]:
        if node.id in self.segments:
            return _rendered_segments(node, self.segments[node.id])
        return _own_segments(node, self.names)

    def _indices(self, node_ids: Sequence[str]) -> list[int]:
        return [self.index[i] for i in dict.fromkeys(node_ids) if i in self.index]

    def count_users(self) -> None:
        """How many calls have each node's text in their prompt (`users`), and on how many ways that part (`ways`)."""
        for entry in self.nodes:
            entry["users"] = entry["ways"] = 0
        for entry in reversed(self.nodes):
            calls = entry["users"] + (entry["kind"] in ("gen", "select"))
            if entry["context"] >= 0:
                above = self.nodes[entry["context"]]
                above["ways"] += max(entry["ways"], int(calls > 0))
            elif entry["sub"] >= 0:
                above = self.nodes[self.subs[entry["sub"]]["holder"]]
            else:
                continue
            above["users"] += calls


def _facts(node: Node, names: Names) -> dict[str, Any]:
    facts: dict[str, Any] = {"notes": list(notes(node))}
    for name in ("name", "role", "size", "scope", "model"):
        if value := getattr(node, name, None):
            facts[name] = value
    if node.origin is not None:
        facts["origin"] = f"{node.origin.file}:{node.origin.line}"
        facts["statement"] = node.origin.statement
    if options := _options(node, names):
        facts["options"] = options
    return facts


def _options(node: Node, names: Names) -> list[list[str]]:
    """Name and value of what was asked for, where it is not the default."""
    match node:
        case Gen(sampling=sampling, constraint=constraint):
            default = Gen(id="", sampling=type(sampling)())
            pairs = [(f, getattr(sampling, f), getattr(default.sampling, f)) for f in type(sampling).__slots__]
            options = [[name, str(value)] for name, value, usual in pairs if value != usual]
            return options + ([[constraint.kind, constraint.text]] if constraint is not None else [])
        case Select(choices=choices, method=method):
            shown = [[f"choice {i}", c if isinstance(c, str) else show(c, names)] for i, c in enumerate(choices[:200])]
            return [["method", method], *shown]
        case Join(values=values, mode=mode, skipped=skipped):
            return [
                ["mode", mode],
                ["values", ", ".join(show(v, names) for v in values[:50]) + (", …" if len(values) > 50 else "")],
                *([["left out", ", ".join(map(str, skipped))]] if skipped else []),
            ]
    return []


def _own_segments(node: Node, names: Names) -> Iterator[list[Any]]:
    """[kind, text] or [kind, text, id of the node whose value it is] of what a node adds to the prompt, unrendered."""
    match node:
        case Text(pieces=pieces):
            for piece in pieces:
                match piece:
                    case Plain(text):
                        yield ["plain", text]
                    case Raw(text):
                        yield ["raw", text]
                    case Reference(node_id=node_id):
                        yield ["value", "{" + show_reference(piece, names) + "}", node_id]
        case Gen(name=name) | Select(name=name):
            yield ["generated", f"⟨{name or node.kind}⟩", node.id]


def _rendered_segments(node: Node, segments: Sequence[Segment]) -> Iterator[list[Any]]:
    """[kind, text, node id, tokens] of what a node adds to the prompt, as the model renders it."""
    pieces = [p for p in node.pieces if isinstance(p, Reference) or p.text] if isinstance(node, Text) else []
    sources = pieces if len(pieces) == len(segments) else [None] * len(segments)
    for segment, source in zip(segments, sources, strict=True):
        kind = "control" if segment.control else "generated" if isinstance(node, ModelCall) else "plain"
        from_id = segment.node_id
        if isinstance(source, Reference):
            kind, from_id = "value", source.node_id
        elif isinstance(source, Raw):
            kind = "raw"
        yield [kind, segment.text, from_id, len(segment.token_ids) or segment.max_tokens]


def _outcome_entry(outcome: Outcome) -> dict[str, Any]:
    entry: dict[str, Any] = {"text": outcome.text[:SHOWN_VALUE_CHARACTERS]}
    if not isinstance(outcome.value, str) or outcome.value != outcome.text:
        try:
            value = json.dumps(outcome.value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):  # keys that are no text, a list in itself, or too deep
            value = spelled(outcome.value)
        entry["value"] = value[:SHOWN_VALUE_CHARACTERS]
    if outcome.winners is not None:
        entry["winners"] = list(outcome.winners)
    if (meta := outcome.meta) is not None:
        entry["tokens"] = [meta.prompt_tokens, meta.cached_tokens, meta.computed_tokens, meta.generated_tokens]
        entry["finish"] = meta.finish_reason
        entry["seconds"] = round(meta.finished_s - meta.started_s, 4)
        entry["choices"] = [[c.text, round(c.score, 4)] for c in meta.choices]
        if meta.token_scores:
            shown = meta.token_scores[:SHOWN_TOKENS]
            entry["chances"] = [
                [t.token_bytes.decode("utf-8", "replace"), round(math.exp(t.logprob), 4)] for t in shown
            ]
    return entry
