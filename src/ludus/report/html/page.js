"use strict";
// Draws the panels of a report. Two constants are set before this text: PANELS, a list of {id, title, traces, x, y, log,
// guides, layout}, and CLOCKS, which say what wall-clock time and how many episodes belong to environment steps.
(() => {
  const root = document.documentElement;
  const STEPS = "environment steps";
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  const isTouch = window.matchMedia("(pointer: coarse)").matches;
  const isNarrow = () => window.innerWidth < 640;

  function remembered() {
    try { return window.localStorage.getItem("ludus-theme"); } catch { return null; } // a page from disk may have no store
  }
  function remember(theme) {
    try { window.localStorage.setItem("ludus-theme", theme); } catch { /* then only this page knows */ }
  }
  function setTheme(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = theme === "dark" ? "Light" : "Dark";
  }
  function merged(base, more) {
    const out = { ...base };
    for (const [name, value] of Object.entries(more || {})) {
      const isTree = value && typeof value === "object" && !Array.isArray(value) && base && typeof base[name] === "object";
      out[name] = isTree ? merged(base[name], value) : value;
    }
    return out;
  }
  function axis(title, colours) {
    return { title: { text: title, standoff: 8 }, gridcolor: colours.rule, zerolinecolor: colours.rule,
      linecolor: colours.rule, automargin: true, exponentformat: "power", minexponent: 5, separatethousands: true };
  }
  function colours() {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    return { ink: value("--ink"), quiet: value("--quiet"), rule: value("--rule"), raised: value("--raised") };
  }
  function named(panel) {
    return panel.traces.filter((trace) => trace.name && trace.showlegend !== false).length;
  }
  function layout(panel) {
    const c = colours();
    const isBelow = isNarrow() && named(panel) > 3; // there is no room above the curves for so many names
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 16, t: 12, b: 44 },
      font: { color: c.ink, size: isNarrow() ? 11 : 12, family: "system-ui, DejaVu Sans, sans-serif" },
      xaxis: axis(panel.x, c), yaxis: axis(panel.y, c), hovermode: "closest",
      hoverlabel: { bgcolor: c.raised, bordercolor: c.rule, font: { color: c.ink } },
      showlegend: named(panel) > 1,
      legend: isBelow ? { orientation: "h", yref: "container", yanchor: "bottom", y: 0, x: 0, font: { size: 11 } }
        : { orientation: "h", yanchor: "bottom", y: 1.0, xanchor: "left", x: 0, font: { size: 11 } },
      dragmode: isTouch ? false : "zoom", shapes: [], annotations: [], bargap: 0.02,
    };
    if (isBelow) base.margin.b = 44 + 19 * named(panel);
    if (panel.x === STEPS) base.xaxis.tickformat = "~s";
    if (panel.log) { base.yaxis.type = "log"; }
    for (const [value, label] of panel.guides) {
      base.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value,
        line: { color: c.quiet, width: 1, dash: "dot" } });
      base.annotations.push({ xref: "paper", x: 1, xanchor: "right", y: value, yanchor: "bottom", text: label,
        showarrow: false, font: { size: 10, color: c.quiet } });
    }
    return merged(base, panel.layout);
  }
  const config = { responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function draw(panel) {
    if (isNarrow() && named(panel) > 3) {
      document.getElementById(panel.id).style.height = `${290 + 19 * named(panel)}px`;
    }
    return Plotly.newPlot(panel.id, panel.traces, layout(panel), config);
  }
  function repaint() {
    for (const panel of PANELS) {
      const place = document.getElementById(panel.id);
      if (!place || !place.layout) continue;
      const fresh = layout(panel);
      const c = colours();
      Plotly.relayout(place, { "font.color": c.ink, "hoverlabel.bgcolor": c.raised, "hoverlabel.font.color": c.ink,
        "xaxis.gridcolor": c.rule, "yaxis.gridcolor": c.rule, "xaxis.zerolinecolor": c.rule,
        "yaxis.zerolinecolor": c.rule, shapes: fresh.shapes, annotations: fresh.annotations });
    }
  }
  function along(clock) { // a function from environment steps to what the clock shows then
    if (!clock) return (steps) => steps;
    return (steps) => {
      let low = 0, high = clock.steps.length - 1;
      if (steps <= clock.steps[low]) return clock.values[low];
      if (steps >= clock.steps[high]) return clock.values[high];
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (clock.steps[middle] <= steps) low = middle; else high = middle;
      }
      const share = (steps - clock.steps[low]) / (clock.steps[high] - clock.steps[low]);
      return clock.values[low] + share * (clock.values[high] - clock.values[low]);
    };
  }
  const asDrawn = new Map(); // the steps of each panel's traces, before any clock was chosen
  async function setAxis(name) {
    const read = along(CLOCKS[name]);
    for (const panel of PANELS.filter((one) => one.x === STEPS)) {
      const place = document.getElementById(panel.id);
      if (!asDrawn.has(panel.id)) asDrawn.set(panel.id, place._fullData.map((trace) => Array.from(trace.x || [])));
      await Plotly.restyle(place, { x: asDrawn.get(panel.id).map((steps) => steps.map(read)) });
      await Plotly.relayout(place, { "xaxis.title.text": name, "xaxis.autorange": true });
    }
  }
  function theme() {
    setTheme(remembered() || (wish.matches ? "dark" : "light"));
    wish.addEventListener("change", () => { if (!remembered()) { setTheme(wish.matches ? "dark" : "light"); repaint(); } });
    document.getElementById("theme").addEventListener("click", () => {
      const theme = root.dataset.theme === "dark" ? "light" : "dark";
      setTheme(theme); remember(theme); repaint();
    });
  }
  async function show() {
    theme();
    for (const panel of PANELS) {
      await draw(panel);
      await new Promise((resolve) => setTimeout(resolve)); // the reader can scroll meanwhile
    }
    const axis = document.getElementById("axis");
    if (axis) axis.addEventListener("change", () => setAxis(axis.value));
    const film = document.querySelector("video");
    if (film && !window.matchMedia("(prefers-reduced-motion: reduce)").matches) film.play().catch(() => {});
    root.dataset.ready = "true";
  }
  async function picture() { // one PNG for each panel, as text that a headless browser prints
    setTheme("light");
    const made = {};
    for (const panel of PANELS) {
      const place = document.createElement("div");
      document.body.append(place);
      const size = { width: 720, height: 420 };
      const whole = merged(layout(panel), { ...size, margin: { t: 84 },
        title: { text: panel.title, font: { size: 15 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top" }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" });
      await Plotly.newPlot(place, panel.traces, whole, { staticPlot: true });
      made[panel.id] = await Plotly.toImage(place, { format: "png", scale: 1.5, ...size });
      Plotly.purge(place);
      place.remove();
    }
    const text = document.createElement("pre");
    text.id = "images";
    text.textContent = JSON.stringify(made);
    document.body.replaceChildren(text);
    document.querySelectorAll("script").forEach((script) => script.remove());
  }
  if (root.dataset.mode === "export") picture();
  else if (root.dataset.mode === "live") window.ludus = { theme, layout, config }; // PANELS fills while one watches
  else show();
})();
