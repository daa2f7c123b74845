// Where everything stands. Each block gets `w` and `h` bottom up, then `x` and `y` (its top left corner) top down.

const CARD_W = 272;
const PAD = 10;
const ROW_H = 20;
const HEAD_H = 26;
const GAP = 26; // between things of a sequence
const COLUMN_GAP = 28;
const FAN_GAP = 44; // between a fork and its branches
const PILL_H = 32;
const GRID_FROM = 13; // so many unfolded branches stand in rows, not in one line
const FRAME = 14;
const ASIDE = 34; // between the line and the branches beside it

const pen = document.createElement("canvas").getContext("2d");
const FONT = '13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const BOLD = "600 " + FONT;
const SMALL = FONT.replace("13px", "11.5px");

const widths = new Map();
function textWidth(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}

// `text` cut to a width, with an ellipsis where something is missing.
function fitText(text, width, font) {
  if (textWidth(text, font) <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(text.slice(0, middle) + "…", font) <= width) low = middle;
    else high = middle - 1;
  }
  return text.slice(0, low).trimEnd() + "…";
}

// How many characters of `text` go on one line: broken after a word, or inside one that is too long.
function lineEnd(text, width, font) {
  if (textWidth(text, font) <= width) return text.length;
  const fits = fitText(text, width + textWidth("…", font), font).length - 1;
  const space = text.lastIndexOf(" ", fits);
  return space > fits / 2 ? space : fits;
}

// The lines of a text node, at most `limit`.
function linesOf(node, limit) {
  if (node.lines) return node.lines;
  const width = CARD_W - 2 * PAD - 8;
  let rest = node.segments.map((s) => s[1]).join("").slice(0, 400).replace(/\s+/g, " ").trim() || "(empty)";
  node.lines = [];
  while (rest && node.lines.length < limit - 1) {
    const end = lineEnd(rest, width, FONT);
    node.lines.push(rest.slice(0, end));
    rest = rest.slice(end).trimStart();
  }
  if (rest) node.lines.push(fitText(rest, width, FONT));
  return node.lines;
}

function rowHeight(node) {
  if (node.kind === "text") return linesOf(node, 3).length * 17 + 4;
  return ROW_H + 6 + (node.outcome && isCall(node) ? 19 : 0) + 17 * underlines(node).length;
}

// What stands below a call, tool or join in small type: its error, or that it was cancelled or lost; scores, votes, attempts.
function underlines(node) {
  node.below ??= [
    ...(node.facts || []).map((text) => [text, "soft"]),
    ...(Words[node.state] ? [[Words[node.state] + (node.error ? `: ${node.error}` : ""), node.state === "failed" ? "break" : "soft"]] : []),
  ];
  return node.below;
}

function measure(block) {
  if (block.type === "card") measureCard(block);
  else if (block.type === "fan") measureFan(block);
  else {
    block.h = 0;
    block.axis = 0;
    let right = 0;
    block.items.forEach((item, number) => {
      measure(item);
      block.axis = Math.max(block.axis, item.axis);
      right = Math.max(right, item.w - item.axis);
      block.h += item.h + (number ? gapAfter(block.items[number - 1]) : 0);
    });
    block.w = block.axis + right;
  }
}

const gapAfter = (item) => (item.type === "fan" ? FAN_GAP : GAP);

function measureCard(card) {
  if (card.pill) {
    const node = nodes[card.rows[0]];
    const widest = Math.max(textWidth(node.title, BOLD), ...underlines(node).map(([text]) => textWidth(text, SMALL)));
    card.w = Math.min(CARD_W, Math.max(96, widest + 44));
    card.h = PILL_H + 15 * underlines(node).length;
    card.axis = card.w / 2;
    return;
  }
  card.w = CARD_W;
  card.axis = card.w / 2;
  card.h = (card.role ? HEAD_H : 7) + card.rows.reduce((sum, index) => sum + rowHeight(nodes[index]), 0) + 6;
}

