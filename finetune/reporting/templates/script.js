"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  // The theme follows the system until the reader chooses one. A local file may have no storage.
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const setTheme = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    button.textContent = "Theme: " + name;
    try { localStorage.setItem("theme", name); } catch { /* not kept */ }
  };
  button.hidden = false;
  setTheme(themes.includes(stored()) ? stored() : "auto");
  button.addEventListener("click", () => {
    const now = root.dataset.theme || "auto";
    setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
  });

  const form = document.getElementById("filters");
  if (!form) return;
  const items = [...document.querySelectorAll("#errors > li")].map((item) => ({
    item, text: item.textContent.toLowerCase(),
  }));
  const selects = [...form.querySelectorAll("select")];
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const more = document.getElementById("more");
  const atFirst = 24;
  let limit = atFirst;
  const apply = () => {
    const words = search.value.toLowerCase().trim();
    const chosen = selects.filter((select) => select.value);
    let shown = 0;
    for (const { item, text } of items) {
      const has = (select) =>
        item.dataset[select.dataset.filter].split("\t").includes(select.value);
      item.hidden = !(text.includes(words) && chosen.every(has));
      shown += !item.hidden;
      item.classList.toggle("later", !item.hidden && shown > limit);
    }
    count.textContent = `${shown} of ${items.length} examples`;
    more.hidden = shown <= limit;
    more.textContent = `Show ${shown - limit} more`;
  };
  more.addEventListener("click", () => { limit = items.length; apply(); });
  form.addEventListener("input", apply);
  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply();
})();
