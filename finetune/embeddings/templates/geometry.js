"use strict";
(() => {
  for (const card of document.querySelectorAll(".attention")) {
    const tables = JSON.parse(card.dataset.tables);
    const layer = card.querySelector(".layer");
    const kind = card.querySelector(".kind");
    const rows = [...card.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]);
    const show = () => {
      const table = tables[kind.value][layer.value - 1];
      card.querySelector("output").textContent = layer.value;
      rows.forEach((cells, i) => cells.forEach((cell, j) => {
        cell.style.setProperty("--share", table[i][j] / 100);
        cell.textContent = Math.round(table[i][j]);
      }));
    };
    layer.addEventListener("input", show);
    kind.addEventListener("change", show);
    card.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  }
})();
