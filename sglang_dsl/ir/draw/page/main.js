// The page itself: header, legend, moving about, search, folding.

const byElement = (id) => document.getElementById(id);

function toggle(fan) {
  const before = { x: fan.head.x * view.scale + view.x, y: fan.head.y * view.scale + view.y };
  fan.folded = !fan.folded;
  layOut();
  view.x = before.x - fan.head.x * view.scale; // what was clicked stays under the pointer
  view.y = before.y - fan.head.y * view.scale;
  labelFoldButton();
  repaint();
}

const foldable = () => fans.filter((fan) => fan.ways || fan.columns.length >= FOLD_FROM);

function labelFoldButton() {
  byElement("fold").hidden = foldable().length === 0;
  byElement("fold").textContent = foldable().some((fan) => fan.folded) ? "Unfold" : "Fold";
}

function foldAll() {
  const folded = !foldable().some((fan) => fan.folded);
  for (const fan of foldable()) fan.folded = folded;
  layOut();
  labelFoldButton();
  fit();
}

// The free part of the window: beside the panel, below the header.
function stage() {
  const side = panel.hidden || innerWidth <= 700 ? 0 : panel.offsetWidth + 12;
  const low = byElement("timeline").hidden ? 56 : byElement("timeline").offsetHeight + 24;
  return { x: 24, y: 66, w: Math.max(innerWidth - side - 48, 60), h: Math.max(innerHeight - 66 - low, 60) };
}

let fitted = false; // a page in a frame that is not shown yet has no size to fit into
function fit() {
  fitted = innerWidth > 1 && innerHeight > 1;
  if (!fitted) return;
  const area = stage();
  view.scale = Math.min(1.15, area.w / root.w, area.h / root.h);
  if (view.scale < 0.3 && root.h > root.w) view.scale = Math.min(0.75, area.w / root.w); // long: show its beginning
  view.scale = Math.max(view.scale, 0.01);
  view.x = area.x + (area.w - root.w * view.scale) / 2;
  view.y = area.y + Math.max(0, (area.h - root.h * view.scale) / 2);
  repaint();
}

function zoom(factor, x = innerWidth / 2, y = innerHeight / 2) {
  const scale = Math.min(4, Math.max(0.01, view.scale * factor));
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  repaint();
}

// Choose a node and bring it into view, unfolding what hides it.
function goTo(index) {
  let hidden = false;
  for (const { fan, place } of around[index]) {
    if (!fan.shown.includes(fan.columns[place])) {
      fan.folded = false;
      hidden = true;
      layOut();
    }
  }
  if (hidden) labelFoldButton();
  choose(index);
  const spot = spotOf(index);
  if (!spot) return;
  const area = stage();
  view.scale = Math.max(view.scale, 0.7);
  view.x = area.x + area.w / 2 - (spot.x + spot.w / 2) * view.scale;
  view.y = area.y + area.h / 2 - (spot.y + spot.h / 2) * view.scale;
  repaint();
}

function searchable(node) {
  node.words ??= [node.id, node.title, node.kind, node.role || "", ...node.segments.map((s) => s[1]), node.outcome ? node.outcome.text : "",
    Words[node.state] || "", node.error || "", ...(node.facts || [])]
    .join("\n").toLowerCase();
  return node.words;
}

let hits = [];
let current = -1;
function search() {
  const words = byElement("query").value.trim().toLowerCase();
  hits = words ? nodes.filter((node) => searchable(node).includes(words)).map((node) => node.index) : [];
  found = new Set(hits);
  current = -1;
  byElement("hits").textContent = words ? String(hits.length) : "";
  repaint();
}

function nextHit(step) {
  if (!hits.length) return;
  current = (current + step + hits.length) % hits.length;
  byElement("hits").textContent = `${current + 1}/${hits.length}`;
  goTo(hits[current]);
}

function targetAt(event) {
  const x = (event.clientX - view.x) / view.scale;
  const y = (event.clientY - view.y) / view.scale;
  for (let i = targets.length - 1; i >= 0; i--) {
    const t = targets[i];
    if (x >= t.x && x <= t.x + t.w && y >= t.y && y <= t.y + t.h) return t;
  }
  return null;
}

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, y: event.clientY, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) {
    canvas.classList.toggle("over", targetAt(event) !== null);
    return;
  }
  const dx = event.clientX - drag.x;
  const dy = event.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return;
  drag = { x: event.clientX, y: event.clientY, moved: true };
  canvas.classList.add("dragging");
  view.x += dx;
  view.y += dy;
  repaint();
});
canvas.addEventListener("pointerup", (event) => {
  const clicked = drag && !drag.moved;
  drag = null;
  canvas.classList.remove("dragging");
  if (!clicked) return;
  const target = targetAt(event);
  if (target && target.act) target.act();
  else choose(target ? target.node : -1);
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX, event.clientY);
}, { passive: false });

