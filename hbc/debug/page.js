"use strict";
(() => {
  for (const table of document.querySelectorAll("table.report")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const section = table.closest("section");
    const [filter, only, count] = [".filter", ".only", ".count"].map((s) => section.querySelector(s));
    let sorted = { column: -1, down: false };

    function sortBy(column) {
      const keys = new Map(rows.map((r) => [r, r.cells[column].dataset.key]));
      const numeric = [...keys.values()].every((k) => k === "" || !Number.isNaN(Number(k)));
      const down = sorted.column === column ? !sorted.down : numeric;
      sorted = { column, down };
      const order = (a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const sign = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
        return down ? -sign : sign;
      };
      body.append(...[...rows].sort(order));
      for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
      table.tHead.rows[0].cells[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    }

    function show() {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = words.every((w) => text.includes(w)) && (!only || !only.checked || row.classList.contains("flagged"));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length}`;
    }

    table.tHead.addEventListener("click", (e) => {
      const head = e.target.closest("th");
      if (head) sortBy(head.cellIndex);
    });
    filter.addEventListener("input", show);
    if (only) only.addEventListener("input", show);
    show();
  }
})();
