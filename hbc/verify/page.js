"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("tensors");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const SVG = "http:" + "//www.w3.org/2000/svg"; // a name, not an address: nothing is fetched

  // ---- sorting and filtering

  let sorted = { column: 0, down: false };

  function sortBy(column) {
    const down = sorted.column === column ? !sorted.down : column > 5;
    sorted = { column, down };
    const keys = new Map(rows.map((r) => [r, r.cells[column].dataset.key]));
    const numeric = [...keys.values()].every((k) => k === "" || !Number.isNaN(Number(k)));
    const order = (a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const sign = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
      return down ? -sign : sign;
    };
    closeAll();
    body.append(...[...rows].sort(order));
    for (const head of table.tHead.rows[1].cells) head.removeAttribute("aria-sort");
    table.tHead.rows[1].cells[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  const filter = document.getElementById("filter");
  const own = document.getElementById("own");
  const total = document.getElementById("total");
  const only = document.getElementById("only");

  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    closeAll();
    for (const row of rows) {
      const d = row.dataset;
      const fits =
        words.every((w) => d.words.includes(w)) &&
        (!own.value || d.own === own.value) &&
        (!total.value || d.total === total.value) &&
        (!only.checked || d.starts);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("count").textContent = `${shown} of ${rows.length}`;
  }

  // ---- histograms

  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function element(name, kind, text) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function chart(series, labels, title, tips) {
    const [width, height, foot] = [520, 180, 22];
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    const count = series[0].counts.length;
    const most = Math.max(1, ...series.flatMap((s) => s.counts));
    const level = (n) => (n ? 4 + ((height - foot - 8) * Math.log1p(n)) / Math.log1p(most) : 0); // few outliers stay visible
    for (const { kind, counts } of series) {
      counts.forEach((n, i) => {
        const h = level(n);
        const bar = node("rect", {
          class: kind, x: (i * width) / count + 0.5, y: height - foot - h, width: width / count - 1, height: h,
        });
        bar.append(node("title", {}, tips(i, n, kind)));
        svg.append(bar);
      });
    }
    svg.append(node("line", { class: "grid", x1: 0, x2: width, y1: height - foot, y2: height - foot }));
    labels.forEach(([share, text], i) => {
      const anchor = i === 0 ? "start" : i === labels.length - 1 ? "end" : "middle";
      svg.append(node("text", { class: "tick", x: share * width, y: height - 6, "text-anchor": anchor }, text));
    });
    const box = element("div");
    box.append(element("h3", "", title), svg);
    return box;
  }

  const short = (x) => Number(x.toPrecision(4)).toString();

  function charts(h) {
    const box = element("div", "charts");
    const step = (h.high - h.low) / h.reference.length;
    const series = [{ kind: "reference", counts: h.reference }, { kind: "judged", counts: h.judged }];
    const names = { reference: data.from, judged: data.to };
    const marks = [0, 0.5, 1].map((s) => [s, short(h.low + s * (h.high - h.low))]);
    box.append(chart(series, marks, `values: ${data.from} (orange) and ${data.to} (blue), logarithmic counts`, (i, n, kind) =>
      `${names[kind]}: ${n} from ${short(h.low + i * step)} to ${short(h.low + (i + 1) * step)}`));
    const middle = (h.difference.length - 1) / 2;
    const unit = h.in_quanta ? "quanta" : "plain units";
    const at = (i) => (h.in_quanta ? i - middle : (2 * h.reach * (i + 0.5)) / h.difference.length - h.reach);
    const edge = h.in_quanta ? [`≤ −${middle}`, `≥ ${middle}`] : [short(-h.reach), short(h.reach)];
    const ends = [[0, edge[0]], [0.5, "0"], [1, edge[1]]];
    box.append(chart([{ kind: "difference", counts: h.difference }], ends, `difference, ${data.to} − ${data.from}, in ${unit}`,
      (i, n) => `${n} at ${short(at(i))}`));
    return box;
  }

  // ---- details

  function closeAll() {
    for (const open of [...body.querySelectorAll(".detail")]) open.remove();
    for (const button of body.querySelectorAll(".open[aria-expanded=true]")) button.setAttribute("aria-expanded", "false");
  }

  function toggle(row) {
    const button = row.querySelector(".open");
    if (button.getAttribute("aria-expanded") === "true") {
      row.nextElementSibling.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const d = data.rows[Number(row.id.slice(1))];
    const detail = element("tr", "detail");
    const cell = detail.insertCell();
    cell.colSpan = row.cells.length;
    const facts = element("dl");
    const fact = (name, value) => facts.append(element("dt", "", name), element("dd", "", value));
    fact("nodes", d.nodes.join(", ") || "none");
    if (d.source !== d.name) fact(`in ${data.from}`, d.source);
    fact("largest difference", `total ${d.max_abs}` + (d.own_max_abs === null ? "" : `, own ${d.own_max_abs}`));
    if (d.saturated !== null) fact("saturated", `${(100 * d.saturated).toFixed(3)}% of the reference lies outside the range`);
    cell.append(facts);
    cell.append(d.histogram ? charts(d.histogram) : element("p", "dim", "no histogram"));
    row.after(detail);
    button.setAttribute("aria-expanded", "true");
  }

  table.tHead.addEventListener("click", (e) => {
    const button = e.target.closest("button");
    if (button) sortBy(Number(button.dataset.column));
  });
  body.addEventListener("click", (e) => {
    const row = e.target.closest("tr[id]");
    if (row && (e.target.closest(".open") || !e.target.closest("button, a"))) toggle(row);
  });
  for (const control of [filter, own, total, only]) control.addEventListener("input", show);
  addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!row || !rows.includes(row)) return;
    if (row.hidden) {
      filter.value = own.value = total.value = "";
      only.checked = false;
      show();
    }
    if (row.querySelector(".open").getAttribute("aria-expanded") !== "true") toggle(row);
    row.scrollIntoView({ block: "center" });
  });
  show();
  if (location.hash) dispatchEvent(new HashChangeEvent("hashchange"));
})();
