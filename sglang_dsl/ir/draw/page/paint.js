// The picture: drawn on a canvas, only what is in view, without text where it would be too small to read.

const canvas = document.getElementById("canvas");
const brush = canvas.getContext("2d");
const view = { x: 0, y: 0, scale: 1 };
const TEXT_FROM = 0.42; // scale from which text is drawn
let colors = {};
let selected = -1;
let found = new Set();
let targets = []; // what can be clicked: { x, y, w, h, node } or { ..., act }

function readColors() {
  const style = getComputedStyle(document.documentElement);
  colors = {};
  for (const name of ["paper", "dots", "card", "line", "edge", "ink", "soft", "gen", "select", "fork", "way", "tool", "break", "value", "mark"]) {
    colors[name] = style.getPropertyValue("--" + name).trim();
    colors[name + "-wash"] = style.getPropertyValue("--" + name + "-wash").trim();
  }
  colors.dark = document.documentElement.dataset.theme === "dark";
}
const prefixColor = (node) => `hsl(${hueOf(node.prefix)} ${colors.dark ? "62% 64%" : "60% 52%"})`;

let waiting = false;
function repaint() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
  });
}

function paint() {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth, clientHeight } = canvas;
  if (canvas.width !== clientWidth * ratio || canvas.height !== clientHeight * ratio) {
    canvas.width = clientWidth * ratio;
    canvas.height = clientHeight * ratio;
  }
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.fillStyle = colors.paper;
  brush.fillRect(0, 0, clientWidth, clientHeight);
  paintDots(clientWidth, clientHeight);
  brush.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
  const seen = { x: -view.x / view.scale, y: -view.y / view.scale, w: clientWidth / view.scale, h: clientHeight / view.scale };
  targets = [];
  paintBlock(root, seen, 1);
  if (selected >= 0) paintRelations(seen);
  document.getElementById("scale").textContent = Math.round(view.scale * 100) + "%";
}

function paintDots(width, height) {
  const step = 24 * view.scale;
  if (step < 12) return;
  brush.fillStyle = colors.dots;
  for (let x = ((view.x % step) + step) % step; x < width; x += step)
    for (let y = ((view.y % step) + step) % step; y < height; y += step) brush.fillRect(x, y, 1.4, 1.4);
}

const inView = (b, seen, slack = 60) =>
  b.x + b.w + slack > seen.x && b.x - slack < seen.x + seen.w && b.y + b.h + slack > seen.y && b.y - slack < seen.y + seen.h;

function paintBlock(block, seen, alpha) {
  if (!inView(block, seen)) return;
  if (block.type === "card") paintCard(block, alpha);
  else if (block.type === "fan") paintFan(block, seen, alpha);
  else {
    block.items.forEach((item, number) => {
      const next = block.items[number + 1];
      if (next) paintStep(item, next, alpha);
      paintBlock(item, seen, alpha);
    });
  }
}

// The way from one thing of a sequence to the next. After a fan it comes from the end of each branch.
function paintStep(item, next, alpha) {
  const end = { x: next.x + next.w / 2, y: next.y };
  if (next.type === "fan") end.x = next.head.x + next.head.w / 2;
  if (item.type !== "fan") {
    curve(item.x + item.w / 2, item.y + item.h, end.x, end.y, colors.edge, alpha);
  } else if (item.framed) {
    curve(item.inner.x + item.inner.w / 2, item.inner.y + item.inner.h, end.x, end.y, colors.edge, alpha);
  } else {
    const low = item.inner.y + item.inner.h; // first straight down past the longest branch, then across
    for (const column of item.shown) {
      const dim = program.ran && item.ways && !column.taken ? alpha * 0.3 : alpha;
      const x = column.x + column.w / 2;
      curve(x, column.y + (item.ways ? column.h : column.body.h), x, low, colors.edge, dim);
      curve(x, low, end.x, end.y, colors.edge, dim);
    }
    if (item.more) {
      const x = item.stack.x + 70;
      curve(x, item.stack.y + item.stack.h, x, low, colors.edge, alpha, [4, 4]);
      curve(x, low, end.x, end.y, colors.edge, alpha, [4, 4]);
    }
  }
}

function curve(x1, y1, x2, y2, color, alpha, dash = [], width = 1.5) {
  brush.globalAlpha = alpha;
  brush.strokeStyle = color;
  brush.lineWidth = Math.max(width, 0.9 / view.scale);
  brush.setLineDash(dash);
  brush.beginPath();
  brush.moveTo(x1, y1);
  const bend = Math.min(Math.abs(y2 - y1) * 0.55, 120);
  brush.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
  brush.stroke();
  brush.setLineDash([]);
  brush.globalAlpha = 1;
}

function box(x, y, w, h, radius, fill, stroke, width = 1) {
  brush.beginPath();
  brush.roundRect(x, y, w, h, radius);
  if (fill) {
    brush.fillStyle = fill;
    brush.fill();
  }
  if (stroke) {
    brush.strokeStyle = stroke;
    brush.lineWidth = width;
    brush.stroke();
  }
}

