"use strict";
// Draws the charts in the colours of the theme; builds the table of contents; switches light and dark.
const charts = JSON.parse(document.getElementById("charts").textContent);
const figures = new Map(); // element -> () => { data, layout, settings }
const config = { displayModeBar: false, responsive: true, showTips: false };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A copy in which every `var(--name)` is replaced by its colour in the current theme. */
function withColours(value) {
  if (typeof value === "string") return value.startsWith("var(") ? colour(value.slice(4, -1)) : value;
  if (Array.isArray(value)) return value.map(withColours);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withColours(inner)]));
  }
  return value;
}

function themedLayout(layout, height) {
  const axis = { gridcolor: "var(--grid)", linecolor: "var(--rule)", zerolinecolor: "var(--rule)", fixedrange: true, ticks: "", automargin: true };
  const title = { font: { size: 12, color: "var(--muted)" }, standoff: 8 };
  const merged = (options = {}) => ({ ...axis, ...options, title: { ...title, ...options.title } });
  const small = window.innerWidth < 560;
  return withColours({
    margin: { l: 44, r: 12, t: 26, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: small ? 11 : 12, color: "var(--muted)" },
    legend: { orientation: "h", x: 0, y: -0.22, yanchor: "top" },
    hoverlabel: { bgcolor: "var(--surface)", bordercolor: "var(--rule)", font: { color: "var(--text)" } },
    showlegend: true,
    dragmode: false,
    height,
    ...layout,
    xaxis: { showgrid: false, ...merged(layout.xaxis) },
    yaxis: merged(layout.yaxis),
  });
}

function draw(element) {
  const { data, layout, settings } = figures.get(element)();
  return Plotly.react(element, withColours(data), layout, { ...config, ...settings });
}

function drawAll() {
  for (const element of figures.keys()) draw(element);
}

for (const element of document.querySelectorAll("[data-chart]")) {
  const chart = charts[element.dataset.chart];
  const legend = chart.data.length < 2 ? { showlegend: false } : {};
  figures.set(element, () => ({ data: chart.data, layout: themedLayout({ ...legend, ...chart.layout }, chart.height || 300) }));
  draw(element);
}

// Switch between light and dark
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("fedmcc-theme", root.dataset.theme); } catch { /* private window */ }
  drawAll();
});
system.addEventListener("change", drawAll);

// When printing: light, as wide as the paper, with all details open
let themeBefore = "";
let closed = [];
addEventListener("beforeprint", () => {
  themeBefore = root.dataset.theme || "";
  root.dataset.theme = "light";
  closed = [...document.querySelectorAll("details:not([open], .browse)")];
  for (const details of closed) details.open = true;
  for (const element of figures.keys()) {
    const height = element.id === "image-map" ? 556 : element.offsetHeight;
    draw(element);
    Plotly.relayout(element, { width: 640, height, autosize: false });
  }
});
addEventListener("afterprint", () => {
  root.dataset.theme = themeBefore;
  for (const details of closed) details.open = false;
  for (const element of figures.keys()) Plotly.relayout(element, { width: null, height: null, autosize: true });
  drawAll();
});

// Table of contents
const list = document.querySelector(".toc ol");
const links = new Map();
for (const section of document.querySelectorAll("main section")) {
  const link = document.createElement("a");
  link.href = `#${section.id}`;
  link.textContent = section.querySelector("h2").dataset.short || section.querySelector("h2").textContent;
  list.append(document.createElement("li"));
  list.lastChild.append(link);
  links.set(section, link);
}
/** Marks the section that is in view. */
function markCurrent() {
  const passed = [...links.keys()].filter((section) => section.getBoundingClientRect().top < innerHeight * 0.35);
  for (const [section, link] of links) {
    const current = section === (passed.at(-1) || [...links.keys()][0]);
    if (current && !link.hasAttribute("aria-current")) {
      link.setAttribute("aria-current", "true");
      list.scrollTo({ left: link.offsetLeft - 40, behavior: "smooth" });
    } else if (!current) link.removeAttribute("aria-current");
  }
}
addEventListener("scroll", markCurrent, { passive: true });
markCurrent();
