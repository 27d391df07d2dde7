"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const COLOURS = { load: "#4c78a8", store: "#72b7b2", tensor: "#f58518", vector: "#54a24b", lut: "#b279a2",
    pool: "#9d755d", move: "#bab0ac", host: "#8892a0", cpu: "#d62728" };
  const tip = document.createElement("div");
  tip.className = "tip";
  document.body.append(tip);

  function svg(tag, attributes, parent, text) {
    const e = document.createElementNS(NS, tag);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.append(e);
    return e;
  }
  function hover(e, text) {
    e.addEventListener("mousemove", (m) => {
      tip.textContent = text;
      tip.style.display = "block";
      tip.style.left = Math.min(m.clientX + 12, innerWidth - 300) + "px";
      tip.style.top = m.clientY + 14 + "px";
    });
    e.addEventListener("mouseleave", () => { tip.style.display = "none"; });
  }
  const time = (us) => us >= 1000 ? (us / 1000).toFixed(3) + " ms" : us.toFixed(1) + " µs";
  const bytes = (b) => b >= 1048576 ? (b / 1048576).toFixed(1) + " MiB" : b >= 1024 ? (b / 1024).toFixed(1) + " KiB" : b + " B";
  const figures = (l) => `${l.layer}\n${l.kind} [${l.shape.join(" × ")}]\n${time(l.us)}: ${l.bound}\n${l.macs.toLocaleString()} MACs, ${bytes(l.loaded + l.stored)} of DDR`;

  function niceStep(span, count) {
    const p = Math.pow(10, Math.floor(Math.log10(span / count)));
    return [1, 2, 5, 10].map((f) => f * p).find((s) => span / s <= count);
  }

  function timeline(id, spans, whole, about) {
    const lanes = ["load", "tensor", "vector", "lut", "pool", "move", "store", "host", "cpu"]
      .filter((n) => spans.some((s) => s[0] === n && s[2] > s[1]));
    const W = 1150, L = 60, H = 26, height = lanes.length * H + 24;
    const root = svg("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": id }, document.getElementById(id));
    const clip = svg("clipPath", { id: id + "-lanes" }, svg("defs", {}, root));
    svg("rect", { x: L, y: 0, width: W - L, height }, clip);
    const body = svg("g", { "clip-path": `url(#${id}-lanes)` }, root);
    lanes.forEach((n, i) => svg("text", { x: 6, y: i * H + 17 }, root, n));
    let from = 0, to = Math.max(whole, 1e-6);
    function draw() {
      body.replaceChildren();
      const k = (W - L) / (to - from), x = (t) => L + (t - from) * k;
      const step = niceStep(to - from, 9);
      for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
        svg("line", { x1: x(t), x2: x(t), y1: 0, y2: lanes.length * H, stroke: "#e8ebf0" }, body);
        const last = x(t) > W - 70;
        svg("text", { x: x(t) + (last ? -2 : 2), y: lanes.length * H + 15, class: "soft", "text-anchor": last ? "end" : "start" }, body, time(t));
      }
      for (const [engine, start, end, layer] of spans) {
        if (end < from || start > to || end <= start) continue;
        const r = svg("rect", { x: x(start), y: lanes.indexOf(engine) * H + 4, width: Math.max(0.4, (end - start) * k), height: H - 8, fill: COLOURS[engine] || "#888" }, body);
        hover(r, engine + ", " + time(end - start) + " from " + time(start) + "\n" + about(layer));
      }
    }
    root.addEventListener("wheel", (e) => {
      e.preventDefault();
      const box = root.getBoundingClientRect();
      const at = from + (to - from) * Math.min(1, Math.max(0, ((e.clientX - box.left) / box.width * W - L) / (W - L)));
      const f = e.deltaY < 0 ? 0.8 : 1.25;
      from = Math.max(0, at - (at - from) * f);
      to = Math.min(whole, at + (to - at) * f);
      draw();
    }, { passive: false });
    let drag = null;
    root.addEventListener("pointerdown", (e) => { drag = [e.clientX, from, to]; root.setPointerCapture(e.pointerId); });
    root.addEventListener("pointerup", () => { drag = null; });
    root.addEventListener("pointermove", (e) => {
      if (!drag) return;
      const span = drag[2] - drag[1];
      const moved = (drag[0] - e.clientX) / root.getBoundingClientRect().width * W / (W - L) * span;
      from = Math.max(0, Math.min(whole - span, drag[1] + moved));
      to = from + span;
      draw();
    });
    root.addEventListener("dblclick", () => { from = 0; to = whole; draw(); });
    draw();
  }

  function table() {
    const columns = [["#", (l, i) => i], ["layer", (l) => l.layer], ["kind", (l) => l.kind], ["engine", (l) => l.engine],
      ["shape", (l) => l.shape.join("×")], ["µs", (l) => l.us], ["compute µs", (l) => l.compute_us], ["DDR µs", (l) => l.transfer_us],
      ["MACs", (l) => l.macs], ["DDR bytes", (l) => l.loaded + l.stored], ["of peak %", (l) => 100 * l.utilization], ["bound by", (l) => l.bound]];
    const t = document.createElement("table"), head = t.createTHead().insertRow(), body = t.createTBody();
    const rows = D.layers.map((l, i) => columns.map((c) => c[1](l, i)));
    let sorted = -1, up = true;
    function fill() {
      body.replaceChildren();
      for (const r of rows) {
        const tr = body.insertRow();
        r.forEach((v, i) => {
          const td = tr.insertCell();
          if (typeof v === "number") td.className = "n";
          td.textContent = typeof v !== "number" ? v : Number.isInteger(v) ? v.toLocaleString() : v.toFixed(2);
        });
      }
    }
    columns.forEach((c, i) => {
      const th = document.createElement("th");
      th.textContent = c[0];
      if (rows.length && typeof rows[0][i] === "number") th.className = "n";
      th.addEventListener("click", () => {
        up = sorted === i ? !up : typeof rows[0][i] !== "number";
        sorted = i;
        rows.sort((a, b) => (a[i] > b[i] ? 1 : a[i] < b[i] ? -1 : 0) * (up ? 1 : -1));
        fill();
      });
      head.append(th);
    });
    fill();
    document.getElementById("table").append(t);
  }

  function axes(root, box, xs, ys, xname, yname) {
    for (const [v, label] of xs) {
      svg("line", { x1: v, x2: v, y1: box.top, y2: box.bottom, stroke: "#eef0f4" }, root);
      svg("text", { x: v, y: box.bottom + 14, "text-anchor": "middle", class: "soft" }, root, label);
    }
    for (const [v, label] of ys) {
      svg("line", { x1: box.left, x2: box.right, y1: v, y2: v, stroke: "#eef0f4" }, root);
      svg("text", { x: box.left - 6, y: v + 4, "text-anchor": "end", class: "soft" }, root, label);
    }
    svg("text", { x: box.right, y: box.bottom + 30, "text-anchor": "end" }, root, xname);
    svg("text", { x: box.left, y: box.top - 8 }, root, yname);
  }

  function roofline() {
    const points = D.layers.filter((l) => l.macs && l.loaded + l.stored && l.us)
      .map((l) => [2 * l.macs / (l.loaded + l.stored), 2 * l.macs / l.us / 1000, l]);
    const root = svg("svg", { viewBox: "0 0 1150 380", role: "img", "aria-label": "roofline" }, document.getElementById("roofline"));
    const box = { left: 70, right: 1130, top: 24, bottom: 336 };
    const ridge = D.peak / D.ddr;
    const lx = Math.floor(Math.log10(Math.min(ridge / 10, ...points.map((p) => p[0]))));
    const hx = Math.ceil(Math.log10(Math.max(ridge * 10, ...points.map((p) => p[0]))));
    const ly = Math.floor(Math.log10(Math.min(D.peak / 1000, ...points.map((p) => p[1])))), hy = Math.ceil(Math.log10(D.peak * 1.2));
    const x = (v) => box.left + (Math.log10(v) - lx) / (hx - lx) * (box.right - box.left);
    const y = (v) => box.bottom - (Math.log10(v) - ly) / (hy - ly) * (box.bottom - box.top);
    const range = (a, b) => Array.from({ length: b - a + 1 }, (_, i) => a + i);
    const label = (e) => e >= -2 && e < 6 ? String(Number(Math.pow(10, e).toPrecision(1))) : "1e" + e;
    axes(root, box, range(lx, hx).map((e) => [x(Math.pow(10, e)), label(e)]), range(ly, hy).map((e) => [y(Math.pow(10, e)), label(e)]), "operations / DDR byte", "GOPS");
    const start = Math.pow(10, Math.max(lx, ly - Math.log10(D.ddr)));
    svg("polyline", { points: `${x(start)},${y(start * D.ddr)} ${x(ridge)},${y(D.peak)} ${box.right},${y(D.peak)}`, fill: "none", stroke: "#1d2430", "stroke-width": 1.5 }, root);
    svg("text", { x: box.right - 4, y: y(D.peak) - 5, "text-anchor": "end" }, root, `peak ${D.peak.toFixed(0)} GOPS, DDR ${D.ddr.toFixed(1)} GB/s`);
    for (const [a, b, l] of points) {
      const c = svg("circle", { cx: x(a), cy: y(b), r: 4, fill: l.bound === "ddr" ? COLOURS.load : l.bound === "overhead" ? "#999" : COLOURS.tensor, "fill-opacity": 0.7 }, root);
      hover(c, figures(l) + `\n${a.toFixed(1)} operations a byte, ${b.toFixed(1)} GOPS`);
    }
  }

  function traffic() {
    const root = svg("svg", { viewBox: "0 0 1150 240", role: "img", "aria-label": "DDR traffic" }, document.getElementById("traffic"));
    const box = { left: 70, right: 1130, top: 24, bottom: 200 }, n = D.load.length;
    const top = Math.max(1, ...D.load.map((v, i) => v + D.store[i])), w = (box.right - box.left) / n;
    const y = (v) => box.bottom - v / top * (box.bottom - box.top), step = niceStep(top, 4);
    const ticks = []; for (let v = 0; v <= top; v += step) ticks.push([y(v), String(v)]);
    const xs = []; for (let i = 0; i <= n; i += Math.max(1, Math.ceil(n / 10))) xs.push([box.left + i * w, time(i * D.step)]);
    axes(root, box, xs, ticks, "", "MB/s: blue loaded, green stored");
    D.load.forEach((v, i) => {
      const a = svg("rect", { x: box.left + i * w, width: Math.max(0.5, w - 1), y: y(v), height: box.bottom - y(v), fill: COLOURS.load }, root);
      const s = D.store[i];
      const b = svg("rect", { x: box.left + i * w, width: Math.max(0.5, w - 1), y: y(v + s), height: y(v) - y(v + s), fill: COLOURS.store }, root);
      for (const e of [a, b]) hover(e, `${time(i * D.step)}: ${v} MB/s loaded, ${s} MB/s stored, computing ${Math.round(100 * D.busy[i])} %`);
    });
  }

  function memory() {
    const nodes = D.nodes.filter((n) => n[2] === "bpu");
    const root = svg("svg", { viewBox: "0 0 1150 240", role: "img", "aria-label": "on-chip memory" }, document.getElementById("memory"));
    const box = { left: 70, right: 1130, top: 24, bottom: 200 }, n = Math.max(1, nodes.length);
    const top = Math.max(D.onchip * 1.1, ...nodes.map((v) => v[6])), w = (box.right - box.left) / n;
    const y = (v) => box.bottom - v / top * (box.bottom - box.top);
    axes(root, box, [], [0, 0.25, 0.5, 0.75, 1].map((f) => [y(f * top), bytes(f * top)]), "instructions in running order", "bytes alive");
    nodes.forEach((v, i) => {
      const r = svg("rect", { x: box.left + i * w, width: Math.max(0.4, w - 0.4), y: y(v[6]), height: box.bottom - y(v[6]), fill: v[6] > D.onchip ? "#e45756" : COLOURS.vector }, root);
      hover(r, `${v[0]}\n${v[1]}: ${bytes(v[6])} alive`);
    });
    svg("line", { x1: box.left, x2: box.right, y1: y(D.onchip), y2: y(D.onchip), stroke: "#1d2430", "stroke-dasharray": "5 3" }, root);
    svg("text", { x: box.right, y: y(D.onchip) - 4, "text-anchor": "end", class: "halo" }, root, "on-chip memory, assumed: " + bytes(D.onchip));
  }

  function alive() {
    const S = D.stream, root = svg("svg", { viewBox: "0 0 1150 240", role: "img", "aria-label": "tiles on chip" }, document.getElementById("alive"));
    const box = { left: 70, right: 1105, top: 24, bottom: 200 }, n = S.memory.length, w = (box.right - box.left) / n;
    const top = Math.max(D.onchip * 1.1, ...S.memory), y = (v) => box.bottom - v / top * (box.bottom - box.top);
    const xs = []; for (let i = 0; i <= n; i += Math.max(1, Math.ceil(n / 8))) xs.push([box.left + i * w, time(i * S.end / n)]);
    axes(root, box, xs, [0, 0.25, 0.5, 0.75, 1].map((f) => [y(f * top), bytes(f * top)]), "", "bytes of tiles alive");
    S.memory.forEach((v, i) => {
      const r = svg("rect", { x: box.left + i * w, width: Math.max(0.4, w - 0.2), y: y(v), height: box.bottom - y(v), fill: COLOURS.vector }, root);
      hover(r, `${time(i * S.end / n)}: ${bytes(v)} alive`);
    });
    svg("line", { x1: box.left, x2: box.right, y1: y(D.onchip), y2: y(D.onchip), stroke: "#1d2430", "stroke-dasharray": "5 3" }, root);
    svg("text", { x: box.right, y: y(D.onchip) - 4, "text-anchor": "end", class: "halo" }, root, "on-chip memory, assumed: " + bytes(D.onchip));
  }

  function graph() {
    const W = 190, H = 34, fills = { bpu: "#d9efd7", host: "#e6e9ee", cpu: "#f8d0cf" };
    const columns = 1 + Math.max(0, ...D.nodes.map((n) => n[5])), rows = 1 + Math.max(0, ...D.nodes.map((n) => n[4]));
    const root = svg("svg", { width: columns * W + 20, height: rows * H + 20, role: "img", "aria-label": "model graph" }, document.getElementById("graph"));
    const x = (n) => 10 + n[5] * W, y = (n) => 10 + n[4] * H;
    for (const n of D.nodes) for (const i of n[3]) {
      const a = D.nodes[i], x1 = x(a) + 85, y1 = y(a) + 22, x2 = x(n) + 85, y2 = y(n);
      svg("path", { d: `M${x1},${y1} C${x1},${y1 + 20} ${x2},${y2 - 20} ${x2},${y2}`, fill: "none", stroke: "#b4bcc8" }, root);
    }
    for (const n of D.nodes) {
      const r = svg("rect", { x: x(n), y: y(n), width: 170, height: 22, rx: 4, fill: fills[n[2]], stroke: "#aab2bf" }, root);
      const short = n[0].length > 16 ? "…" + n[0].slice(-15) : n[0];
      const t = svg("text", { x: x(n) + 6, y: y(n) + 15, "pointer-events": "none" }, root, n[1] + " " + short);
      t.textContent = (n[1] + " " + short).slice(0, 30);
      hover(r, `${n[0]}\n${n[1]} on the ${n[2] === "bpu" ? "BPU" : n[2] === "cpu" ? "CPU" : "host"}`);
    }
  }

  timeline("timeline", D.spans, D.end, (l) => typeof l === "number" ? figures(D.layers[l]) : l);
  if (D.stream) {
    timeline("commands", D.stream.ran, D.stream.end, (l) => l);
    alive();
  }
  table(); roofline(); traffic(); memory(); graph();
})();