addEventListener("keydown", (event) => {
  if (event.target === byElement("query")) {
    if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    "/": () => byElement("query").focus(), f: fit, "+": () => zoom(1.2), "=": () => zoom(1.2), "-": () => zoom(1 / 1.2),
    Escape: () => (byElement("help").hidden ? choose(-1) : showHelp(false)),
    "?": () => showHelp(byElement("help").hidden), t: toggleTimeline,
    n: () => step(1), p: () => step(-1), j: () => step(1), k: () => step(-1), u: goUp, d: goDown, e: () => stepFailed(),
    ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
  }[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

const Keys = [
  ["n  or  j", "next node"], ["p  or  k", "node before"], ["u", "up: what stands before it in its prompt"], ["d", "down: what follows it"],
  ["e", "next failure"], ["/", "search; Enter for the next hit"], ["t", "timeline"], ["f", "show everything"],
  ["+  −", "zoom"], ["arrows", "move"], ["Esc", "close"], ["?", "these keys"],
];

function showHelp(shown) {
  byElement("help").hidden = !shown;
}

function fillHelp() {
  const list = element("dl");
  for (const [key, what] of Keys) list.append(element("dt", "", key), element("dd", "", what));
  byElement("help").append(element("h2", "", "Keys"), list);
  byElement("help").addEventListener("click", () => showHelp(false));
}

// From node to node in reading order; what closes a turn is no place to stop at.
function step(by) {
  let index = selected < 0 ? (by > 0 ? -1 : nodes.length) : selected;
  do index += by; while (index >= 0 && index < nodes.length && nodes[index].kind === "role_end");
  if (index >= 0 && index < nodes.length) goTo(index);
}

function goUp() {
  if (selected < 0) return;
  const node = nodes[selected];
  const above = node.context >= 0 ? node.context : node.sub >= 0 ? program.subs[node.sub].holder : -1;
  if (above >= 0) goTo(above);
}

function goDown() {
  if (selected < 0) return step(1);
  const below = branches[selected][0] ?? followers[selected][0] ?? (subsOf.get(selected) || []).flatMap((sub) => starts.get(sub) || [])[0];
  if (below !== undefined) goTo(below);
}

function stepFailed() {
  const failed = nodes.filter((node) => node.state === "failed").map((node) => node.index);
  if (failed.length) goTo(failed.find((index) => index > selected) ?? failed[0]);
}

function pan(dx, dy) {
  view.x += dx;
  view.y += dy;
  repaint();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColors();
  repaint();
  paintTimeline();
}

function describeProgram() {
  byElement("name").textContent = program.name;
  document.title = program.name;
  const calls = nodes.filter(isCall);
  const widest = Math.max(0, ...nodes.map((node) => node.size || 0));
  const ran = calls.filter((node) => node.outcome && node.outcome.tokens);
  const sum = (place) => ran.reduce((total, node) => total + node.outcome.tokens[place], 0);
  const shown = [[calls.length, "model calls"]];
  if (ran.length) shown.push([sum(0), "prompt tokens asked"], [sum(2), "computed"], [sum(3), "generated"]);
  const failed = nodes.filter((node) => node.state === "failed");
  if (failed.length) shown.push([failed.length, "failed"]);
  if (widest) shown.push([widest, "branches at most"]);
  shown.push([nodes.length, "nodes"]);
  for (const [count, word] of shown) {
    const fact = element("span");
    fact.append(element("b", "", count.toLocaleString("en")), " " + word);
    if (word === "failed") {
      fact.className = "failed";
      fact.addEventListener("click", stepFailed);
    }
    byElement("facts").append(fact);
  }
}

function describeColors() {
  const kinds = new Set(nodes.map((node) => node.kind));
  const rows = Object.entries(Kind).filter(([kind, entry]) => entry.word && [...kinds].some((k) => Kind[k] && Kind[k].color === Kind[kind].color));
  for (const [, entry] of rows) addLegend(entry.word, `var(--${entry.color})`);
  const shared = [...new Set(nodes.filter(isShared).map((node) => node.prefix))];
  if (shared.length) addLegend("same edge colour: a prefix that calls share", `hsl(${hueOf(shared[0])} 60% 55%)`, "bar");
}

function addLegend(word, color, shape = "") {
  const row = element("li");
  const swatch = element("i", shape);
  swatch.style.color = color;
  row.append(swatch, element("span", "", word));
  byElement("legend").append(row);
}

byElement("query").addEventListener("input", search);
byElement("in").addEventListener("click", () => zoom(1.25));
byElement("out").addEventListener("click", () => zoom(1 / 1.25));
byElement("scale").addEventListener("click", () => zoom(1 / view.scale));
byElement("fit").addEventListener("click", fit);
byElement("fold").addEventListener("click", foldAll);
byElement("theme").addEventListener("click", () => setTheme(colors.dark ? "light" : "dark"));
byElement("clock").addEventListener("click", toggleTimeline);
byElement("keys").addEventListener("click", () => showHelp(byElement("help").hidden));
new ResizeObserver(() => {
  if (fitted) repaint();
  else open();
  paintTimeline();
}).observe(canvas);

// The first look, as soon as there is a size: everything, or the node that page.html#<node id> names.
function open() {
  fit();
  if (!fitted) return;
  const linked = byId.get(decodeURIComponent(location.hash.slice(1)));
  if (linked !== undefined) goTo(linked);
}

describeProgram();
describeColors();
fillHelp();
prepareTimeline();
layOut();
labelFoldButton();
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
open();
