"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const { items, labels, kind, overlap, key } = JSON.parse(get("data").textContent);
  const store = `finetune-review-${key}`, words = kind === "spans" || kind === "tags";
  // added: labels that were typed, in this order; each label keeps its key
  // decided: by index, {decision, value}; value is a label, labels, tags, or spans [start, end, label]
  let decided = {}, history = [], added = [], current = 0, saved = true;
  let chosen = null, entity = null; // selected words [first, last], index of the selected span
  const load = (text) => {
    ({ decided, history, added } = { decided: {}, history: [], added: [], ...JSON.parse(text) });
    labels.push(...added.filter((name) => !labels.includes(name)));
  };
  try { load(localStorage.getItem(store)); } catch { /* none */ }
  const save = () => {
    try { localStorage.setItem(store, JSON.stringify({ decided, history, added })); saved = true; } catch { saved = false; }
  };

  const element = (name, text = "", names = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    made.className = names;
    if (name === "button") made.type = "button";
    return made;
  };
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const sorted = (spans) => [...spans].sort((a, b) => a[0] - b[0] || a[1] - b[1] || (a[2] < b[2] ? -1 : a[2] > b[2] ? 1 : 0));
  const bare = (spans) => kind === "spans" && spans ? spans.map((span) => span.slice(0, 3)) : spans;
  const suggested = (item) => bare(item.suggested);
  /** What a person edits: the decision, else gold, else the suggestion. */
  const value = () => {
    const state = decided[current], item = items[current];
    return state && state.decision !== "skip" ? state.value : item.given ?? suggested(item);
  };

  const set = (state) => {
    history = [...history, [current, decided[current] ?? null]].slice(-200);
    decided[current] = state;
    save();
  };
  const decide = (decision, result) => { set({ decision, value: result }); move(current + 1); };
  const edit = (result) => { set({ decision: "edit", value: result }); show(); };
  const undo = () => {
    const [index, state] = history.pop() ?? [];
    if (index === undefined) return;
    if (state) decided[index] = state; else delete decided[index];
    save();
    move(index);
  };
  const move = (index) => {
    current = Math.max(0, Math.min(items.length - 1, index));
    chosen = entity = null;
    show();
  };
  const firstOpen = () => {
    for (let step = 1; step <= items.length; step++) {
      const index = (current + step) % items.length;
      if (!decided[index]) { move(index); return; }
    }
  };

  /** Choose a label, by its kind: of the text, one of several, of words, or of an entity. */
  const choose = (label) => {
    if (!label) return;
    if (kind === "label") {
      const { suggested, given } = items[current];
      decide(label === suggested ? "accept" : label === given ? "keep" : "other", label);
      return;
    }
    const now = value();
    if (kind === "labels") {
      edit(now.includes(label) ? now.filter((name) => name !== label) : [...now, label].sort());
    } else if (kind === "tags") {
      if (chosen) edit(now.map((tag, index) => index >= chosen[0] && index <= chosen[1] ? label : tag));
    } else if (entity !== null) {
      const changed = [...now[entity].slice(0, 2), label];
      if (!now.some((span) => same(span, changed))) edit(sorted(now.with(entity, changed)));
      entity = null;
      show();
    } else if (chosen) {
      const [start, end] = [chosen[0], chosen[1] + 1];
      const kept = overlap ? now : now.filter((span) => span[1] <= start || span[0] >= end);
      if (!kept.some((span) => same(span, [start, end, label]))) edit(sorted([...kept, [start, end, label]]));
      chosen = null;
      show();
    }
  };
  const remove = () => {
    if (kind !== "spans" || entity === null) return false;
    const rest = value().filter((_, index) => index !== entity);
    entity = null;
    edit(rest);
    return true;
  };

  /** Spans cut where they cross, so that any two nest or share no word; the outer ones first. */
  const fragments = (spans) => {
    const waiting = spans.map((span, number) => [span[0], span[1], number]), found = [], ends = [];
    const before = (a, b) => a[0] - b[0] || b[1] - a[1] || a[2] - b[2];
    waiting.sort(before);
    while (waiting.length) {
      const [start, end, number] = waiting.shift();
      while (ends.length && ends.at(-1) <= start) ends.pop();
      const cut = Math.min(end, ends.at(-1) ?? end);
      if (cut < end) { waiting.push([cut, end, number]); waiting.sort(before); }
      found.push({ start, end: cut, number, last: cut === end });
      ends.push(cut);
    }
    return found;
  };
  /** Write the words of an item with its spans or tags; ``other`` are those to differ from. */
  const write = (parent, item, now, other, active) => {
    const spans = kind === "tags" ? [] : now;
    const starting = Map.groupBy(fragments(spans), (each) => each.start), open = [];
    let inside = parent;
    item.words.forEach((word, index) => {
      while (open.length && open.at(-1).end <= index) close();
      inside.append(item.gaps[index]);
      for (const each of starting.get(index) ?? []) {
        const span = spans[each.number];
        const differs = other && !other.some((one) => same(one.slice(0, 3), span.slice(0, 3)));
        const mark = element("mark", "", `entity${differs ? " differs" : ""}`);
        inside.append(mark);
        open.push({ ...each, mark, parent: inside });
        inside = mark;
      }
      const shown = element("span", word, "word");
      if (active) {
        shown.dataset.word = index;
        shown.tabIndex = index === (chosen ? chosen[2] : 0) ? 0 : -1;
        shown.setAttribute("role", "option");
        shown.setAttribute("aria-selected", String(Boolean(chosen) && index >= chosen[0] && index <= chosen[1]));
      }
      if (kind === "tags") {
        const mark = element("mark", "", `entity${other && other[index] !== now[index] ? " differs" : ""}`);
        mark.append(shown, element("b", now[index]));
        inside.append(mark);
      } else inside.append(shown);
    });
    while (open.length) close();
    parent.append(item.gaps.at(-1));
    function close() {
      const { mark, parent: outer, number, last } = open.pop(), span = spans[number];
      const score = span[3] === undefined || span[3] === null ? "" : ` ${span[3].toFixed(2)}`;
      const name = element(active && last ? "button" : "b", last ? span[2] + score : "→");
      if (active && last) {
        name.setAttribute("aria-pressed", String(entity === number));
        name.addEventListener("click", () => { entity = entity === number ? null : number; chosen = null; show(); });
      }
      mark.append(name);
      inside = outer;
    }
  };
  const side = (name, item, now, other) => {
    const line = element("div", "", "side");
    line.dir = "auto";
    line.dataset.side = name;
    line.append(element("bdi", name, "name")); // no part of the direction of the text
    write(line, item, now, other, false);
    return line;
  };

  const button = (name, shortcut, pressed, action) => {
    const made = element("button", shortcut ? `${name} (${shortcut})` : name);
    if (pressed !== null) made.setAttribute("aria-pressed", String(Boolean(pressed)));
    made.addEventListener("click", action);
    return made;
  };
  const shortcut = (number) => number < 9 ? String(number + 1) : "";
  const show = () => {
    const item = items[current], state = decided[current], focused = document.activeElement?.dataset?.word !== undefined;
    const differs = item.given !== null && !same(item.given, suggested(item));
    get("position").textContent = `${current + 1} of ${items.length}, ${Object.keys(decided).length} decided`
      + (saved ? "" : ". This browser does not keep them: download before you leave.");
    const more = item.facts.length > 4 ? [`and ${item.facts.length - 3} more`] : [];
    const facts = [...item.facts.slice(0, more.length ? 3 : 4), ...more];
    get("facts").replaceChildren(...facts.map((fact) => element("p", fact, "note")));
    if (words) {
      if (item.given !== null) get("facts").append(side("given", item, item.given, differs ? suggested(item) : null));
      get("facts").append(side("suggested", item, item.suggested, differs ? item.given : null));
      get("text").replaceChildren(element("bdi", state && state.decision !== "skip" ? "decision" : "undecided", "name"));
      get("text").setAttribute("role", "listbox");
      get("text").setAttribute("aria-label", "Your annotation");
      write(get("text"), item, value(), null, true);
      if (focused) get("text").querySelector("[data-word][tabindex='0']")?.focus();
    } else get("text").textContent = item.text;
    const decision = (name) => state?.decision === name;
    const display = (result) => kind === "label" ? `: ${result}` : kind === "labels" ? `: ${result.join(", ") || "none"}` : "";
    get("decisions").replaceChildren(
      button(`accept${display(item.suggested)}`, "a", decision("accept"), () => decide("accept", suggested(item))),
      ...item.given === null ? [] : [button(`keep${display(item.given)}`, "k", decision("keep"), () => decide("keep", item.given))],
      ...kind === "label" ? [] : [button("done", "Enter", decision("edit"), done)],
      ...entity === null ? [] : [button("remove", "Delete", null, remove)],
      button("skip", "s", decision("skip"), () => decide("skip", null)));
    const now = value(), field = element("input");
    field.placeholder = "another label";
    field.setAttribute("aria-label", "Another label");
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      const name = field.value.trim();
      if (name && !labels.includes(name)) { labels.push(name); added.push(name); }
      choose(name);
    });
    const pressed = (name) => kind === "labels" ? now.includes(name)
      : kind === "label" ? Boolean(state) && state.value === name
        : entity !== null && kind === "spans" ? now[entity][2] === name : null;
    get("labels").replaceChildren(...labels.map((name, number) =>
      button(name, shortcut(number), pressed(name), () => choose(name))), ...labels.length || kind !== "label" ? [field] : []);
  };
  /** Go on; an edited text is decided, any other becomes a decision for what is shown. */
  const done = () => {
    if (!decided[current]) set({ decision: "edit", value: value() });
    move(current + 1);
  };

  const output = (item, result) => {
    if (kind === "label" || kind === "labels") return { given: item.given, label: result };
    if (kind === "tags") return { given: item.given && { tags: item.given }, tags: result };
    const place = ([start, end, label]) => item.offsets
      ? { start: item.offsets[start][0], end: item.offsets[end - 1][1], label } : { start, end, label };
    return { given: item.given && { spans: item.given.map(place) }, spans: result.map(place) };
  };
  const content = (item) => !words ? {} : item.offsets
    ? { text: item.gaps.map((gap, index) => gap + (item.words[index] ?? "")).join("") } : { words: item.words };
  const download = () => {
    const lines = Object.entries(decided).filter(([, each]) => each.decision !== "skip").map(([index, each]) => {
      const item = items[index];
      return JSON.stringify({ ...item.source, ...content(item), decision: each.decision, ...output(item, each.value) }) + "\n";
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    link.download = "decisions.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  const wordOf = (node) => {
    const found = node.closest("#text [data-word]");
    return found ? Number(found.dataset.word) : null;
  };
  /** Select the words from one to another; the focus is on the latter. */
  const select = (from, to) => {
    chosen = [Math.min(from, to), Math.max(from, to), to, from];
    entity = null;
    show();
    get("text").querySelector(`[data-word="${to}"]`).focus();
  };
  let pressed = null; // the word where the pointer went down
  get("text").addEventListener("pointerdown", (event) => { pressed = wordOf(event.target); });
  get("text").addEventListener("pointerup", (event) => {
    const word = wordOf(event.target), from = pressed ?? word;
    pressed = null;
    if (word === null) return;
    const extend = chosen && from === word && (event.shiftKey || event.pointerType === "touch");
    select(extend ? chosen[3] : from, word);
    getSelection().removeAllRanges();
  });
  get("text").addEventListener("keydown", (event) => {
    const at = wordOf(event.target);
    if (at === null) return;
    const rtl = getComputedStyle(get("text")).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: rtl, ArrowLeft: -rtl }[event.key];
    if (step) {
      const to = Math.max(0, Math.min(items[current].words.length - 1, at + step));
      select(event.shiftKey && chosen ? chosen[3] : event.shiftKey ? at : to, to);
    } else if (event.key === " ") select(at, at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  get("previous").addEventListener("click", () => move(current - 1));
  get("next").addEventListener("click", () => move(current + 1));
  get("open").addEventListener("click", firstOpen);
  get("undo").addEventListener("click", undo);
  get("download").addEventListener("click", download);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    const item = items[current], number = /^[1-9]$/.test(event.key) ? Number(event.key) - 1 : -1;
    if (event.key === "Enter" && event.target.tagName === "BUTTON") return;
    if (event.key === "a") decide("accept", suggested(item));
    else if (event.key === "k" && item.given !== null) decide("keep", item.given);
    else if (event.key === "s") decide("skip", null);
    else if (event.key === "z") undo();
    else if (number >= 0 && number < labels.length) choose(labels[number]);
    else if (event.key === "Enter" && kind !== "label") done();
    else if ((event.key === "Delete" || event.key === "Backspace") && remove()) { /* removed */ }
    else if (event.key === "Escape") { chosen = entity = null; show(); }
    else if (event.key === "ArrowLeft") move(current - 1);
    else if (event.key === "ArrowRight") move(current + 1);
    else if (event.key === "n") firstOpen();
    else if (event.key === "d") download();
    else return;
    event.preventDefault();
  });
  // Another window with this page has decided: take that over, and leave a text that it decided.
  window.addEventListener("storage", (event) => {
    if (event.key !== store || !event.newValue) return;
    const before = decided[current];
    load(event.newValue);
    if (!before && decided[current]) firstOpen(); else move(current);
  });
  const open = items.findIndex((_, index) => !decided[index]);
  move(open < 0 ? 0 : open);
})();
