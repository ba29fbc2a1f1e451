"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const data = JSON.parse(get("data").textContent);
  const map = get("map"), tip = get("tip"), canvas = tip.parentElement, links = get("links");
  const points = [...get("points").children];
  const items = [...get("occurrences").children];
  const texts = items.map((item) => item.textContent.toLowerCase());
  const groups = [...document.querySelectorAll(".group")];
  const slider = get("layer"), search = get("search");
  const namespace = "http://www.w3.org/2000/svg";
  const reach = 26; // SVG units from a point at which it is pointed at
  let layer = data.layers.length - 1, cursor = -1, chosen = -1;
  const visible = points.map(() => true);

  const at = (index) => {
    const all = data.points[layer];
    return [all[2 * index], all[2 * index + 1]];
  };
  const sentence = (index) => [...items[index].querySelector("button").children]
    .map((node) => node.cloneNode(true));

  const showTip = (index) => {
    tip.hidden = index < 0;
    if (index < 0) return;
    tip.replaceChildren(...sentence(index));
    const scale = map.clientWidth / map.viewBox.baseVal.width;
    const [x, y] = at(index).map((value) => value * scale);
    const room = canvas.clientWidth - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(room, x - tip.offsetWidth / 2)) + "px";
    const below = y + 14 + tip.offsetHeight <= canvas.clientHeight || y < tip.offsetHeight + 14;
    tip.style.top = (below ? y + 14 : y - 14 - tip.offsetHeight) + "px";
  };
  const setCursor = (index) => {
    points[cursor]?.classList.remove("cursor");
    cursor = index;
    points[cursor]?.classList.add("cursor");
    showTip(index);
    map.setAttribute("aria-label", index < 0 ? "Map of the occurrences" : texts[index].trim());
  };

  const neighbors = () => data.neighbors[layer][chosen] || [];
  const drawLinks = () => {
    for (const point of points) point.classList.remove("near", "chosen");
    points[chosen]?.classList.add("chosen");
    links.replaceChildren(...neighbors().filter((other) => visible[other]).map((other) => {
      points[other].classList.add("near");
      const line = document.createElementNS(namespace, "line");
      const [x1, y1] = at(chosen), [x2, y2] = at(other);
      for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(name, value);
      line.setAttribute("class", "link");
      return line;
    }));
  };
  const showPanel = () => {
    get("nothing").hidden = chosen >= 0;
    get("selected").hidden = chosen < 0;
    drawLinks();
    if (chosen < 0) return;
    get("chosen").replaceChildren(...sentence(chosen));
    get("neighbors-title").textContent = `By cosine in layer ${data.layers[layer]}, of all occurrences:`;
    get("neighbors").replaceChildren(...neighbors().map((other, rank) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      const cosine = document.createElement("span");
      cosine.className = "label";
      cosine.textContent = `cosine ${data.cosines[layer][chosen][rank].toFixed(3)}`;
      button.append(...sentence(other), cosine);
      button.addEventListener("click", () => choose(other));
      item.append(button);
      return item;
    }));
  };
  const choose = (index) => {
    chosen = index;
    setCursor(index);
    showPanel();
  };

  const setLayer = (index) => {
    layer = index;
    points.forEach((point, number) => {
      const [x, y] = at(number);
      point.style.transform = `translate(${x}px,${y}px)`;
    });
    const name = String(data.layers[layer]);
    get("layer-name").textContent = name;
    slider.setAttribute("aria-valuetext", name);
    get("summary").textContent = data.summaries[layer];
    showTip(cursor);
    showPanel();
  };
  const filter = () => {
    const words = search.value.toLowerCase().trim();
    let count = 0;
    points.forEach((point, index) => {
      const on = groups[data.groups[index]].getAttribute("aria-pressed") === "true";
      const match = texts[index].includes(words);
      visible[index] = on && match;
      point.toggleAttribute("hidden", !on);
      point.classList.toggle("dim", !match);
      items[index].hidden = !visible[index];
      count += visible[index];
    });
    get("count").textContent = `${count} of ${points.length} occurrences`;
    if (cursor >= 0 && !visible[cursor]) setCursor(-1);
    if (chosen >= 0 && !visible[chosen]) chosen = -1;
    showPanel();
  };

  const nearest = (x, y) => {
    let best = -1, least = reach * reach;
    points.forEach((_, index) => {
      if (!visible[index]) return;
      const [px, py] = at(index), distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [best, least] = [index, distance];
    });
    return best;
  };
  const pointed = (event) => {
    const box = map.getBoundingClientRect(), scale = map.viewBox.baseVal.width / box.width;
    return nearest((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  };
  const step = (dx, dy) => {
    if (!visible.includes(true)) return;
    if (cursor < 0) { setCursor(visible.indexOf(true)); return; }
    const [x, y] = at(cursor);
    let best = -1, least = Infinity;
    points.forEach((_, index) => {
      if (!visible[index] || index === cursor) return;
      const [px, py] = at(index);
      const along = (px - x) * dx + (py - y) * dy;
      const across = Math.abs((px - x) * dy - (py - y) * dx);
      // Of points in the same place, an arrow to the right or down goes to the next in the list.
      const same = px === x && py === y && (index > cursor) === (dx + dy > 0);
      const cost = same ? Math.abs(index - cursor) * 1e-6 : along + 2 * across;
      if ((same || (along > 0 && across <= along)) && cost < least) [best, least] = [index, cost];
    });
    if (best >= 0) setCursor(best);
  };

  map.setAttribute("tabindex", "0");
  map.setAttribute("role", "application");
  map.setAttribute("aria-roledescription", "map of word occurrences");
  map.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") setCursor(pointed(event));
  });
  map.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") setCursor(-1);
  });
  map.addEventListener("click", (event) => choose(pointed(event)));
  map.addEventListener("blur", () => setCursor(-1));
  map.addEventListener("keydown", (event) => {
    const arrows = {
      ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1],
    };
    if (arrows[event.key]) step(...arrows[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) choose(cursor);
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
  });
  items.forEach((item, index) => item.firstElementChild.addEventListener("click", () => {
    choose(index);
    get("panel").scrollIntoView({ block: "nearest" });
  }));
  for (const group of groups) {
    group.addEventListener("click", () => {
      group.setAttribute("aria-pressed", group.getAttribute("aria-pressed") !== "true");
      filter();
    });
  }
  slider?.addEventListener("input", () => setLayer(Number(slider.value)));
  search.addEventListener("input", filter);
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("resize", () => showTip(cursor));
})();
