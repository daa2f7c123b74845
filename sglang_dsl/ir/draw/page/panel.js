// The panel on the right: all that is known of one node. Text of the program is only ever put in as text.

const panel = document.getElementById("panel");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function choose(index) {
  selected = index;
  panel.hidden = index < 0;
  if (index >= 0) fillPanel(nodes[index]);
  repaint();
  paintTimeline();
}

function fillPanel(node) {
  const body = element("div", "body");
  if (node.state && node.state !== "done") addState(body, node);
  if (node.facts) body.append(section("Came out"), facts(node.facts.map((fact) => ["", fact])));
  if (node.options) body.append(section("Asked for"), facts(node.options));
  if (node.outcome) addOutcome(body, node.outcome);
  addRelated(body, node);
  addPrompt(body, node);
  panel.replaceChildren(head(node), body);
}

function head(node) {
  const made = element("div", "head");
  const kind = element("div", "kind", node.kind.replace("_", " "));
  kind.style.color = `var(--${colorOf(node)})`;
  const close = element("button", "close", "✕");
  close.title = "Close (Esc)";
  close.addEventListener("click", () => choose(-1));
  made.append(kind, element("h2", "", node.title), close);
  made.append(element("div", "where", [node.id, node.origin, node.scope].filter(Boolean).join("  ·  ")));
  if (node.statement) made.append(element("pre", "box", node.statement));
  const tags = element("div", "tags");
  for (const note of node.notes) tags.append(element("span", "", note));
  if (node.users) tags.append(element("span", "", `in the prompt of ${node.users} ${node.users === 1 ? "call" : "calls"}`));
  if (tags.childNodes.length) made.append(tags);
  return made;
}

function section(name, detail) {
  const made = element("h3", "", name);
  if (detail) made.append(element("small", "", detail));
  return made;
}

function facts(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) list.append(element("dt", "", name), element("dd", "", value));
  return list;
}

function addState(body, node) {
  body.append(section("State"));
  body.append(element("pre", node.state === "failed" ? "box failed" : "box", [Words[node.state] || node.state, node.error].filter(Boolean).join(": ")));
}

function addOutcome(body, outcome) {
  body.append(section("Result", outcome.finish ? `ended by ${outcome.finish}` : ""));
  body.append(element("pre", "box", outcome.value === undefined ? outcome.text : outcome.value));
  if (outcome.choices && outcome.choices.length) body.append(section("Scores"), scores(outcome.choices));
  if (outcome.chances) body.append(section("Token probabilities", "darker: less probable"), chances(outcome.chances));
  if (!outcome.tokens) return;
  const [prompt, cached, computed, generated] = outcome.tokens.map((n) => n.toLocaleString("en"));
  body.append(section("Tokens"));
  body.append(facts([["prompt", `${prompt} = ${cached} reused + ${computed} computed`], ["generated", generated], ["time", `${outcome.seconds} s`]]));
}

function scores(choices) {
  const made = element("div", "scores");
  const best = Math.max(...choices.map((c) => c[1]));
  for (const [text, score] of [...choices].sort((a, b) => b[1] - a[1])) {
    const bar = element("i");
    bar.style.width = `${Math.max(2, 100 * Math.exp(score - best))}%`;
    made.append(element("span", "", text), bar, element("span", "", score.toFixed(3)));
  }
  return made;
}

// The generated tokens, each shaded by how improbable it was.
function chances(tokens) {
  const box = element("pre", "box chances");
  for (const [text, chance] of tokens) {
    const token = element("span", "", text);
    token.title = `${(100 * chance).toFixed(1)} %`;
    token.style.background = `color-mix(in srgb, var(--break) ${Math.round(60 * (1 - chance))}%, transparent)`;
    box.append(token);
  }
  return box;
}

function addRelated(body, node) {
  for (const [name, list] of [["Mentions the value of", node.refs], ["Its value is used by", mentions[node.index]]]) {
    if (!list.length) continue;
    body.append(section(name, String(list.length)));
    const tags = element("div", "tags");
    for (const other of list.slice(0, 60)) {
      const button = element("button", "", nodes[other].title);
      button.addEventListener("click", () => goTo(other));
      const tag = element("span");
      tag.append(button);
      tags.append(tag);
    }
    if (list.length > 60) tags.append(element("span", "", `and ${list.length - 60} more`));
    body.append(tags);
  }
}

// The whole prompt up to a node, each piece with where it comes from.
function addPrompt(body, node) {
  const box = element("pre", "prompt box");
  let tokens = 0;
  for (const index of contextPath(node.index)) tokens += addPieces(box, nodes[index], index === node.index);
  if (!box.childNodes.length) return;
  const detail = program.model ? `${tokens.toLocaleString("en")} tokens · ${program.model}` : "click a piece to see where it comes from";
  body.append(section(isCall(node) ? "Prompt and answer" : "Prompt up to here", detail), box);
  requestAnimationFrame(() => {
    const own = box.querySelector(".own");
    if (own && box.scrollHeight > box.clientHeight) box.scrollTop = own.offsetTop - box.offsetTop - 60;
  });
}

function addPieces(box, node, own) {
  if (!node.segments.length && (node.kind === "role_begin" || node.kind === "role_end")) {
    const line = node.kind === "role_begin" ? `${box.childNodes.length ? "\n" : ""}▸ ${node.role}\n` : "\n";
    box.append(piece(line, "role", node, node.index, own));
    return 0;
  }
  let tokens = 0;
  for (const [kind, text, from, count] of node.segments) {
    const answer = kind === "generated" && node.outcome && !program.model ? node.outcome.text : text;
    const source = kind === "value" ? byId.get(from) ?? node.index : node.index;
    box.append(piece(answer, kind, node, source, own));
    tokens += count || 0;
  }
  return tokens;
}

const byId = new Map(nodes.map((node) => [node.id, node.index]));

function piece(text, kind, node, source, own) {
  const made = element("span", kind + (own ? " own" : ""), text);
  made.title = [nodes[source].title, node.origin, node.statement].filter(Boolean).join("\n");
  made.addEventListener("click", () => goTo(source));
  return made;
}
