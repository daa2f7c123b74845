"use strict";
// The program as the page holds it: nodes, and the blocks they are laid out in.
//
//   Sequence   { type: "sequence", items }                 things one below the other
//   Card       { type: "card", role, rows }                a stretch of one turn; each row is a node
//   Fan        { type: "fan", node, columns, folded }      a fork and its branches, or a node and its sub-graphs
//
// A fan's column is { label, body: Sequence, sub, aside, main }. aside: no join gathers the branch, so nothing flows from it into
// what follows; main: no branch, but what the state that forked said before its join. Each block has an axis: where, from its
// left edge, the line of the program runs through it.

const program = JSON.parse(document.getElementById("graph").textContent);
const nodes = program.nodes;
const FOLD_FROM = 13; // a fork of so many branches starts folded
const FOLD_SHOWN = 2; // of so many branches
const CARD_ROWS = 8;

const Kind = {
  gen: { color: "gen", word: "gen: a model call" },
  select: { color: "select", word: "select: best of several" },
  fork: { color: "fork", word: "fork and join" },
  join: { color: "fork" },
  switch: { color: "way", word: "switch, loop, map" },
  loop: { color: "way" },
  map: { color: "way" },
  tool: { color: "tool", word: "tool" },
  break: { color: "break", word: "break: not known before a run" },
  input: { color: "value", word: "input or value" },
  return: { color: "value" },
};
const Words = { failed: "failed", cancelled: "cancelled", lost: "not taken by the join", unreached: "not run" };
const colorOf = (node) => (Kind[node.kind] || { color: "soft" }).color;
const isCall = (node) => node.kind === "gen" || node.kind === "select";

// Nodes that continue a node's text, those that start its branches, and those that start each sub-graph.
const followers = nodes.map(() => []);
const branches = nodes.map(() => []);
const starts = new Map(); // sub-graph index (-1: the program) -> nodes without a context
nodes.forEach((node, index) => {
  node.index = index;
  if (node.context < 0) {
    if (!starts.has(node.sub)) starts.set(node.sub, []);
    starts.get(node.sub).push(index);
  } else {
    (node.branch === undefined ? followers : branches)[node.context].push(index);
  }
});
const subsOf = new Map();
program.subs.forEach((sub, index) => {
  if (!subsOf.has(sub.holder)) subsOf.set(sub.holder, []);
  subsOf.get(sub.holder).push(index);
});

// What mentions a node's value.
const mentions = nodes.map(() => []);
for (const node of nodes) for (const source of node.refs) mentions[source].push(node.index);

// A prefix: a stretch of text between two fork points. Where several calls share it, it has a colour.
const prefixes = [];
for (const node of nodes) {
  const above = node.context >= 0 ? nodes[node.context] : node.sub >= 0 ? nodes[program.subs[node.sub].holder] : null;
  const fresh = above === null || above.kind === "fork" || (node.context < 0 && node.sub >= 0);
  node.prefix = fresh ? prefixes.push(node.index) - 1 : above.prefix;
}
const hueOf = (prefix) => (222 + prefix * 137.508) % 360;
// Tokens a node adds to its context, and those of the whole prompt before it (both 0 without a model's meter).
const tokensOf = (node) => node.segments.reduce((sum, s) => sum + (s[3] || 0), 0);
for (const node of nodes) {
  const above = node.context >= 0 ? node.context : node.sub >= 0 ? nodes[program.subs[node.sub].holder].context : -1;
  node.promptTokens = above >= 0 ? nodes[above].promptTokens + tokensOf(nodes[above]) : 0;
}
const isShared = (node) => node.ways > 1;

function sequence(first, role) {
  const items = [];
  let level = first;
  let card = null;
  let open = role;
  const newCard = (shown) => {
    card = { type: "card", role: shown, rows: [], marks: [] };
    items.push(card);
    return card;
  };
  while (level.length) {
    const next = [];
    for (const index of level) {
      const node = nodes[index];
      if (node.kind === "role_begin") {
        newCard(node.role).marks.push(index);
        open = node.role;
      } else if (node.kind === "role_end") {
        (card || newCard(open)).marks.push(index);
        card = null;
        open = null;
      } else if (node.kind === "text" || isCall(node)) {
        if (card === null || card.rows.length >= CARD_ROWS) newCard(open);
        card.rows.push(index);
      } else {
        card = null;
        items.push(fanOrPill(node, open));
      }
      next.push(...followers[index]);
    }
    if (level.length > 1) card = null;
    level = next;
  }
  return { type: "sequence", items: withMainColumns(items) };
}

const joinOf = (item, fork) => item.type === "card" && item.pill && nodes[item.rows[0]].kind === "join" && nodes[item.rows[0]].fork === fork;

// What stands between a fork and its join runs beside the branches: it becomes a column of the fan.
function withMainColumns(items) {
  const kept = [];
  for (let at = 0; at < items.length; at++) {
    const item = items[at];
    kept.push(item);
    if (item.type !== "fan" || item.ways) continue;
    const join = items.findIndex((other, place) => place > at && joinOf(other, item.node));
    if (join <= at + 1) continue;
    const body = { type: "sequence", items: withMainColumns(items.slice(at + 1, join)) };
    item.columns.push({ label: "", start: [], sub: -1, body, taken: true, aside: false, main: true });
    at = join - 1;
  }
  return kept;
}

function fanOrPill(node, role) {
  const columns = branches[node.index].map((start) => ({ label: String(nodes[start].branch), start: [start], sub: -1 }));
  const byBranch = new Map();
  for (const column of columns) {
    if (byBranch.has(column.label)) byBranch.get(column.label).start.push(...column.start);
    else byBranch.set(column.label, column);
  }
  const ways = (subsOf.get(node.index) || []).map((sub) => ({
    label: program.subs[sub].label, start: starts.get(sub) || [], sub,
  }));
  const all = [...byBranch.values(), ...ways];
  if (!all.length) return { type: "card", role: null, rows: [node.index], marks: [], pill: true };
  for (const column of all) {
    column.body = sequence(column.start, role);
    column.taken = column.sub < 0 || program.subs[column.sub].taken;
    column.aside = column.sub < 0 && column.start.some((start) => nodes[start].aside);
  }
  return { type: "fan", node: node.index, columns: all, folded: all.length >= FOLD_FROM, ways: ways.length > 0, aside: all.every((c) => c.aside) };
}

const root = sequence(starts.get(-1) || [], null);

// Every fan, and for each node the fans around it: what has to unfold to show it.
const fans = [];
const around = nodes.map(() => []);
(function walk(block, outer) {
  if (block.type === "sequence") for (const item of block.items) walk(item, outer);
  else if (block.type === "card") for (const index of [...block.rows, ...block.marks]) around[index] = outer;
  else {
    fans.push(block);
    around[block.node] = outer;
    if (!outer.length && !followers[block.node].length) block.aside = false; // nothing runs on past its branches
    block.columns.forEach((column, place) => walk(column.body, [...outer, { fan: block, place }]));
  }
})(root, []);

// The exact context path of a node, through the graphs around it: what stands before it in its prompt.
function contextPath(index) {
  const path = [];
  for (let at = index; at >= 0; ) {
    path.push(at);
    const node = nodes[at];
    at = node.context >= 0 ? node.context : node.sub >= 0 ? nodes[program.subs[node.sub].holder].context : -1;
  }
  return path.reverse();
}