function write(text, x, y, font, color, align = "left") {
  if (view.scale < TEXT_FROM) return;
  brush.font = font;
  brush.fillStyle = color;
  brush.textAlign = align;
  brush.textBaseline = "middle";
  brush.fillText(text, x, y);
}

function mark(index, x, y, w, h, radius) {
  if (found.has(index)) box(x - 2, y - 2, w + 4, h + 4, radius + 2, null, colors.mark, 3);
  if (index === selected) box(x - 2, y - 2, w + 4, h + 4, radius + 2, null, colors.fork, 2.5);
}

function paintCard(card, alpha) {
  brush.globalAlpha = alpha;
  if (card.pill) {
    paintPill(nodes[card.rows[0]], card.x, card.y, card.w, card.h);
    brush.globalAlpha = 1;
    return;
  }
  const lead = nodes[card.rows[0] ?? card.marks[0]];
  box(card.x, card.y, card.w, card.h, 10, colors.card, colors.line);
  if (lead && isShared(lead)) paintPrefix(card, lead);
  let y = card.y + (card.role ? HEAD_H : 7);
  if (card.role) {
    write(card.role, card.x + PAD + 4, card.y + 15, SMALL, colors.soft);
    if (lead && isShared(lead)) write(sharing(card, lead), card.x + card.w - PAD, card.y + 15, SMALL, prefixColor(lead), "right");
    if (card.marks.length) {
      mark(card.marks[0], card.x, card.y, card.w, HEAD_H - 2, 10);
      targets.push({ x: card.x, y: card.y, w: card.w, h: HEAD_H, node: card.marks[0] });
    }
  }
  for (const index of card.rows) {
    const h = rowHeight(nodes[index]);
    paintRow(nodes[index], card.x + 6, y, card.w - 12, h);
    y += h;
  }
  brush.globalAlpha = 1;
}

// "2,776 tokens in 40 prompts": all tokens up to the end of the card, where they are known.
function sharing(card, lead) {
  const last = nodes[Math.max(...card.rows, ...card.marks)];
  const tokens = last.promptTokens + tokensOf(last);
  return `${tokens ? `${tokens.toLocaleString("en")} tokens ` : ""}in ${lead.users} prompts`;
}

// The coloured edge of a card whose text several calls share.
function paintPrefix(card, lead) {
  brush.save();
  brush.beginPath();
  brush.roundRect(card.x, card.y, card.w, card.h, 10);
  brush.clip();
  brush.fillStyle = prefixColor(lead);
  brush.fillRect(card.x, card.y, 5, card.h);
  brush.restore();
}

function paintRow(node, x, y, w, h) {
  targets.push({ x, y, w, h, node: node.index });
  if (node.kind === "text") {
    if (view.scale < TEXT_FROM) {
      brush.fillStyle = colors.line;
      linesOf(node, 3).forEach((_, n) => brush.fillRect(x + 8, y + 8 + n * 17, n ? w * 0.62 : w * 0.84, 5));
    } else {
      linesOf(node, 3).forEach((line, n) => write(line, x + 8, y + 11 + n * 17, FONT, colors.ink));
    }
  } else {
    paintCall(node, x + 3, y + 1, w - 6, h - 4);
  }
  mark(node.index, x + 2, y, w - 4, h - 1, 6);
}

function paintCall(node, x, y, w, h) {
  const color = colors[colorOf(node)];
  box(x, y, w, h, 6, colors[colorOf(node) + "-wash"], null);
  const badge = badgeOf(node);
  const room = w - 24 - textWidth(badge, SMALL);
  write(fitText(node.title, Math.max(room, 60), BOLD), x + 8, y + 12, BOLD, color);
  write(badge, x + w - 8, y + 12, SMALL, color, "right");
  if (node.outcome) write(fitText(node.outcome.text.slice(0, 200).replace(/\s*\n\s*/g, " ⏎ "), w - 18, FONT), x + 8, y + 31, FONT, colors.ink);
}

// Prompt and generated tokens after a run; before it the prompt's, where a model counted it, and what was asked for.
function badgeOf(node) {
  if (node.outcome && node.outcome.tokens) {
    const [prompt, , , generated] = node.outcome.tokens;
    return `${prompt.toLocaleString("en")}${node.kind === "gen" ? ` → ${generated.toLocaleString("en")}` : ""} tokens`;
  }
  const prompt = node.promptTokens ? [`${node.promptTokens.toLocaleString("en")} tokens`] : [];
  return [...prompt, ...node.notes].slice(0, 2).join(" · ");
}

