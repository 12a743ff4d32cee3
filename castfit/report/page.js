"use strict";
// Tables: a click on a head sorts by its column, another one turns the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
    };
    const compare = (a, b) => {
      if (typeof a === "number" && typeof b === "number") return sign * (a - b);
      if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
      return sign * a.localeCompare(b, undefined, { numeric: true });
    };
    [...body.rows].map((row) => [key(row), row]).sort((a, b) => compare(a[0], b[0])).forEach((pair) => body.append(pair[1]));
  }));
}
// Short tables that are wider than the screen: a line for each cell, behind its head.
const MOST_ROWS = 12;
const stack = (narrow) => {
  for (const table of document.querySelectorAll("table.sortable")) {
    table.classList.remove("stacked");
    if (!narrow || table.tBodies[0].rows.length > MOST_ROWS || table.scrollWidth <= table.parentElement.clientWidth) continue;
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.head = heads[column]; });
    table.classList.add("stacked");
  }
};
addEventListener("resize", () => stack(true));
addEventListener("beforeprint", () => stack(false));
addEventListener("afterprint", () => stack(true));
stack(true);
// Figures: switches hide what they name.
for (const box of document.querySelectorAll("input[data-series]")) {
  box.checked = true;  // browsers may remember
  box.addEventListener("change", () => {
    for (const part of document.getElementsByClassName(box.dataset.series)) part.style.display = box.checked ? "" : "none";
  });
}
// Figures: enlarged by buttons, by a double click, by the wheel with Ctrl; moved by dragging.
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg");
  if (!svg) { figure.querySelector(".zoom")?.remove(); continue; }
  const whole = svg.getAttribute("viewBox").split(/\s+/).map(Number);
  let view = [...whole];
  const show = () => {
    svg.setAttribute("viewBox", view.join(" "));
    svg.classList.toggle("zoomed", view[2] < whole[2]);
  };
  const zoom = (factor, x = 0.5, y = 0.5) => {
    const width = Math.min(whole[2], Math.max(whole[2] / 40, view[2] / factor));
    const height = width * whole[3] / whole[2];
    view = [view[0] + x * (view[2] - width), view[1] + y * (view[3] - height), width, height];
    move(0, 0);
  };
  const move = (dx, dy) => {
    view[0] = Math.min(Math.max(view[0] - dx, whole[0]), whole[0] + whole[2] - view[2]);
    view[1] = Math.min(Math.max(view[1] - dy, whole[1]), whole[1] + whole[3] - view[3]);
    show();
  };
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  const reset = () => { view = [...whole]; show(); };
  const actions = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), reset };
  for (const button of figure.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => actions[button.dataset.zoom]());
  }
  svg.addEventListener("dblclick", (event) => zoom(2, ...place(event)));
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, ...place(event));
  }, { passive: false });
  let last = null;
  svg.addEventListener("pointerdown", (event) => {
    if (view[2] < whole[2]) { last = [event.clientX, event.clientY]; svg.setPointerCapture(event.pointerId); }
  });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    const scale = view[2] / svg.getBoundingClientRect().width;
    move((event.clientX - last[0]) * scale, (event.clientY - last[1]) * scale);
    last = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { last = null; });
  addEventListener("beforeprint", reset);
}
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
