"""Reads out of each of the five formats what it says: nodes with their states and errors, and edges, by title.

What formats draw differently on purpose is put on one footing: a turn's marker is no node (its edges are passed on), and
neither are the boxes for an arm without nodes and for what a break leaves open.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from typing import Any, NamedTuple
from xml.etree import ElementTree

from sglang_dsl.ir.draw.labels import shorten
from sglang_dsl.ir.draw.status import ERROR_CHARACTERS

WORDS = {"failed": "failed", "cancelled": "cancelled", "not taken by the join": "lost", "not run": "unreached"}
NO_NODES = ("begin ", "end ")
ROLE = re.compile(r"^(system|user|assistant|tool): ")


class Facts(NamedTuple):
    """nodes: (title, state, error); flow: whose text goes on where; data: whose value goes where."""

    nodes: Counter[tuple[str, str, str]]
    flow: Counter[tuple[str, str]]
    data: Counter[tuple[str, str]]


def facts_of(form: str, text: str) -> Facts:
    return {"terminal": of_terminal, "mermaid": of_mermaid, "dot": of_dot, "svg": of_svg, "html": of_html}[form](text)


Node = tuple[str, str, str]


def settle(nodes: dict[Any, Node], flow: set[tuple[Any, Any]], data: set[tuple[Any, Any]]) -> Facts:
    """Pass on the edges of what is no node, and name everything by its title."""
    before: dict[Any, set[Any]] = {}
    after: dict[Any, set[Any]] = {}
    for source, target in flow:
        after.setdefault(source, set()).add(target)
        before.setdefault(target, set()).add(source)
    gone = [k for k, (title, _, _) in nodes.items() if title.startswith(NO_NODES) or title in ("nothing", "any")]
    for key in gone:
        sources, targets = before.pop(key, set()), after.pop(key, set())
        for source in sources:
            after[source].discard(key)
            after[source] |= targets
        for target in targets:
            before[target].discard(key)
            before[target] |= sources
        del nodes[key]
    names = {key: ROLE.sub("", title) for key, (title, _, _) in nodes.items()}
    named = Counter(
        (names[key], "" if state in ("planned", "done") else state, error) for key, (_, state, error) in nodes.items()
    )
    edges = {(source, target) for source, targets in after.items() for target in targets}
    beside = {(source, target) for source, target in data if source in names and target in names} - edges
    return Facts(
        named,
        Counter((names[a], names[b]) for a, b in edges if a in names and b in names),
        Counter((names[a], names[b]) for a, b in beside),
    )


def told(rows: list[str]) -> tuple[str, str]:
    """State and error of a row that tells them."""
    for row in rows:
        for words, state in WORDS.items():
            if row == words or row.startswith(f"{words}: "):
                return state, row[len(words) + 2 :]
    return "", ""


def of_mermaid(text: str) -> Facts:
    nodes: dict[str, Node] = {}
    states = {}
    flow, data = set(), set()
    for line in map(str.strip, text.splitlines()):
        if match := re.fullmatch(r"class ([n\d,]+) (failed|cancelled|lost|unreached)", line):
            states |= dict.fromkeys(match[1].split(","), match[2])
        elif match := re.fullmatch(r'(n\d+) (-->|-\.->|==>)(?:\|"(.*)"\|)? (n\d+)', line):
            (flow if match[2] != "-.->" or match[3] else data).add((match[1], match[4]))
        elif match := re.match(r'(n\d+)\W+?"(.*)"', line):
            rows = [re.sub(r"#(\d+);", lambda m: chr(int(m[1])), row) for row in match[2].split("<br/>")]
            nodes[match[1]] = (rows[0], "", told(rows[1:])[1])
    return settle({k: (t, states.get(k, ""), e) for k, (t, _, e) in nodes.items()}, flow, data)


def of_dot(text: str) -> Facts:
    nodes: dict[str, Node] = {}
    flow, data = set(), set()
    for line in map(str.strip, text.splitlines()):
        if match := re.match(r"(n\d+) -> (n\d+) \[style=(\w+)", line):
            (data if match[3] == "dotted" else flow).add((match[1], match[2]))
        elif match := re.match(r'(n\d+) \[label=(?:"((?:[^"\\]|\\.)*)"|<<s>(.*)>), fillcolor', line):
            if match[2] is not None:
                rows = [re.sub(r"\\(.)", r"\1", row) for row in re.split(r"(?<!\\)\\n", match[2])]
            else:
                rows = [html.unescape(row) for row in match[3].replace("</s>", "").split("<br/>")]
            state = re.search(r'class="(\w+)"', line)
            nodes[match[1]] = (rows[0], state[1] if state else "", told(rows[1:])[1])
    return settle(nodes, flow, data)


def of_svg(text: str) -> Facts:
    nodes: dict[str, Node] = {}
    flow, data = set(), set()
    for element in ElementTree.fromstring(text).iter():
        if "data-key" in element.attrib:
            rows = (element[0].text or "").split("\n")
            nodes[element.attrib["data-key"]] = (
                element.attrib["data-title"],
                element.attrib["class"],
                told(rows[1:])[1],
            )
        elif "data-from" in element.attrib:
            kinds = data if element.attrib["data-kind"] in ("data", "control") else flow
            kinds.add((element.attrib["data-from"], element.attrib["data-to"]))
    return settle(nodes, flow, data)


def of_html(text: str) -> Facts:
    """From the data that the page draws; that it draws them is a test of the browser's."""
    page = json.loads(re.search(r'<script type="application/json" id="graph">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    nodes: dict[int, Node] = {}
    flow: set[tuple[int, int]] = set()
    data: set[tuple[int, int]] = set()
    ends: dict[int, list[int]] = {}
    starts: dict[int, list[int]] = {}
    for index, node in enumerate(page["nodes"]):
        if node["context"] < 0:
            starts.setdefault(node["sub"], []).append(index)

    def ends_of(index: int) -> list[int]:
        if index in ends:
            return ends[index]
        found: list[int] = []
        for sub, held in enumerate(page["subs"]):
            if held["holder"] == index:
                tip = tip_of(sub)
                found += ends_of(tip) if tip is not None else [index]
        ends[index] = found or [index]
        return ends[index]

    def tip_of(sub: int) -> int | None:
        aside: set[int] = set()
        tip = None
        for index, node in enumerate(page["nodes"]):
            if node["sub"] == sub:
                if "branch" in node or node["context"] in aside:
                    aside.add(index)
                else:
                    tip = index
        return tip

    for index, node in enumerate(page["nodes"]):
        error = shorten(node.get("error", ""), ERROR_CHARACTERS) if node.get("state") in ("failed", "cancelled") else ""
        nodes[index] = (node["title"], node.get("state", ""), error)
        if node["kind"] == "join":
            flow |= {(end, index) for tip in node["tips"] for end in ends_of(tip)}
            at = node["context"]
            while at >= 0 and at != node["fork"]:
                at = page["nodes"][at]["context"]
            if (at >= 0 and node["context"] != node["fork"]) or not node["tips"]:
                flow |= {(node["context"], index)}
            continue
        if node["context"] >= 0:
            flow |= {(end, index) for end in ends_of(node["context"])}
        elif node["sub"] >= 0 and starts[node["sub"]][0] == index:
            flow.add((page["subs"][node["sub"]]["holder"], index))
        data |= {(source, index) for source in node["refs"]}
        if node["sub"] < 0:
            before = page["nodes"][node["context"]].get("control", []) if node["context"] >= 0 else []
            data |= {(source, index) for source in node.get("control", []) if source not in before}
    for sub, held in enumerate(page["subs"]):
        if not any(node["sub"] == sub for node in page["nodes"]):
            nodes[-1 - sub] = ("nothing", "", "")
            flow.add((held["holder"], -1 - sub))
    return settle(nodes, flow, data)


class Line(NamedTuple):
    parts: list[str]
    inside: list[Any]


def of_terminal(text: str) -> Facts:
    root = Line([], [])
    stack = [root]
    for line in text.splitlines()[1:]:
        if not line.strip():
            continue
        guides = re.match(r"(?:│   |    )*(?:├── |└── )", line)
        assert guides is not None, line
        depth = len(guides[0]) // 4
        made = Line(line[len(guides[0]) :].split("  "), [])
        del stack[depth:]
        stack[-1].inside.append(made)
        stack.append(made)
    nodes: dict[int, Node] = {}
    flow: set[tuple[int, int]] = set()
    uses: list[tuple[int, str]] = []
    numbers: dict[str, int] = {}
    forks: dict[str, tuple[int, set[int]]] = {}

    def walk(lines: list[Line], sources: set[int]) -> set[int]:
        here = sources
        last: tuple[int, set[int]] | None = None
        for line in lines:
            name, *facts = line.parts
            if re.fullmatch(r"system|user|assistant|tool", name):
                here = walk(line.inside, here)
                continue
            key = len(nodes)
            state, error = told(facts)
            nodes[key] = (name.removeprefix("“").removesuffix("”"), state, error)
            numbers.update((fact, key) for fact in facts if re.fullmatch(r"#\d+", fact))
            mentioned = [number for fact in facts if fact.startswith("⇠ ") for number in fact[2:].split(", ")]
            if name.startswith("join"):
                fork, tips = forks[mentioned[0]] if mentioned else last  # type: ignore[misc]
                flow.update((tip, key) for tip in tips)
                flow.update((source, key) for source in here if source != fork)
                here = {key}
                continue
            uses.extend((key, number) for number in mentioned)
            flow.update((source, key) for source in here)
            here = {key}
            if name.startswith("fork × "):
                tips = set()
                for branch in line.inside:
                    tips |= walk(branch.inside, {key})
                if len(line.inside) < int(name.removeprefix("fork × ")):
                    tips.add(key)
                last = (key, tips)
                forks.update((fact, last) for fact in facts if re.fullmatch(r"#\d+", fact))
            elif line.inside:
                here = set().union(*(walk(way.inside, {key}) for way in line.inside))
        return here

    walk(root.inside, set())
    return settle(nodes, flow, {(numbers[number], key) for key, number in uses})