function measureFan(fan) {
  fan.head = { w: Math.max(104, textWidth(nodes[fan.node].title, BOLD) + 46), h: PILL_H };
  fan.shown = fan.folded ? shownOf(fan) : fan.columns;
  fan.more = fan.columns.length - fan.shown.length;
  for (const column of fan.shown) {
    measure(column.body);
    column.w = Math.max(column.body.w, 60) + (fan.ways ? 2 * FRAME : 0);
    column.h = Math.max(column.body.h, fan.ways ? 24 : 4) + (fan.ways ? HEAD_H + FRAME : 0);
  }
  fan.rows = gridRows(fan);
  const sizes = fan.rows.map((row) => [
    row.reduce((sum, c) => sum + c.w, 0) + (row.length - 1) * COLUMN_GAP + (fan.more ? COLUMN_GAP + 150 : 0),
    row.reduce((most, c) => Math.max(most, c.h), fan.more ? 64 : 0),
  ]);
  fan.framed = fan.rows.length > 1;
  fan.inner = {
    w: Math.max(...sizes.map((s) => s[0])) + (fan.framed ? 2 * FRAME : 0),
    h: sizes.reduce((sum, s) => sum + s[1], 0) + (sizes.length - 1) * COLUMN_GAP + (fan.framed ? 2 * FRAME : 0),
  };
  fan.rowHeights = sizes.map((s) => s[1]);
  if (fan.aside) { // the line runs on past the branches, which stand to its right
    fan.axis = fan.head.w / 2;
    fan.w = Math.max(fan.head.w + 30, fan.axis + ASIDE + fan.inner.w);
  } else {
    fan.w = Math.max(fan.head.w, fan.inner.w);
    fan.axis = fan.w / 2;
  }
  fan.h = fan.head.h + FAN_GAP + fan.inner.h;
}

// The columns of a folded fan: those that the page was told to show, because they stand for the others or differ from them.
function shownOf(fan) {
  const told = nodes[fan.node].fold;
  if (told && !fan.ways) return fan.columns.filter((c) => c.main || told.shown.includes(Number(c.label)));
  return fan.columns.length > FOLD_SHOWN ? fan.columns.slice(0, FOLD_SHOWN) : fan.columns.slice(0, 1);
}

// Branches in one line, or in a grid about as wide as it is high.
function gridRows(fan) {
  if (fan.shown.length < GRID_FROM) return [fan.shown];
  const area = fan.shown.reduce((sum, c) => sum + (c.w + COLUMN_GAP) * (c.h + COLUMN_GAP), 0);
  const width = Math.max(Math.sqrt(area * 1.7), fan.shown[0].w);
  const rows = [[]];
  let used = 0;
  for (const column of fan.shown) {
    if (used > 0 && used + column.w > width) {
      rows.push([]);
      used = 0;
    }
    rows[rows.length - 1].push(column);
    used += column.w + COLUMN_GAP;
  }
  return rows;
}

function place(block, x, y) {
  block.x = x;
  block.y = y;
  if (block.type === "sequence") {
    for (const item of block.items) {
      place(item, x + block.axis - item.axis, y);
      y += item.h + gapAfter(item);
    }
  } else if (block.type === "fan") {
    placeFan(block, x, y);
  }
}

function placeFan(fan, x, y) {
  fan.head.x = x + fan.axis - fan.head.w / 2;
  fan.head.y = y;
  fan.inner.x = fan.aside ? x + fan.axis + ASIDE : x + (fan.w - fan.inner.w) / 2;
  fan.inner.y = y + fan.head.h + FAN_GAP;
  let top = fan.inner.y + (fan.framed ? FRAME : 0);
  fan.rows.forEach((row, number) => {
    const wide = row.reduce((sum, c) => sum + c.w, 0) + (row.length - 1) * COLUMN_GAP + (fan.more ? COLUMN_GAP + 150 : 0);
    let left = fan.framed ? fan.inner.x + FRAME : fan.inner.x + (fan.inner.w - wide) / 2;
    for (const column of row) {
      column.x = left;
      column.y = top;
      place(column.body, left + (column.w - column.body.w) / 2, top + (fan.ways ? HEAD_H : 0));
      left += column.w + COLUMN_GAP;
    }
    if (fan.more) fan.stack = { x: left, y: top, w: 150, h: 64 };
    top += fan.rowHeights[number] + COLUMN_GAP;
  });
}

function layOut() {
  measure(root);
  place(root, 0, 0);
}
