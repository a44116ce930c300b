"use strict";
// The live page. Texts from run folders are set as text, never as HTML; panels are drawn by page.js when they come into view.
(() => {
  const root = document.documentElement;
  const at = (id) => document.getElementById(id);
  const rows = new Map(); // what the list knows, by run
  const items = new Map(); // its entries on the page
  const panels = new Map(); // what is to be drawn, by identifier
  const inView = new Set();
  const script = document.querySelector("script[data-plotly]");
  let stream = null, open = null, plotly = null, sure = 0, film = "", token = "";

  function made(tag, text, kind) {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  }
  const number = (value) => value === null || value === undefined ? "" : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 3 : 1 });
  const steps = (value) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value || 0);
  function size(bytes) {
    return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  }
  function ago(seconds) {
    const past = Math.max(0, Date.now() / 1000 - seconds);
    if (past < 5) return "now";
    if (past < 90) return `${Math.round(past)} s ago`;
    if (past < 5400) return `${Math.round(past / 60)} min ago`;
    return past < 129600 ? `${Math.round(past / 3600)} h ago` : `${Math.round(past / 86400)} days ago`;
  }
  const tone = (status) => "status s-" + ((status || "").split(" ").pop().replace(/[^a-z]/g, "") || "unknown");

  // --- the list ---
  function spark(values) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 84 32");
    svg.setAttribute("aria-hidden", "true");
    if (values && values.length > 1) {
      const low = Math.min(...values), span = Math.max(...values) - low || 1;
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("d", "M" + values.map((v, i) => `${(1 + 82 * i / (values.length - 1)).toFixed(1)} ${(30 - 28 * (v - low) / span).toFixed(1)}`).join("L"));
      svg.append(path);
    }
    return svg;
  }
  function entry(row) {
    const link = made("a");
    link.href = `#${row.id}`;
    link.title = row.name;
    link.setAttribute("aria-current", row.id === open);
    const state = made("small", row.status, tone(row.status));
    if (!row.problem) state.append(` · ${steps(row.steps)}`);
    if (row.written) state.append(` · ${ago(row.written)}`);
    const what = row.problem || `${row.environment} · ${row.algorithm}`;
    state.title = `${row.steps ?? 0} steps`;
    link.append(made("b", row.name), made("span", number(row.best ?? row.latest), "best"), made("small", what), state, spark(row.spark));
    return link;
  }
  function matches(row) {
    const wanted = at("filter").value.trim().toLowerCase();
    return !wanted || [row.name, row.environment, row.algorithm, row.status].some((text) => (text || "").toLowerCase().includes(wanted));
  }
  function paint(row) {
    if (!items.has(row.id)) items.set(row.id, made("li"));
    const item = items.get(row.id);
    item.replaceChildren(entry(row));
    item.hidden = !matches(row);
    item.dataset.id = row.id;
  }
  function arrange() { // the newest first; entries that stand right are left where they are
    const order = [...rows.values()].sort((a, b) => (b.status === "running") - (a.status === "running") ||
      (a.status === "running" ? a.name.localeCompare(b.name) : (b.written || 0) - (a.written || 0)));
    const list = at("runs");
    order.forEach((row, i) => { if (list.children[i] !== items.get(row.id)) list.insertBefore(items.get(row.id), list.children[i] || null); });
    const running = order.filter((row) => row.status === "running").length;
    at("count").textContent = `${order.length} runs, ${running} running`;
    at("none").hidden = order.length > 0;
    document.title = running ? `(${running}) ludus watch` : "ludus watch";
  }
  function onRuns(news) {
    for (const id of news.gone) { rows.delete(id); items.get(id)?.remove(); items.delete(id); }
    for (const row of news.rows) { rows.set(row.id, row); paint(row); }
    arrange();
    root.dataset.ready = "true";
  }

  // --- the run that is open ---
  function onHead(head) {
    if (head.id !== open) return;
    at("title").textContent = head.title || head.name;
    at("name").textContent = head.title ? `${head.name} · seed ${head.seed}` : "";
    at("status").textContent = head.status;
    at("status").className = tone(head.status);
    const verdict = at("verdict");
    verdict.hidden = !head.verdict;
    if (head.verdict) {
      verdict.className = `verdict ${head.verdict.replaceAll(" ", "-")}`;
      verdict.replaceChildren(made("strong", `${head.verdict[0].toUpperCase()}${head.verdict.slice(1)}:`), ` ${head.evidence}.`);
    }
    at("facts").replaceChildren(...(head.facts || []).map(fact));
    at("notes").replaceChildren(...[head.problem, ...(head.notes || [])].filter(Boolean).map((note) => made("li", note)));
    onStop(head);
    onVideo(head.video);
    window.ludus.questions(head.id, head.questions, ask);
  }
  function fact([name, value, more]) {
    const cell = made("div"), told = made("dd", value);
    if (more) told.append(made("small", more));
    cell.append(made("dt", name), told);
    return cell;
  }
  function onStop(head) {
    const button = at("stop");
    button.hidden = !head.stoppable;
    button.disabled = head.asked;
    if (head.asked) { at("said").textContent = head.stoppable ? "Stopping: it saves at the end of its iteration." : ""; sure = 0; }
    else if (head.status === "running elsewhere") at("said").textContent = "This run's process is on another machine: stop it there (kill -TERM saves).";
    else if (head.status !== "running") at("said").textContent = "";
    if (!sure) { button.textContent = head.asked ? "Stopping" : "Stop and save"; button.classList.remove("sure"); }
  }
  async function stop() {
    const button = at("stop");
    if (!sure) {
      sure = setTimeout(() => { sure = 0; button.textContent = "Stop and save"; button.classList.remove("sure"); }, 4000);
      button.textContent = "Really stop it?";
      button.classList.add("sure");
      return;
    }
    clearTimeout(sure);
    sure = 0;
    button.disabled = true;
    const answer = await ask(`runs/${open}/stop`, { method: "POST" });
    const said = (await answer.text()).trim();
    at("said").textContent = answer.ok ? `Asked: ${said}.` : `Not stopped: ${said}.`;
    button.disabled = answer.ok;
  }
  function onVideo(video) {
    const figure = at("film");
    figure.hidden = !video;
    const mark = video ? `${open} ${video.name} ${video.written}` : "";
    if (mark === film) return;
    film = mark;
    const old = figure.querySelector("video, img");
    if (old) { URL.revokeObjectURL(old.src); old.remove(); }
    if (video) play(video, mark).catch(() => { if (film === mark) film = ""; }); // then the next update tries again
  }
  async function play(video, mark) { // an element that fetches by itself would not show the token
    const answer = await ask(`runs/${open}/video`);
    const content = await answer.blob();
    if (film !== mark || !answer.ok) return;
    const figure = at("film"), isImage = video.kind.startsWith("image/");
    const player = made(isImage ? "img" : "video");
    player.src = URL.createObjectURL(content);
    if (isImage) player.alt = `the newest video of this run, ${video.name}`;
    else Object.assign(player, { controls: true, muted: true, loop: true, playsInline: true, preload: "metadata" });
    figure.querySelector("figcaption").textContent = `Newest video: ${video.name}`;
    figure.append(player);
  }
  function onUse(use) {
    at("use").hidden = !use;
    if (!use) return;
    const cores = use.processors === null ? "…" : `${Math.round(100 * use.processors)}%`;
    const device = use.device_memory === null ? ["unknown", "no driver tells"] : [size(use.device_memory), "its processes together"];
    at("use").replaceChildren(...[["processor", cores, "100% is one core"], ["memory", size(use.memory), "with its workers"],
      ["device memory", ...device], ["process", String(use.pid), "on this machine"]].map(fact));
  }
  function onLog(text) {
    at("logged").hidden = !text;
    const log = at("log"), isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
    log.textContent = text;
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  // --- its figures ---
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) { inView.add(target.id); draw(target.id); } else inView.delete(target.id);
    }
  }, { rootMargin: "300px" });
  function onOutline(figures) {
    const wanted = new Set(figures.flatMap((figure) => figure.panels.map((panel) => panel.id)));
    for (const place of document.querySelectorAll("#figures .plot")) if (!wanted.has(place.id)) forget(place);
    at("figures").replaceChildren(...figures.map(section));
  }
  function section(figure) { // panels that are there already are moved, not drawn again
    const whole = at(`figure-${figure.key}`) || made("section");
    whole.id = `figure-${figure.key}`;
    const isThree = figure.panels.filter((panel) => panel.id !== "panel-returns").length % 3 === 0;
    const grid = made("div", null, isThree ? "panels three" : "panels");
    grid.append(...figure.panels.map((panel) => {
      const place = at(panel.id) || plot(panel);
      const box = place.parentElement || made("div");
      box.className = figure.panels.length === 1 || panel.id === "panel-returns" ? "panel wide" : "panel";
      box.replaceChildren(made("h3", panel.title), place);
      return box;
    }));
    whole.replaceChildren(made("h2", figure.title), made("p", figure.about, "about"), grid);
    return whole;
  }
  function plot(panel) {
    const place = made("div", null, "plot");
    place.id = panel.id;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${panel.title}: ${panel.y || "value"} against ${panel.x || "kind"}`);
    watcher.observe(place);
    return place;
  }
  function forget(place) {
    watcher.unobserve(place);
    inView.delete(place.id);
    panels.delete(place.id);
    if (place.layout) Plotly.purge(place);
  }
  function onPanels(news) {
    for (const panel of news) {
      panels.set(panel.id, panel);
      panel.isNew = true;
      if (inView.has(panel.id)) draw(panel.id);
    }
    PANELS.splice(0, PANELS.length, ...panels.values());
  }
  async function draw(id) {
    const panel = panels.get(id);
    if (!panel || !panel.isNew) return;
    panel.isNew = false;
    await drawing();
    if (panels.get(id) !== panel || !at(id)) return;
    await Plotly.react(at(id), panel.traces, { ...window.ludus.layout(panel), uirevision: id }, window.ludus.config);
  }
  function drawing() { // the list is there before plotly.js is asked for
    plotly ??= new Promise((resolve) => {
      const element = made("script");
      element.src = script.dataset.plotly;
      element.addEventListener("load", resolve);
      document.head.append(element);
    });
    return plotly;
  }

  // --- the connection ---
  // The token is kept in a store of this host and port, which other servers on this machine do not see, as they would a cookie.
  function admit() {
    const given = /^#token=([\w-]+)$/.exec(location.hash);
    if (given) history.replaceState(null, "", location.pathname);
    token = given ? given[1] : kept() || token;
    try { window.localStorage.setItem("ludus-token", token); } catch { /* then only this page knows */ }
  }
  function kept() {
    try { return window.localStorage.getItem("ludus-token"); } catch { return null; }
  }
  const ask = (path, more) => fetch(path, { ...more, headers: { "X-Ludus-Token": token }, credentials: "omit" });
  const handlers = { runs: onRuns, head: onHead, use: onUse, log: onLog, outline: onOutline, panels: onPanels };
  async function connect() { // EventSource cannot send a header
    stream?.abort();
    const mine = stream = new AbortController();
    while (mine === stream) {
      const said = await listen(mine).catch(() => "not connected; is ludus watch still running?");
      if (mine !== stream) return;
      at("link").textContent = said;
      at("link").className = "quiet lost";
      await new Promise((resolve) => setTimeout(resolve, 2000));
      admit(); // another page may have been opened with the token of a new server
    }
  }
  async function listen(mine) {
    const answer = await ask(open ? `events?run=${open}` : "events", { signal: mine.signal });
    if (!answer.ok) return `not connected: ${(await answer.text()).trim()}`;
    at("link").textContent = "live";
    at("link").className = "quiet live";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the server has gone");
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (\w+)\ndata: ([^]*)$/.exec(event) || [];
        if (name && mine === stream) handlers[name]?.(JSON.parse(data));
      }
    }
  }
  function choose() {
    admit();
    const id = /^#[0-9a-f]{16}$/.test(location.hash) ? location.hash.slice(1) : null;
    if (open !== id) {
      onOutline([]);
      for (const name of ["title", "name", "said", "status"]) at(name).textContent = "";
      for (const name of ["facts", "notes", "use"]) at(name).replaceChildren();
      for (const name of ["verdict", "stop", "use", "logged"]) at(name).hidden = true;
      onVideo(null);
      window.ludus.questions(null, null, ask);
      clearTimeout(sure);
      sure = 0;
    }
    const before = open;
    open = id;
    at("run").hidden = !id;
    at("choose").hidden = Boolean(id);
    document.body.classList.toggle("has-run", Boolean(id));
    for (const each of [before, id]) if (rows.has(each)) paint(rows.get(each));
    if (id) { at("title").textContent = rows.get(id)?.name || "…"; drawing(); window.scrollTo(0, 0); }
    connect();
  }
  window.ludus.theme();
  at("stop").addEventListener("click", stop);
  at("filter").addEventListener("input", () => { for (const row of rows.values()) paint(row); });
  window.addEventListener("hashchange", choose);
  setInterval(() => { for (const row of rows.values()) if (row.status !== "running") paint(row); }, 30000);
  choose();
})();
