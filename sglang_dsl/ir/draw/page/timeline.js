// The timeline: one bar per call that finished, in as few lanes as their overlaps need; waiting, prefill, decode.

const LANE_H = 22;
const bars = []; // { node, name, times: [asked, admitted, first token, end], lane, x, w }
let span = [0, 1];

function prepareTimeline() {
  const calls = program.calls.filter(([, , asked, , , end]) => end > asked);
  byElement("clock").hidden = calls.length === 0;
  const freeAt = [];
  for (const [node, name, ...times] of calls.sort((a, b) => a[2] - b[2] || a[5] - b[5])) {
    let lane = freeAt.findIndex((at) => at <= times[0]);
    if (lane < 0) lane = freeAt.length;
    freeAt[lane] = times[3];
    bars.push({ node, name, times, lane });
  }
  if (bars.length) span = [Math.min(...bars.map((b) => b.times[0])), Math.max(...bars.map((b) => b.times[3]))];
  byElement("ticks").textContent = bars.length ? `${bars.length} calls in ${seconds(span[1] - span[0])}` : "";
  byElement("bars").addEventListener("click", (event) => {
    const bar = barAt(event);
    if (bar && bar.node >= 0) goTo(bar.node);
  });
  byElement("bars").addEventListener("pointermove", (event) => {
    const bar = barAt(event);
    byElement("bars").title = bar ? tellBar(bar) : "";
  });
}

const seconds = (s) => (s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(s < 0.01 ? 2 : 0)} ms`);

function tellBar({ name, times: [asked, admitted, first, end] }) {
  const decode = first > admitted ? `prefill ${seconds(first - admitted)}, decode ${seconds(end - first)}` : `computed in ${seconds(end - admitted)}`;
  return `${name}: waited ${seconds(admitted - asked)}, ${decode}`;
}

function barAt(event) {
  return bars.find((b) => b.lane === Math.floor((event.offsetY - 4) / LANE_H) && event.offsetX >= b.x && event.offsetX <= b.x + b.w);
}

function toggleTimeline() {
  if (!bars.length) return;
  byElement("timeline").hidden = !byElement("timeline").hidden;
  document.body.classList.toggle("clock", !byElement("timeline").hidden);
  paintTimeline();
  fit();
}

function paintTimeline() {
  if (byElement("timeline").hidden) return;
  const sheet = byElement("bars");
  const ratio = window.devicePixelRatio || 1;
  const width = sheet.clientWidth;
  const height = (1 + Math.max(...bars.map((b) => b.lane))) * LANE_H + 8;
  sheet.style.height = `${height}px`;
  sheet.width = width * ratio;
  sheet.height = height * ratio;
  const pencil = sheet.getContext("2d");
  pencil.scale(ratio, ratio);
  const at = (time) => 10 + ((time - span[0]) / (span[1] - span[0] || 1)) * (width - 20);
  for (const bar of bars) {
    const [asked, admitted, first, end] = bar.times;
    const y = 4 + bar.lane * LANE_H + 2;
    const parts = [[asked, admitted, "line"], [admitted, Math.max(first, admitted), "value"], [Math.max(first, admitted), end, "gen"]];
    bar.x = at(asked);
    bar.w = Math.max(at(end) - bar.x, 2);
    for (const [from, to, color] of parts) {
      if (to <= from) continue;
      pencil.fillStyle = colors[color];
      pencil.fillRect(at(from), y, Math.max(at(to) - at(from), 1), LANE_H - 5);
    }
    if (bar.w > 34) {
      pencil.font = SMALL;
      pencil.textBaseline = "middle";
      pencil.fillStyle = at(admitted) - bar.x > 16 ? colors.ink : colors.card;
      pencil.fillText(fitText(bar.name, bar.w - 10, SMALL), bar.x + 5, y + (LANE_H - 5) / 2);
    }
    if (bar.node === selected) {
      pencil.strokeStyle = colors.fork;
      pencil.lineWidth = 2;
      pencil.strokeRect(bar.x - 1, y - 1, bar.w + 2, LANE_H - 3);
    }
  }
}
