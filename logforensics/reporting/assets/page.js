"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  let whole = null;
  let shown = null;
  let telling = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const config = () => {
    const text = colour("--text"), soft = colour("--soft"), line = colour("--line");
    return {
      background: "transparent", font: "system-ui, sans-serif", view: { stroke: null },
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal" },
      legend: { labelColor: text, titleColor: text }, title: { color: text },
      line: { color: colour("--series") }, point: { color: colour("--series") },
    };
  };

  // One view tells where it is, all others follow: the charts of one run are read side by side.
  const show = (range, from) => {
    if (telling || !range) return;
    telling = true;
    shown = [Number(range[0]), Number(range[1])];
    for (const [key, view] of views) {
      if (key !== from) view.signal("zoom_x", shown).run();
    }
    telling = false;
  };

  const extent = () => {
    const times = charts.filter((chart) => chart.zooms).flatMap((chart) => chart.spec.data.values.map((row) => Date.parse(row.x)));
    return times.length ? [Math.min(...times), Math.max(...times)] : null;
  };

  const zoom = (what) => {
    const [low, high] = shown || whole;
    const width = high - low, middle = (low + high) / 2;
    const moves = {
      in: [middle - width / 4, middle + width / 4], out: [middle - width, middle + width],
      left: [low - width / 4, high - width / 4], right: [low + width / 4, high + width / 4], all: whole,
    };
    show(moves[what], null);
  };

  const draw = async () => {
    for (const view of views.values()) view.finalize();
    views.clear();
    const settings = config();
    for (const chart of charts) {
      const spec = { ...chart.spec, config: settings };
      const options = { mode: "vega-lite", actions: false, renderer: "svg", tooltip: { theme: dark.matches ? "dark" : "light" } };
      const result = await window.vegaEmbed(`#chart-${chart.key}`, spec, options);
      if (!chart.zooms) continue;
      views.set(chart.key, result.view);
      result.view.addSignalListener("zoom_x", (_, range) => show(range, chart.key));
      if (shown) result.view.signal("zoom_x", shown).run();
    }
    document.documentElement.dataset.drawn = String(charts.length);
  };

  whole = extent();
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(button.dataset.zoom));
  }
  dark.addEventListener("change", draw);
  draw();
})();
