"use strict";
// The questions of a run that learns from preferences: two clips side by side, answered by a key or a click.
(() => {
  const at = (id) => document.getElementById(id);
  const SIDES = ["first", "second"], KEYS = { 1: "first", 2: "second", "=": "equal" };
  const LEAST_MS = 2500, HOLD_MS = 700; // a clip lasts so long at least; its end is held
  let run = null, state = null, ask = null, clip = null, strip = null; // what is shown
  let asked = null, skipped = new Set(), answered = [], isSending = false, began = 0, isHeld = false;

  const isOpen = () => !at("ask").hidden;
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const short = (value) => value === null ? "unknown" : Number(value.toPrecision(3)).toString();

  function news(id, found, request) { // called with every update of the run that is open
    if (id !== run) { run = id; clip = strip = asked = null; skipped = new Set(); answered = []; at("heard").textContent = ""; }
    ask = request;
    state = found;
    at("ask").hidden = !found;
    if (!found) return;
    if (asked === null || (asked >= found.count && !found.problem)) next();
    told();
  }
  function told() {
    if (!state) return;
    const none = state.count ? "No question is open now. The run asks more while it goes on." : "No question yet.";
    at("asked").textContent = state.problem || (clip ? `Question ${clip.number + 1} of ${state.count}, ${state.waiting} open. ${clip.env || ""}` : none);
    at("clips").hidden = at("answers").hidden = !clip;
    at("back").disabled = !answered.length;
    if (clip) at("more").textContent = clip.more > 0 && clip.curves.length ? `${clip.more} more numbers are not shown.` : "";
  }
  function next() {
    const number = state.open.find((each) => !skipped.has(each) && each !== asked);
    if (number === undefined) { asked = clip = strip = null; told(); } else show(number);
  }
  async function show(number) {
    asked = number;
    const mine = run, is = () => run === mine && asked === number;
    try {
      const answer = await ask(`runs/${mine}/questions/${number}`);
      if (!is()) return;
      if (!answer.ok) throw new Error(await answer.text());
      const found = await answer.json();
      const drawn = await ask(`runs/${mine}/questions/${number}/picture`);
      const picture = drawn.status === 200 ? await createImageBitmap(await drawn.blob()) : null;
      if (!is()) return;
      clip = found;
      strip = picture;
      lay();
      began = performance.now();
      isHeld = false;
    } catch (error) {
      if (!is()) return;
      asked = null;
      setTimeout(() => { if (run === mine && asked === null && state) next(); }, 2000);
      at("heard").textContent = `Not shown: ${error.message.trim()}`;
    }
    told();
  }
  function lay() { // a canvas for the clip and one for each curve, on either side
    const ratio = window.devicePixelRatio || 1;
    SIDES.forEach((side) => {
      const canvases = [];
      if (strip) {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = clip.size;
        canvas.className = "scene";
        canvases.push(canvas);
      }
      for (const curve of clip.curves) {
        const box = document.createElement("div"), canvas = document.createElement("canvas"), name = document.createElement("small");
        name.textContent = `${curve.name}: ${short(curve.low)} to ${short(curve.high)}`;
        canvas.className = "curve";
        canvas.width = 300 * ratio;
        canvas.height = 60 * ratio;
        box.append(name, canvas);
        canvases.push(box);
      }
      at(side).replaceChildren(...canvases);
      at(side).setAttribute("aria-label", `the ${side} of two clips of ${clip.steps} steps`);
    });
    at("moment").max = rows() - 1;
  }
  const rows = () => Math.ceil(clip.steps / clip.every);
  function draw(row) {
    SIDES.forEach((side, which) => {
      const scene = at(side).querySelector(".scene"), [breadth, height] = clip.size;
      if (scene) scene.getContext("2d").drawImage(strip, which * breadth, row * height, breadth, height, 0, 0, breadth, height);
      at(side).querySelectorAll(".curve").forEach((canvas, i) => trace(canvas, clip.curves[i], which, row));
    });
  }
  function trace(canvas, curve, which, row) {
    const pen = canvas.getContext("2d"), { width, height } = canvas, values = curve.values[which], edge = height / 10;
    const x = (i) => edge + (width - 2 * edge) * (values.length > 1 ? i / (values.length - 1) : 0.5);
    const y = (value) => height - edge - (height - 2 * edge) * (curve.high > curve.low ? (value - curve.low) / (curve.high - curve.low) : 0.5);
    pen.clearRect(0, 0, width, height);
    pen.lineJoin = "round";
    for (const [last, color] of [[values.length - 1, "--rule"], [row, "--link"]]) { // all of it, and what has been played
      pen.beginPath();
      pen.strokeStyle = pen.fillStyle = ink(color);
      pen.lineWidth = height / 22;
      for (let i = 0; i <= last; i++) if (values[i] !== null) pen.lineTo(x(i), y(values[i]));
      pen.stroke();
    }
    if (values[row] === null) return;
    pen.beginPath();
    pen.arc(x(row), y(values[row]), height / 12, 0, 7);
    pen.fill();
  }
  function tick(now) {
    requestAnimationFrame(tick);
    if (!isOpen() || !clip || document.hidden) return;
    if (!isHeld) {
      const lasts = Math.max(LEAST_MS, 1000 * clip.steps / clip.rate), gone = (now - began) % (lasts + HOLD_MS);
      at("moment").value = Math.min(rows() - 1, Math.floor(Math.max(0, gone) / lasts * rows()));
    }
    draw(Number(at("moment").value));
  }
  async function answer(prefer) {
    if (!clip || isSending || asked !== clip.number) return;
    isSending = true;
    const number = clip.number, mine = run;
    try {
      const answer = await ask(`runs/${mine}/questions/${number}/${prefer}`, { method: "POST" });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      const found = await answer.json();
      if (run !== mine) return;
      state = found;
      answered.push(number);
      at("heard").textContent = `Question ${number + 1}: ${prefer === "equal" ? "both alike" : `the ${prefer} is better`}.`;
      next();
    } catch (error) {
      at("heard").textContent = `Not stored: ${error.message}.`;
    } finally {
      isSending = false;
      told();
    }
  }
  function skip() {
    if (!clip) return;
    skipped.add(clip.number);
    at("heard").textContent = `Question ${clip.number + 1} is skipped for now.`;
    next();
    told();
  }
  function back() { // an answer that is given again takes the place of the earlier one
    if (answered.length) show(answered.pop());
  }
  function key(event) {
    if (!isOpen() || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.matches("input[type=search], textarea, select")) return;
    if (KEYS[event.key]) answer(KEYS[event.key]);
    else if (event.key === "s") skip();
    else if (event.key === "b") back();
    else return;
    event.preventDefault();
  }
  for (const button of document.querySelectorAll("#ask [data-answer]")) button.addEventListener("click", () => answer(button.dataset.answer));
  at("skip").addEventListener("click", skip);
  at("back").addEventListener("click", back);
  at("moment").addEventListener("input", () => { isHeld = true; });
  at("play").addEventListener("click", () => { isHeld = false; began = performance.now(); });
  document.addEventListener("keydown", key);
  requestAnimationFrame(tick);
  window.ludus.questions = news;
})();
