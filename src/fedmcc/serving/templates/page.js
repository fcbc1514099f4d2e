"use strict";
// The page of the service: classifies dropped images, shows clusters, renames and merges them.
const PARALLEL = 4; // uploads at a time
const PAGE = 48; // images of a cluster that are loaded at a time
const RECHECK = 2000; // milliseconds until the state of an update is asked for again
const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
let run = null;
let clusters = new Map();
let shown = { cluster: null, order: "typical", count: 0 };

// The token: from the address once, then from this tab only
function readToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem("fedmcc-token", found);
    history.replaceState(null, "", location.pathname);
  }
}
const token = () => sessionStorage.getItem("fedmcc-token") || "";

/** The answer of the API; throws an Error with its sentence. */
async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token() ? { Authorization: `Bearer ${token()}` } : {}) };
  let response;
  try {
    response = await fetch(`api/${path}`, { ...options, headers });
  } catch {
    throw new Error("The service does not answer: is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) byId("lock").hidden = false;
  if (!response.ok) throw new Error(answer.detail || `The service answered ${response.status}.`);
  return answer;
}
const send = (path, method, content) =>
  ask(path, { method, body: JSON.stringify(content), headers: { "Content-Type": "application/json" } });

function element(kind, attributes = {}, ...children) {
  const node = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "cluster") node.style.setProperty("--cluster", value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const percent = (share) => `${Math.round(100 * share)} %`;
const plural = (count, word) => `${number.format(count)} ${word}${count === 1 ? "" : "s"}`;
const title = (cluster) => cluster.name || `Cluster ${cluster.cluster}`;
function bar(share) {
  const inner = element("i");
  inner.style.width = `${100 * share}%`;
  return element("div", { class: "bar" }, inner);
}
function thumbnails(members) {
  return element("div", { class: "thumbs" }, ...members.map((member) => element("img", { src: member.thumbnail, alt: "", title: member.image, loading: "lazy" })));
}

// The head of the page
async function showRun() {
  run = await ask("run");
  document.title = `${run.run} · fedmcc`;
  byId("title").textContent = run.run;
  byId("subtitle").textContent = [plural(run.clusters, "cluster"), run.images ? plural(run.images, "image") : "", run.updating ? "updating tables and report …" : ""].filter(Boolean).join(" · ");
  byId("limits").textContent = `At most ${run.max_files} at a time, ${run.max_bytes / 1e6} MB and ${run.max_pixels / 1e6} megapixels each.`;
  byId("notice").hidden = !run.notice;
  byId("notice").textContent = run.notice || "";
  byId("lock").hidden = Boolean(token());
  if (run.updating) setTimeout(() => showRun().then(loadClusters).catch(showFailure), RECHECK);
}

// Clusters
async function loadClusters() {
  showClusters(await ask("clusters"));
}
function showClusters(list) {
  clusters = new Map(list.map((cluster) => [cluster.cluster, cluster]));
  byId("clusters").replaceChildren(...list.map(clusterCard));
  filterClusters();
}
function clusterCard(cluster) {
  const head = element("strong", {}, element("span", { class: "dot" }), title(cluster));
  const facts = [cluster.name ? `cluster ${cluster.cluster}` : "", run && run.images ? `${plural(cluster.size, "image")}, ${percent(cluster.share)}` : ""];
  const card = element("button", { type: "button", class: "cluster", cluster: cluster.colour, onclick: () => openDetail(cluster.cluster) }, head, element("small", {}, facts.filter(Boolean).join(" · ")), bar(cluster.share));
  if (cluster.typical.length) card.append(thumbnails(cluster.typical));
  card.dataset.search = `${cluster.cluster} ${cluster.name || ""}`.toLowerCase();
  return card;
}
function filterClusters() {
  const wanted = byId("search").value.trim().toLowerCase();
  const cards = [...byId("clusters").children];
  for (const card of cards) card.hidden = !card.dataset.search.includes(wanted);
  byId("empty").hidden = !cards.length || cards.some((card) => !card.hidden);
}

// One cluster
function openDetail(cluster) {
  shown = { cluster, order: "typical", count: 0 };
  byId("failure").hidden = true;
  fillDetail();
  byId("members").replaceChildren();
  if (!byId("detail").open) byId("detail").showModal();
  loadMembers();
}
function fillDetail() {
  const cluster = clusters.get(shown.cluster);
  const dot = element("span", { class: "dot", cluster: cluster.colour });
  byId("detail-title").replaceChildren(dot, title(cluster));
  byId("detail-subtitle").textContent = [`cluster ${cluster.cluster}`, run.images ? `${plural(cluster.size, "image")}, ${percent(cluster.share)}` : ""].filter(Boolean).join(" · ");
  byId("name").value = cluster.name || "";
  const others = [...clusters.values()].filter((other) => other.cluster !== cluster.cluster);
  byId("other").replaceChildren(...others.map((other) => element("option", { value: other.cluster }, other.name ? `${other.cluster}: ${other.name}` : `Cluster ${other.cluster}`)));
  byId("merge").hidden = clusters.size <= 2;
}
async function loadMembers() {
  const { cluster, order, count } = shown;
  for (const button of document.querySelectorAll("[data-order]")) button.setAttribute("aria-pressed", String(button.dataset.order === order));
  try {
    const page = await ask(`clusters/${cluster}/members?order=${order}&start=${count}&count=${PAGE}`);
    if (shown.cluster !== cluster || shown.order !== order || shown.count !== count) return;
    byId("members").append(...page.members.map(memberFigure));
    shown.count += page.members.length;
    byId("more").hidden = shown.count >= page.total || !page.members.length;
    byId("no-members").hidden = shown.count > 0;
    byId("no-members").textContent = run.shows_images || !page.total ? "There are none." : "The images of the run cannot be shown here.";
  } catch (error) { showFailure(error); }
}
function memberFigure(member) {
  const certainty = member.confidence === null ? "" : member.confidence.toFixed(2);
  const second = member.second === null ? "" : `, second choice ${member.second}`;
  const caption = element("figcaption", {}, element("span", {}, member.image), element("span", {}, certainty));
  return element("figure", { title: `${member.image}${certainty && `, confidence ${certainty}`}${second}${member.outlier ? ", outlier" : ""}` }, element("img", { src: member.thumbnail, alt: member.image, loading: "lazy" }), caption);
}
async function change(event, request) {
  event.preventDefault();
  if (!token()) { byId("unlock").showModal(); return; }
  byId("failure").hidden = true;
  const button = event.submitter;
  button.disabled = true;
  try {
    showClusters(await request());
    openDetail(shown.cluster);
    await showRun();
  } catch (error) { showFailure(error); }
  button.disabled = false;
}
function showFailure(error) {
  const place = byId("detail").open ? byId("failure") : byId("notice");
  place.textContent = error.message;
  place.hidden = false;
}

// Images that the user drops
let waiting = [];
let active = 0;
let sent = 0;
let done = 0;
function take(files) {
  const taken = [...files].slice(0, run ? run.max_files : 0);
  if (taken.length < files.length) showFailure(new Error(`Only the first ${taken.length} of ${files.length} files were taken: drop the others next.`));
  if (!active && !waiting.length) [sent, done] = [0, 0];
  sent += taken.length;
  waiting.push(...taken);
  while (active < PARALLEL && waiting.length) { active += 1; work(); }
}
async function work() {
  while (waiting.length) {
    showProgress();
    const file = waiting.shift();
    byId("results").prepend(await classify(file));
    done += 1;
  }
  active -= 1;
  showProgress();
}
function showProgress() {
  byId("progress").hidden = !active && done === sent;
  byId("progress").textContent = `${done} of ${plural(sent, "image")} …`;
}
async function classify(file) {
  try {
    if (run.max_bytes < file.size) throw new Error(`The file is too large: send at most ${run.max_bytes / 1e6} MB.`);
    const answer = await ask("predict", { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    return resultCard(file.name, answer);
  } catch (error) {
    return element("div", { class: "result refused" }, element("p", { class: "file" }, file.name), element("p", {}, error.message));
  }
}
function resultCard(name, answer) {
  const cluster = clusters.get(answer.cluster);
  const open = element("button", { type: "button", onclick: () => openDetail(answer.cluster) }, cluster ? title(cluster) : answer.title);
  const verdict = element("p", { class: "verdict" }, element("span", { class: "dot" }), open);
  if (answer.outlier) verdict.append(element("span", { class: "flag", title: "Unlike the images of the run" }, "outlier"));
  const facts = element("div", { class: "facts" });
  if (answer.confidence !== null) facts.append(bar(answer.confidence), `confidence ${answer.confidence.toFixed(2)}`);
  const second = answer.second === null ? null : clusters.get(answer.second);
  if (second) facts.append(` · second choice ${title(second)}`);
  const card = element("article", { class: "result", cluster: answer.colour }, element("img", { src: answer.thumbnail, alt: `${name} as the network sees it`, title: "As the network sees it" }));
  card.append(element("div", {}, element("p", { class: "file", title: name }, name), verdict), facts);
  if (cluster && cluster.typical.length) card.append(thumbnails(cluster.typical.slice(0, 6)));
  return card;
}

// Controls
const drop = byId("drop");
byId("files").addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
for (const kind of ["dragover", "dragenter"]) addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files); });
byId("search").addEventListener("input", filterClusters);
byId("more").addEventListener("click", loadMembers);
for (const button of document.querySelectorAll("[data-order]")) {
  button.addEventListener("click", () => { shown = { ...shown, order: button.dataset.order, count: 0 }; byId("members").replaceChildren(); loadMembers(); });
}
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
byId("detail").addEventListener("click", (event) => { if (event.target === byId("detail")) byId("detail").close(); });
byId("rename").addEventListener("submit", (event) => change(event, () => send(`clusters/${shown.cluster}/name`, "PUT", { name: byId("name").value })));
byId("merge").addEventListener("submit", (event) => change(event, () => send(`clusters/${shown.cluster}/merge`, "POST", { others: [Number(byId("other").value)] })));
byId("lock").addEventListener("click", () => byId("unlock").showModal());
byId("unlock-form").addEventListener("submit", () => { sessionStorage.setItem("fedmcc-token", byId("token").value.trim()); byId("token").value = ""; start(); });
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
try { root.dataset.theme = localStorage.getItem("fedmcc-theme") || ""; } catch { /* private window */ }
byId("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("fedmcc-theme", root.dataset.theme); } catch { /* private window */ }
});

function start() { showRun().then(loadClusters).catch(showFailure); }
readToken();
start();
