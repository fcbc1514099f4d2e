"use strict";
// Charts in the colours of the page's theme, the table of contents, and the switch between light and dark.
const charts = JSON.parse(document.getElementById("charts").textContent);
const drawn = new Map(); // element -> () => { data, layout }
const config = { displayModeBar: false, responsive: true, showTips: false };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A copy in which every `var(--name)` is the colour that it stands for now. */
function painted(value) {
  if (typeof value === "string") return value.startsWith("var(") ? colour(value.slice(4, -1)) : value;
  if (Array.isArray(value)) return value.map(painted);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, painted(inner)]));
  }
  return value;
}

function themed(layout, height) {
  const axis = { gridcolor: "var(--grid)", linecolor: "var(--rule)", zerolinecolor: "var(--rule)", fixedrange: true, ticks: "", automargin: true };
  const title = { font: { size: 12, color: "var(--muted)" }, standoff: 8 };
  const merged = (own = {}) => ({ ...axis, ...own, title: { ...title, ...own.title } });
  const small = window.innerWidth < 560;
  return painted({
    margin: { l: 44, r: 12, t: 26, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: small ? 11 : 12, color: "var(--muted)" },
    legend: { orientation: "h", x: 0, y: -0.22, yanchor: "top" },
    hoverlabel: { bgcolor: "var(--surface)", bordercolor: "var(--rule)", font: { color: "var(--ink)" } },
    showlegend: true,
    dragmode: false,
    height,
    ...layout,
    xaxis: { showgrid: false, ...merged(layout.xaxis) },
    yaxis: merged(layout.yaxis),
  });
}

function draw(element) {
  const { data, layout, settings } = drawn.get(element)();
  return Plotly.react(element, painted(data), layout, { ...config, ...settings });
}

function drawAll() {
  for (const element of drawn.keys()) draw(element);
}

for (const element of document.querySelectorAll("[data-chart]")) {
  const chart = charts[element.dataset.chart];
  const alone = chart.data.length < 2 ? { showlegend: false } : {};
  drawn.set(element, () => ({ data: chart.data, layout: themed({ ...alone, ...chart.layout }, chart.height || 300) }));
  draw(element);
}

// Light and dark
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("fedmcc-theme", root.dataset.theme); } catch { /* private window */ }
  drawAll();
});
system.addEventListener("change", drawAll);

// On paper: light, as wide as a page, and unfolded
let before = "";
let folded = [];
addEventListener("beforeprint", () => {
  before = root.dataset.theme || "";
  root.dataset.theme = "light";
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const details of folded) details.open = true;
  for (const element of drawn.keys()) {
    const height = element.id === "landscape" ? 556 : element.offsetHeight;
    draw(element);
    Plotly.relayout(element, { width: 640, height, autosize: false });
  }
});
addEventListener("afterprint", () => {
  root.dataset.theme = before;
  for (const details of folded) details.open = false;
  for (const element of drawn.keys()) Plotly.relayout(element, { width: null, height: null, autosize: true });
  drawAll();
});

// Contents
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
function mark() {
  const shown = [...links.keys()].filter((section) => section.getBoundingClientRect().top < innerHeight * 0.35);
  for (const [section, link] of links) {
    const current = section === (shown.at(-1) || [...links.keys()][0]);
    if (current && !link.hasAttribute("aria-current")) {
      link.setAttribute("aria-current", "true");
      list.scrollTo({ left: link.offsetLeft - 40, behavior: "smooth" });
    } else if (!current) link.removeAttribute("aria-current");
  }
}
addEventListener("scroll", mark, { passive: true });
mark();
