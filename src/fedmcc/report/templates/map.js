"use strict";
// The images as points; under the mouse or the finger a card with the image itself.
const points = JSON.parse(document.getElementById("points").textContent);
const landscape = document.getElementById("landscape");
const card = document.getElementById("card");
const buttons = [...document.querySelectorAll("[data-mode]")];
const coarse = matchMedia("(pointer: coarse)").matches;
let mode = points.modes[0];

function escaped(text) {
  const node = document.createElement("span");
  node.textContent = text;
  return node.innerHTML;
}

/** Cut in the middle, as the charts' names are. */
function shortened(text) {
  const letters = [...text];
  return letters.length <= 24 ? text : [...letters.slice(0, 11), "…", ...letters.slice(-12)].join("");
}

/** A trace for each cluster, label or client that has a point. */
function traces() {
  const groups = mode.names.map(() => []);
  mode.of.forEach((group, index) => groups[group].push(index));
  const size = Math.max(3.5, Math.min(8, 260 / Math.sqrt(points.x.length)));
  return groups.map((own, group) => ({
    type: "scatter",
    mode: "markers",
    name: escaped(shortened(mode.names[group])),
    x: own.map((index) => points.x[index]),
    y: own.map((index) => points.y[index]),
    customdata: own,
    hoverinfo: "none",
    marker: { color: mode.colours[group], size, opacity: 0.82, line: { width: 0 } },
  })).filter((trace) => trace.x.length);
}

function layout() {
  const bare = { visible: false, fixedrange: coarse };
  const few = mode.names.length <= 30;
  return {
    ...themed({
      xaxis: bare,
      yaxis: { ...bare, scaleanchor: "x" },
      margin: { l: 8, r: 8, t: 8, b: 8 },
      hovermode: "closest",
      hoverdistance: coarse ? 24 : 12,
      dragmode: coarse ? false : "zoom",
      showlegend: few,
      legend: { orientation: "h", x: 0.5, xanchor: "center", y: 0, yanchor: "top", itemsizing: "constant" },
    }),
    uirevision: "kept",
  };
}

function show(event) {
  const index = event.points[0].customdata;
  card.replaceChildren(...(points.sheet ? [picture(index)] : []), facts(index));
  card.hidden = false;
  const { clientX, clientY } = event.event.touches?.[0] || event.event;
  const { width, height } = card.getBoundingClientRect();
  const left = clientX + 18 + width > innerWidth ? clientX - 18 - width : clientX + 18;
  card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  card.style.top = `${Math.max(8, Math.min(clientY - height / 2, innerHeight - height - 8))}px`;
}

function picture(index) {
  const { url, width, height, columns, rows } = points.sheet;
  const node = document.createElement("div");
  const [column, row] = [index % columns, Math.floor(index / columns)];
  node.className = "picture";
  node.style.setProperty("--shape", `${width} / ${height}`);
  node.style.backgroundImage = `url(${url})`;
  node.style.backgroundSize = `${columns * 100}% ${rows * 100}%`;
  const share = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  node.style.backgroundPosition = `${share(column, columns)}% ${share(row, rows)}%`;
  return node;
}

function facts(index) {
  const list = document.createElement("dl");
  const add = (name, value) => {
    for (const [kind, text] of [["dt", name], ["dd", value]]) {
      list.append(document.createElement(kind));
      list.lastChild.textContent = text;
    }
  };
  for (const { key, names, of } of points.modes) add(key, names[of[index]]);
  if (points.confidence) add("confidence", points.confidence[index].toFixed(2));
  if (points.names) add("image", points.names[index]);
  return list;
}

function hide() { card.hidden = true; }

drawn.set(landscape, () => ({ data: traces(), layout: layout(), settings: { doubleClick: "reset" } }));
draw(landscape).then(() => {
  landscape.on("plotly_hover", show);
  landscape.on("plotly_click", show);
  landscape.on("plotly_unhover", hide);
});
addEventListener("scroll", hide, { passive: true });
for (const button of buttons) {
  button.addEventListener("click", () => {
    mode = points.modes[Number(button.dataset.mode)];
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    hide();
    draw(landscape);
  });
}
