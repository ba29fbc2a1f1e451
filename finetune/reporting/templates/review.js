"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const data = JSON.parse(get("data").textContent), items = data.items;
  const key = `finetune-review-${data.key}`;
  let decided = {}, current = 0;
  try { decided = JSON.parse(localStorage.getItem(key)) || {}; } catch { decided = {}; }
  const save = () => {
    try { localStorage.setItem(key, JSON.stringify(decided)); } catch { /* no storage: memory only */ }
  };

  const choices = (item) => {
    const found = [["a", `accept: ${item.suggested}`, "accept", item.suggested]];
    if (item.given !== null) found.push(["k", `keep: ${item.given}`, "keep", item.given]);
    const others = item.labels.filter((name) => name !== item.suggested && name !== item.given);
    others.forEach((name, number) => found.push([number < 9 ? String(number + 1) : "", name, "other", name]));
    found.push(["s", "skip", "skip", null]);
    return found;
  };
  const decide = (decision, label) => {
    decided[current] = { decision, label };
    save();
    move(current + 1);
  };
  const move = (index) => {
    current = Math.max(0, Math.min(items.length - 1, index));
    show();
  };
  const firstOpen = () => {
    for (let step = 1; step <= items.length; step++) {
      const index = (current + step) % items.length;
      if (!decided[index]) { move(index); return; }
    }
  };
  const show = () => {
    const item = items[current], known = decided[current];
    get("position").textContent =
      `${current + 1} of ${items.length}, ${Object.keys(decided).length} decided`;
    get("text").textContent = item.text;
    get("facts").textContent = item.facts;
    get("decisions").replaceChildren(...choices(item).map(([shortcut, name, decision, label]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = shortcut ? `${name} (${shortcut})` : name;
      button.setAttribute("aria-pressed",
        String(Boolean(known) && known.decision === decision && known.label === label));
      button.addEventListener("click", () => decide(decision, label));
      return button;
    }));
  };
  const download = () => {
    const lines = Object.entries(decided).filter(([, each]) => each.decision !== "skip")
      .map(([index, each]) => JSON.stringify({ ...items[index].source, ...each }) + "\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    link.download = "decisions.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  get("previous").addEventListener("click", () => move(current - 1));
  get("next").addEventListener("click", () => move(current + 1));
  get("open").addEventListener("click", firstOpen);
  get("download").addEventListener("click", download);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const choice = choices(items[current]).find(([shortcut]) => shortcut === event.key);
    if (choice) decide(choice[2], choice[3]);
    else if (event.key === "ArrowLeft") move(current - 1);
    else if (event.key === "ArrowRight") move(current + 1);
    else if (event.key === "n") firstOpen();
    else if (event.key === "d") download();
    else return;
    event.preventDefault();
  });
  const open = items.findIndex((_, index) => !decided[index]);
  move(open < 0 ? 0 : open);
})();
