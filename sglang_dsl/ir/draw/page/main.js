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
  return { x: 24, y: 66, w: innerWidth - side - 48, h: innerHeight - 66 - 56 };
}

function fit() {
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
  node.words ??= [node.id, node.title, node.kind, node.role || "", ...node.segments.map((s) => s[1]), node.outcome ? node.outcome.text : ""]
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
    Escape: () => choose(-1),
    ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
  }[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

function pan(dx, dy) {
  view.x += dx;
  view.y += dy;
  repaint();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColors();
  repaint();
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
  if (widest) shown.push([widest, "branches at most"]);
  shown.push([nodes.length, "nodes"]);
  for (const [count, word] of shown) {
    const fact = element("span");
    fact.append(element("b", "", count.toLocaleString("en")), " " + word);
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
addEventListener("resize", repaint);

describeProgram();
describeColors();
layOut();
labelFoldButton();
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
fit();
const linked = byId.get(decodeURIComponent(location.hash.slice(1))); // page.html#<node id> opens at that node
if (linked !== undefined) goTo(linked);
