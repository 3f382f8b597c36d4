// Only textContent is set: text of the corpus never becomes HTML. data-word is the word's place.
const points = [...document.querySelectorAll("#points path")];
const shown = document.getElementById("shown");
function show(point) {
  const text = point.firstElementChild.textContent;
  const [start, end] = point.dataset.word.split(" ").map(Number);
  const mark = document.createElement("mark");
  mark.textContent = text.slice(start + 1, end - 1);
  shown.replaceChildren(text.slice(0, start), mark, text.slice(end));
}
points.forEach((point, i) => {
  point.setAttribute("tabindex", i ? -1 : 0);
  point.addEventListener("mouseenter", () => show(point));
  point.addEventListener("focus", () => show(point));
  point.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = points[i + (step || 0)];
    if (!step || !next) return;
    event.preventDefault();
    point.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
});