function paintPill(node, x, y, w, h) {
  const color = colors[colorOf(node)];
  box(x, y, w, h, h / 2, colors[colorOf(node) + "-wash"], color, 1.2);
  write(fitText(node.title, w - 28, BOLD), x + w / 2, y + h / 2 + 0.5, BOLD, color, "center");
  mark(node.index, x, y, w, h, h / 2);
  targets.push({ x, y, w, h, node: node.index });
}

function paintFan(fan, seen, alpha) {
  const node = nodes[fan.node];
  const { head, inner } = fan;
  const middle = head.x + head.w / 2;
  if (fan.framed) {
    curve(middle, head.y + head.h, inner.x + inner.w / 2, inner.y, colors.edge, alpha);
    box(inner.x, inner.y, inner.w, inner.h, 14, null, colors.line);
  }
  for (const column of fan.shown) {
    const dim = program.ran && fan.ways && !column.taken ? alpha * 0.35 : alpha;
    if (!fan.framed) paintWay(fan, column, middle, dim);
    if (fan.ways) paintArm(column, dim);
    paintBlock(column.body, seen, dim);
  }
  if (fan.more) paintStack(fan, middle, alpha);
  brush.globalAlpha = alpha;
  paintPill(node, head.x, head.y, head.w, head.h);
  brush.globalAlpha = 1;
  paintToggle(fan);
}

// The edge into a branch: dashed where it depends on a value that does not exist yet, strong where a run took it.
function paintWay(fan, column, x, alpha) {
  const top = fan.head.y + fan.head.h;
  const taken = fan.ways && program.ran && column.taken;
  const dash = fan.ways && !program.ran ? [6, 5] : [];
  curve(x, top, column.x + column.w / 2, column.y, taken ? colors.way : colors.edge, alpha, dash, taken ? 2.6 : 1.5);
}

function paintArm(column, alpha) {
  brush.globalAlpha = alpha;
  brush.setLineDash([5, 4]);
  box(column.x, column.y, column.w, column.h, 12, colors.dark ? "rgb(255 255 255 / .025)" : "rgb(20 28 45 / .022)", colors.edge);
  brush.setLineDash([]);
  write(fitText(column.label, column.w - 20, BOLD), column.x + 12, column.y + 14, BOLD, colors.way);
  brush.globalAlpha = 1;
}

function paintStack(fan, middle, alpha) {
  const { x, y, w, h } = fan.stack;
  curve(middle, fan.head.y + fan.head.h, x + 70, y, colors.edge, alpha, [4, 4]);
  brush.globalAlpha = alpha;
  for (const shift of [10, 5, 0]) box(x + shift, y + shift, w - 10, h - 10, 10, colors.card, colors.line);
  write(`+ ${fan.more} more`, x + (w - 10) / 2, y + 20, BOLD, colors.fork, "center");
  write("click to unfold", x + (w - 10) / 2, y + 39, SMALL, colors.soft, "center");
  brush.globalAlpha = 1;
  targets.push({ x, y, w, h, act: () => toggle(fan) });
}

function paintToggle(fan) {
  const { head } = fan;
  const spot = { x: head.x + head.w + 6, y: head.y + 6, w: 20, h: 20 };
  box(spot.x, spot.y, spot.w, spot.h, 10, colors.card, colors.line);
  write(fan.folded ? "+" : "−", spot.x + 10, spot.y + 10.5, BOLD, colors.soft, "center");
  targets.push({ ...spot, act: () => toggle(fan) });
}

// Lines between the chosen node and the values it mentions, or the nodes that mention it.
function paintRelations(seen) {
  const here = spotOf(selected);
  const links = [...nodes[selected].refs.map((r) => [r, selected]), ...mentions[selected].slice(0, 400).map((m) => [selected, m])];
  for (const [source, target] of links) {
    const a = source === selected ? here : spotOf(source);
    const b = target === selected ? here : spotOf(target);
    if (a && b) curve(a.x + a.w / 2, a.y + a.h, b.x + b.w / 2, b.y, colors.value, 0.85, [2, 4], 2);
  }
}

// Where a node stands; null where a fold hides it.
function spotOf(index) {
  if (around[index].some(({ fan, place }) => !fan.shown.includes(fan.columns[place]))) return null;
  return find(root, index);
}

function find(block, index) {
  if (block.type === "card") return findInCard(block, index);
  if (block.type === "sequence") {
    for (const item of block.items) {
      const spot = find(item, index);
      if (spot) return spot;
    }
    return null;
  }
  if (block.node === index) return block.head;
  const step = around[index].find(({ fan }) => fan === block);
  return step ? find(block.columns[step.place].body, index) : null;
}

function findInCard(card, index) {
  if (card.marks.includes(index)) return { x: card.x, y: card.y, w: card.w, h: HEAD_H };
  let y = card.y + (card.role ? HEAD_H : 7);
  for (const row of card.rows) {
    const h = card.pill ? card.h : rowHeight(nodes[row]);
    if (row === index) return card.pill ? card : { x: card.x + 6, y, w: card.w - 12, h };
    y += h;
  }
  return null;
}
