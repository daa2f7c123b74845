"""What a graph has to obey. `verify` raises the first broken rule of `rules.py`, `findings` lists all.

Sub-graphs (arms of a Switch, bodies of Loop and Map) are checked by the same rules: in them a node without a context
continues the text of the node that holds them, and values of the enclosing graph are in sight.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import GraphError, Origin
from .graph import Graph
from .nodes import Node, subgraphs
from .rules import HINTS, RULES, Site, role_after


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one node."""

    rule: str
    node_id: str
    what: str
    hint: str = ""
    origin: Origin | None = None


def verify(graph: Graph) -> None:
    """Check every rule.

    Raises:
        GraphError: the first broken rule, with its node and the user's line, and how many more there are.
    """
    found = findings(graph)
    if not found:
        return
    first = found[0]
    more = f" ({len(found) - 1} more: verify.findings(graph) lists them)" if len(found) > 1 else ""
    raise GraphError(
        f"rule {first.rule!r} at node {first.node_id!r}: {first.what}{more}", hint=first.hint, origin=first.origin
    )


def findings(graph: Graph) -> list[Finding]:
    """Every broken rule, in node order. Empty for a sound graph."""
    return list(_check(Site(graph)))


def _check(site: Site) -> Iterator[Finding]:
    for node in site.graph:
        for rule, check in RULES.items():
            for what in check(site, node):
                yield Finding(rule, node.id, what, HINTS.get(rule, ""), node.origin)
        yield from _check_inside(site, node)
        site.role_at[node.id] = role_after(site, node)
        site.seen[node.id] = node


def _check_inside(site: Site, node: Node) -> Iterator[Finding]:
    for inner in subgraphs(node):
        yield from _check(Site(inner, outer=ChainMap(site.seen, *site.outer.maps), open_role=site.role_before(node)))
