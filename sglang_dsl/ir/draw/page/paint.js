// The picture: drawn on a canvas, only what is in view, without text where it would be too small to read.

const canvas = document.getElementById("canvas");
const brush = canvas.getContext("2d");
const view = { x: 0, y: 0, scale: 1 };
const TEXT_FROM = 0.42; // scale from which text is drawn
let colors = {};
let selected = -1;
let found = new Set();
let flows = []; // what the lines of the picture say: [from node, to node], for tests
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
  flows = [];
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

// Where the line of the program leaves a block: below a card, from the end of each branch, past branches that stand aside.
function endsOf(block) {
  if (block.type === "sequence") {
    const last = block.items[block.items.length - 1];
    return last ? endsOf(last) : [{ x: block.x + block.axis, y: block.y, node: -1 }];
  }
  if (block.type === "card") return [{ x: block.x + block.axis, y: block.y + block.h, node: block.marks[1] ?? block.rows[block.rows.length - 1] ?? block.marks[0] }];
  if (block.aside) return [{ x: block.head.x + block.head.w / 2, y: block.head.y + block.head.h, node: block.node }];
  if (block.framed) return [{ x: block.inner.x + block.inner.w / 2, y: block.inner.y + block.inner.h, node: block.node }];
  const ends = block.shown.flatMap((column) => {
    const weak = program.ran && block.ways && !column.taken;
    if (block.ways) return [{ x: axisOf(column), y: column.y + column.h, node: block.node, weak }];
    return endsOf(column.body).map((end) => (end.node < 0 ? { ...end, node: block.node } : end));
  });
  if (block.more) ends.push({ x: block.stack.x + 70, y: block.stack.y + block.stack.h, node: -1, dash: [4, 4] });
  return ends;
}

const axisOf = (column) => (column.body.items.length ? column.body.x + column.body.axis : column.x + column.w / 2);

// The way from one thing of a sequence to the next: first straight down past what is longest, then across.
function paintStep(item, next, alpha) {
  const target = next.type === "fan" ? next.node : next.rows[0] ?? next.marks[0];
  const to = { x: next.x + next.axis, y: next.y };
  const low = item.y + item.h;
  for (const end of endsOf(item)) {
    const dim = end.weak ? alpha * 0.3 : alpha;
    if (end.node >= 0) flows.push([end.node, target]);
    if (low - end.y > 1) line(end.x, end.y, end.x, low, dim, end.dash);
    curve(end.x, low, to.x, to.y, colors.edge, dim, end.dash);
  }
}

function line(x1, y1, x2, y2, alpha, dash = []) {
  brush.globalAlpha = alpha;
  brush.strokeStyle = colors.edge;
  brush.lineWidth = Math.max(1.5, 0.9 / view.scale);
  brush.setLineDash(dash);
  brush.beginPath();
  brush.moveTo(x1, y1);
  brush.lineTo(x2, y2);
  brush.stroke();
  brush.setLineDash([]);
  brush.globalAlpha = 1;
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

// Where cards are too small for their text, one line of each stays readable: drawn at the size of the screen.
function writeSmall(text, x, y, w, color) {
  const room = w * view.scale - 6;
  if (view.scale >= TEXT_FROM || room < 20) return;
  const size = 11 / view.scale;
  brush.font = `600 ${size}px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif`;
  brush.fillStyle = color;
  brush.textAlign = "center";
  brush.textBaseline = "middle";
  brush.fillText(fitText(text, room, SMALL), x + w / 2, y);
}

function strike(x, y, width) {
  if (view.scale < TEXT_FROM) return;
  brush.fillStyle = colors.soft;
  brush.fillRect(x, y, width, 1.4);
}

const isStruck = (node) => node.state === "cancelled" || node.state === "lost";

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
    brush.globalAlpha = nodes[index].state === "unreached" ? alpha * 0.45 : alpha;
    paintRow(nodes[index], card.x + 6, y, card.w - 12, h);
    y += h;
  }
  brush.globalAlpha = alpha;
  const named = nodes[card.rows.find((index) => nodes[index].state === "failed") ?? card.rows.find((index) => isCall(nodes[index])) ?? card.rows[0] ?? -1];
  const words = named ? (isCall(named) ? named.title : linesOf(named, 3)[0]) : card.role || "";
  writeSmall(words, card.x, card.y + card.h / 2, card.w, named ? colors[isCall(named) ? shadeOf(named) : "ink"] : colors.soft);
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
    if (view.scale >= TEXT_FROM) {
      linesOf(node, 3).forEach((line, n) => write(line, x + 8, y + 11 + n * 17, FONT, colors.ink));
    }
  } else {
    paintCall(node, x + 3, y + 1, w - 6, h - 4);
  }
  mark(node.index, x + 2, y, w - 4, h - 1, 6);
}

