"use strict";
// Search by example: similar images of a clicked one, and all images of a cluster by typicality.
const dialog = document.getElementById("similar");
const byCluster = points.modes[0]; // the groups of this mode are clusters

/** A button with the image at this place of the sprite sheet. */
function sprite(index) {
  const node = document.createElement("button");
  const picture = imageElement(index);
  node.type = "button";
  node.className = "sprite";
  node.style.cssText = picture.style.cssText;
  node.style.setProperty("--cluster-colour", byCluster.colours[byCluster.groups[index]]);
  node.title = `cluster ${byCluster.names[byCluster.groups[index]]}, image ${points.names[index]}`;
  node.setAttribute("aria-label", node.title);
  node.addEventListener("click", () => showSimilar(index));
  return node;
}

function openDialog(image, facts, indices) {
  document.getElementById("example-image").replaceChildren(image);
  document.getElementById("example-facts").replaceChildren(facts);
  document.getElementById("similar-images").replaceChildren(...indices.map(sprite));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** The images that are most similar to an image of the map. */
function showSimilar(index) {
  openDialog(imageElement(index), factList(index), points.similar[index]);
}

/** The images that are most similar to an image of the page. */
function showSimilarTo(node) {
  const image = node.cloneNode();
  for (const name of ["data-similar", "tabindex", "role", "class"]) image.removeAttribute(name);
  const facts = document.createElement("p");
  facts.textContent = node.title;
  openDialog(image, facts, node.dataset.similar.split(" ").map(Number));
}

document.addEventListener("click", (event) => {
  if (event.target.dataset?.similar) showSimilarTo(event.target);
  else if (event.target === dialog) dialog.close();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.dataset?.similar) showSimilarTo(event.target);
});
document.getElementById("similar-close").addEventListener("click", () => dialog.close());
for (const details of document.querySelectorAll(".browse")) {
  details.addEventListener("toggle", () => {
    const place = details.querySelector(".sprites");
    if (!details.open || place.childElementCount) return;
    const cluster = Number(place.dataset.cluster);
    place.append(...points.order.filter((index) => byCluster.groups[index] === cluster).map(sprite));
  });
}
