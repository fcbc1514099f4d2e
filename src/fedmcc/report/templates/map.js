"use strict";
// The map of the images; hovering over or tapping a point shows a card with its image.
const points = JSON.parse(document.getElementById("points").textContent);
const imageMap = document.getElementById("image-map");
const card = document.getElementById("card");
const buttons = [...document.querySelectorAll("[data-mode]")];
const touch = matchMedia("(pointer: coarse)").matches;
const MAX_LEGEND_NAMES = 30;
let mode = points.modes[0];

function escaped(text) {
  const node = document.createElement("span");
  node.textContent = text;
  return node.innerHTML;
}

/** Cuts a name in the middle, as charts.py does. */
function shortened(text) {
  const letters = [...text];
  return letters.length <= 24 ? text : [...letters.slice(0, 11), "…", ...letters.slice(-12)].join("");
}

/** One trace for each cluster, label or client that has points. */
function traces() {
  const members = mode.names.map(() => []);
  mode.groups.forEach((group, index) => members[group].push(index));
  const size = Math.max(3.5, Math.min(8, 260 / Math.sqrt(points.x.length)));
  return members.map((indices, group) => ({
    type: "scatter",
    mode: "markers",
    name: escaped(shortened(mode.names[group])),
    x: indices.map((index) => points.x[index]),
    y: indices.map((index) => points.y[index]),
    customdata: indices,
    hoverinfo: "none",
    marker: { color: mode.colours[group], size, opacity: 0.82, line: { width: 0 } },
  })).filter((trace) => trace.x.length);
}

function layout() {
  const hidden = { visible: false, fixedrange: touch };
  return {
    ...themedLayout({
      xaxis: hidden,
      yaxis: { ...hidden, scaleanchor: "x" },
      margin: { l: 8, r: 8, t: 8, b: 8 },
      hovermode: "closest",
      hoverdistance: touch ? 24 : 12,
      dragmode: touch ? false : "zoom",
      showlegend: mode.names.length <= MAX_LEGEND_NAMES,
      legend: { orientation: "h", x: 0.5, xanchor: "center", y: 0, yanchor: "top", itemsizing: "constant" },
    }),
    uirevision: "kept",
  };
}

let cardIndex = null; // the point whose card is shown
function showCard(event) {
  const index = event.points[0].customdata;
  cardIndex = index;
  card.replaceChildren(...(points.sheet ? [imageElement(index)] : []), factList(index));
  if (touch && points.sheet) card.append(hint());
  card.hidden = false;
  const { clientX, clientY } = event.event.touches?.[0] || event.event;
  const { width, height } = card.getBoundingClientRect();
  const left = clientX + 18 + width > innerWidth ? clientX - 18 - width : clientX + 18;
  card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  card.style.top = `${Math.max(8, Math.min(clientY - height / 2, innerHeight - height - 8))}px`;
}

/** The address of the sprite sheet: a blob, because thousands of copies of a data URL would fill memory. */
const sheetAddress = (() => {
  if (!points.sheet) return "";
  const bytes = Uint8Array.from(atob(points.sheet.url.split(",")[1]), (letter) => letter.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/webp" }));
})();

/** The image of a point: a window onto the sprite sheet. */
function imageElement(index) {
  const { width, height, columns, rows } = points.sheet;
  const node = document.createElement("div");
  const [column, row] = [index % columns, Math.floor(index / columns)];
  node.className = "picture";
  node.style.setProperty("--shape", `${width} / ${height}`);
  node.style.backgroundImage = `url(${sheetAddress})`;
  node.style.backgroundSize = `${columns * 100}% ${rows * 100}%`;
  const percent = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  node.style.backgroundPosition = `${percent(column, columns)}% ${percent(row, rows)}%`;
  return node;
}

function factList(index) {
  const list = document.createElement("dl");
  const add = (name, value) => {
    for (const [kind, text] of [["dt", name], ["dd", value]]) {
      list.append(document.createElement(kind));
      list.lastChild.textContent = text;
    }
  };
  for (const { key, names, groups } of points.modes) add(key, names[groups[index]]);
  if (points.confidence) add("confidence", points.confidence[index].toFixed(2));
  if (points.names) add("image", points.names[index]);
  return list;
}

function hideCard() { card.hidden = true; cardIndex = null; }

/** A click shows similar images; on a touch screen a tap shows the card, and a tap on the card those. */
function choosePoint(event) {
  if (touch || !points.sheet) showCard(event);
  else { hideCard(); showSimilar(event.points[0].customdata); }
}
function hint() {
  const node = document.createElement("p");
  node.className = "hint";
  node.textContent = "Tap for similar images";
  return node;
}
card.addEventListener("touchend", (event) => {
  if (!points.sheet || cardIndex === null) return;
  const index = cardIndex;
  event.preventDefault(); // no click follows, which would hit what opens here
  hideCard();
  showSimilar(index);
});

figures.set(imageMap, () => ({ data: traces(), layout: layout(), settings: { doubleClick: "reset" } }));
draw(imageMap).then(() => {
  imageMap.on("plotly_hover", showCard);
  imageMap.on("plotly_click", choosePoint);
  imageMap.on("plotly_unhover", hideCard);
});
addEventListener("scroll", hideCard, { passive: true });
for (const button of buttons) {
  button.addEventListener("click", () => {
    mode = points.modes[Number(button.dataset.mode)];
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    hideCard();
    draw(imageMap);
  });
}