function paintCall(node, x, y, w, h) {
  const shade = shadeOf(node);
  const color = colors[shade];
  box(x, y, w, h, 6, colors[shade + "-wash"] || colors.paper, node.state === "failed" ? color : null, 1.4);
  const badge = badgeOf(node);
  const room = w - 24 - textWidth(badge, SMALL);
  const name = fitText(node.title, Math.max(room, 60), BOLD);
  write(name, x + 8, y + 12, BOLD, color);
  if (isStruck(node)) strike(x + 8, y + 12, textWidth(name, BOLD));
  write(badge, x + w - 8, y + 12, SMALL, color, "right");
  let below = y + 31;
  if (node.outcome) {
    const text = fitText(node.outcome.text.slice(0, 200).replace(/\s*\n\s*/g, " ⏎ "), w - 18, FONT);
    write(text, x + 8, below, FONT, isStruck(node) ? colors.soft : colors.ink);
    if (isStruck(node)) strike(x + 8, below, textWidth(text, FONT));
    below += 19;
  }
  for (const [text, tint] of underlines(node)) {
    write(fitText(text, w - 18, SMALL), x + 8, below - 2, SMALL, colors[tint]);
    below += 17;
  }
}

// The colour of a node: red where it failed, grey where it was cancelled or lost, else that of its kind.
const shadeOf = (node) => (node.state === "failed" ? "break" : isStruck(node) ? "soft" : colorOf(node));

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
  const shade = shadeOf(node);
  const color = colors[shade];
  box(x, y, w, h, PILL_H / 2, colors[shade + "-wash"] || colors.card, color, node.state === "failed" ? 2 : 1.2);
  const name = fitText(node.title, w - 28, BOLD);
  write(name, x + w / 2, y + PILL_H / 2 + 0.5, BOLD, color, "center");
  if (isStruck(node)) strike(x + (w - textWidth(name, BOLD)) / 2, y + PILL_H / 2, textWidth(name, BOLD));
  if (h > PILL_H) underlines(node).forEach(([text, tint], n) => write(fitText(text, w - 28, SMALL), x + w / 2, y + PILL_H + 3 + 15 * n, SMALL, colors[tint], "center"));
  writeSmall(node.title, x, y + h / 2, w, color);
  mark(node.index, x, y, w, h, PILL_H / 2);
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
    if (column.aside && !fan.framed) write("not joined", axisOf(column) + 8, column.y - 9, SMALL, colors.soft);
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
  if (column.body.items.length) {
    const first = column.body.items[0];
    flows.push([fan.node, first.type === "fan" ? first.node : first.rows[0] ?? first.marks[0]]);
  }
  curve(x, top, axisOf(column), column.y, taken ? colors.way : colors.edge, alpha, dash, taken ? 2.6 : 1.5);
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
  write(`+ ${fan.more} more${nodes[fan.node].fold ? " alike" : ""}`, x + (w - 10) / 2, y + 20, BOLD, colors.fork, "center");
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
