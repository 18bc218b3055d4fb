// The page: reads its data, and puts charts and tables together.

const axis_titles = {step: "step", tokens: "tokens", time: "time"};

class View {
  constructor(data) {
    this.data = data;
    this.runs = data.runs;
    this.axis = "step";
    this.smoothing = 0.6;
    this.is_log = false;
    this.color_key = "";
    this.marked = null;
    this.zoom = null;  // [x0, x1] of all charts
    this.pointed = null;
    this.off = new Set();
    this.charts = [];
    this.listeners = [];
    this.colors = new Map();
    this.choose_colors();
  }

  on_change(listener) { this.listeners.push(listener); }
  is_on(run) { return !this.off.has(run); }
  color_of(run) { return this.colors.get(run); }

  choose_colors() {
    this.colors.clear();
    this.runs.forEach((run, i) => this.colors.set(run, run_color(i, this.runs.length)));
    if (!this.color_key) return;
    const values = [...new Set(this.runs.map((run) => setting_text(run.profile[this.color_key])))];
    values.sort(compare_names);
    const numbers = values.map(Number);
    if (numbers.every(Number.isFinite)) values.sort((a, b) => a - b);
    for (const run of this.runs) {
      const place = values.indexOf(setting_text(run.profile[this.color_key]));
      this.colors.set(run, scale_color(values.length > 1 ? place / (values.length - 1) : 0));
    }
  }

  change(what) {
    Object.assign(this, what);
    this.choose_colors();
    this.update();
  }

  toggle(run) {
    if (this.off.has(run)) this.off.delete(run); else this.off.add(run);
    this.update();
  }

  only(run) {
    const is_alone = this.runs.every((other) => this.is_on(other) === (other === run));
    this.off = new Set(is_alone ? [] : this.runs.filter((other) => other !== run));
    this.update();
  }

  show_all(is_shown) {
    this.off = new Set(is_shown ? [] : this.runs);
    this.update();
  }

  mark(run) {
    if (this.marked === run) return;
    this.marked = run;
    this.update();
  }

  update() {
    if (this.is_waiting) return;
    this.is_waiting = true;
    requestAnimationFrame(() => {
      this.is_waiting = false;
      for (const chart of this.charts) chart.draw();
      for (const listener of this.listeners) listener();
      this.point_at(this.pointed);
    });
  }

  point_at(pointed) {
    this.pointed = pointed;
    for (const chart of this.charts) chart.show_pointer(pointed);
  }

  axis_name() { return axis_titles[this.axis]; }

  axis_text(x, is_exact) {
    if (this.axis === "time") return x === 0 ? "0" : duration(x);
    return is_exact ? format("count", x) : short_number(x);
  }

  xs(curves) { return curves[this.axis]; }
}

function chart_specs(data) {
  const curve = (name) => (run, view) => [{x: view.xs(run.curves), y: run.curves[name]}];
  const steady = (name) => (run, view) => {
    const raw = run.curves[name];
    const y = smoothed(raw, view.smoothing);
    return [{x: view.xs(run.curves), y, raw: y === raw ? undefined : raw}];
  };
  return [
    {title: "Train loss", kind: "loss", curves: steady("loss"), may_log: true, is_wide: true},
    {title: "Eval loss", kind: "loss", may_log: true, is_wide: true,
     curves: (run, view) => [{x: view.xs(run.eval), y: run.eval.loss, dots: true}]},
    {title: "Learning rate", kind: "short", curves: curve("learning_rate"), from_zero: true},
    {title: "Gradient norm", unit: "before clipping", kind: "short", curves: steady("grad_norm"), may_log: true, from_zero: true},
    {title: "Throughput", unit: "tokens per second", kind: "count", curves: steady("tokens_per_s"), from_zero: true},
    {title: "Device memory", unit: "GiB", kind: "gib", curves: curve("memory_gib"), from_zero: true, is_optional: true},
    {title: "Waiting for data", unit: "ms per step", kind: "short", curves: steady("data_wait_ms"), from_zero: true,
     is_optional: true, is_in_report: true},
  ];
}

function charts_grid(data, view) {
  const grid = element("div", {class: "grid"});
  for (const spec of chart_specs(data)) {
    if (spec.is_in_report && data.kind !== "report") continue;
    const chart = new Chart(spec, view);
    if (!chart.has_data() && (spec.is_optional || data.kind === "report")) continue;
    view.charts.push(chart);
    grid.append(chart.node);
  }
  // No holes in the last row: three small ones a row, two where that is all that is left.
  const small = view.charts.filter((chart) => !chart.spec.is_wide);
  const num_halves = {0: 0, 1: Math.min(4, small.length), 2: 2}[small.length % 3];
  for (const chart of small.slice(small.length - num_halves)) chart.node.classList.add("half");
  return grid;
}

function choice(label, values, current, on_pick) {
  const group = element("div", {class: "choice", role: "group", "aria-label": label});
  for (const [value, text] of values) {
    const button = element("button", {type: "button", text, "aria-pressed": String(value === current)});
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      on_pick(value);
    });
    group.append(button);
  }
  return element("div", {class: "control"}, element("span", {text: label}), group);
}

function controls(data, view) {
  const slider = element("input", {type: "range", min: "0", max: "0.98", step: "0.02", value: String(view.smoothing),
                                   "aria-label": "smoothing"});
  const shown = element("output", {text: view.smoothing.toFixed(2)});
  slider.addEventListener("input", () => {
    shown.textContent = Number(slider.value).toFixed(2);
    view.change({smoothing: Number(slider.value)});
  });
  const bar = element("div", {class: "controls"},
    choice("over", [["step", "step"], ["tokens", "tokens"], ["time", "time"]], view.axis, (axis) => { view.pointed = null; view.change({axis, zoom: null}); }),
    element("label", {class: "control"}, element("span", {text: "smoothing"}), slider, shown),
    choice("scale", [[false, "linear"], [true, "log"]], view.is_log, (is_log) => view.change({is_log})));
  if (data.kind === "compare" && data.differing.length > 0) {
    const select = element("select", {"aria-label": "colour by"}, element("option", {value: "", text: "run"}),
                           ...data.differing.map((key) => element("option", {value: key, text: key})));
    select.addEventListener("change", () => view.change({color_key: select.value}));
    bar.append(element("label", {class: "control"}, element("span", {text: "colour by"}), select));
  }
  const whole = element("button", {type: "button", class: "whole", text: "whole run", onclick: () => view.change({zoom: null})});
  const hint = element("span", {class: "hint", text: "drag over a chart to zoom"});
  bar.append(whole, hint);
  view.on_change(() => {
    whole.hidden = !view.zoom;
    hint.hidden = Boolean(view.zoom);
  });
  return bar;
}

function legend(data, view) {
  const list = element("div", {class: "legend-list"});
  const entries = new Map();
  for (const run of data.runs) {
    const dot = element("i");
    const button = element("button", {type: "button", class: "entry", title: "click: on or off; double click: this one alone"},
                           dot, element("span", {text: run.name}));
    button.addEventListener("click", () => view.toggle(run));
    button.addEventListener("dblclick", () => { view.off.delete(run); view.only(run); });
    button.addEventListener("pointerenter", () => view.mark(run));
    button.addEventListener("pointerleave", () => view.mark(null));
    entries.set(run, {button, dot});
    list.append(button);
  }
  view.on_change(() => {
    for (const [run, {button, dot}] of entries) {
      button.setAttribute("aria-pressed", String(view.is_on(run)));
      dot.style.background = view.color_of(run);
    }
  });
  return element("div", {class: "legend"}, list, element("div", {class: "legend-all"},
    element("button", {type: "button", text: "all", onclick: () => view.show_all(true)}),
    element("button", {type: "button", text: "none", onclick: () => view.show_all(false)})));
}

function theme_button() {
  const root = document.documentElement;
  const is_dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = element("button", {type: "button", class: "theme", title: "dark or light", "aria-label": "dark or light", text: "\u25d0"});
  button.addEventListener("click", () => {
    root.dataset.theme = is_dark() ? "light" : "dark";
    window.dispatchEvent(new Event("themechange"));
  });
  return button;
}

function header(title, subtitle, status) {
  return element("header", {}, element("div", {}, element("h1", {}, element("span", {text: title}), status && badge(status)),
                                       element("p", {text: subtitle})), theme_button());
}

function section(title, ...content) {
  return element("section", {class: "card"}, element("h2", {text: title}), ...content);
}

function show_comparison(page, data, view) {
  const counts = new Map();
  for (const run of data.runs) counts.set(run.status, (counts.get(run.status) || 0) + 1);
  const states = [...counts].map(([status, n]) => n + " " + status).join(", ");
  page.append(header(data.runs.length + (data.runs.length === 1 ? " run" : " runs") + " compared", states));
  page.append(section("Results", results_table(data, view), reasons_list(data.runs)));
  page.append(element("div", {class: "sticky"}, controls(data, view), legend(data, view)));
  page.append(charts_grid(data, view));
  if (data.differing.length > 0) page.append(section("Profile differences", differences_table(data, view)));
}

function tile(label, text, note) {
  return element("div", {class: "tile"}, element("span", {text: label}), element("b", {text}), note ? element("small", {text: note}) : null);
}

/// " at step 40": the first after step 1 with this evaluation loss, to the digits of the page.
function step_of_loss(run, loss) {
  const at = run.eval.loss.findIndex((other, i) => run.eval.step[i] > 0 && other === loss);
  return at < 0 ? "" : " at step " + format("count", run.eval.step[at]);
}

function figure_tiles(run) {
  const figures = run.figures, is_known = (v) => typeof v === "number";
  const tiles = element("div", {class: "tiles"});
  const add = (label, kind, value, note) => is_known(value) && tiles.append(tile(label, format(kind, value), note));
  add("steps", "count", figures.step, is_known(figures.total_steps) ? "of " + format("count", figures.total_steps) : "");
  add("train loss", "loss", figures.last_train_loss, "best " + format("loss", figures.best_train_loss));
  add("eval loss", "loss", figures.eval_loss, is_known(figures.best_eval_loss) ?
    "best " + format("loss", figures.best_eval_loss) + step_of_loss(run, figures.best_eval_loss) : "");
  add("tokens", "short", figures.tokens, is_known(figures.epoch) ? format("rate", figures.epoch) + " epochs" : "");
  add("tokens per second", "count", figures.tokens_per_s);
  add("device memory, peak", "gib", figures.peak_memory_gib, "GiB");
  add("host memory, peak", "gib", figures.peak_host_memory_gib, "GiB");
  add("wall time", "seconds", figures.wall_s, is_known(figures.train_s) ? format("seconds", figures.train_s) + " in steps" : "");
  const summary = run.summary || {}, gpus = summary.num_gpus > 1 ? summary.num_gpus + " x " : "";
  add("cost", "money", figures.cost_usd, is_known(summary.gpu_price_per_hour) ?
    gpus + format("money", summary.gpu_price_per_hour) + " an hour (" + summary.price_source + ")" : "US$");
  return tiles;
}

const phase_colors = {data: "#12a3b4", load: "#3b76d6", tune: "#8a63d2", train: "#2f9e5f", evaluate: "#e5730b",
                      save: "#d03b4b", result: "#c44a9c", other: "#8a94a2"};

function phase_dot(phase) {
  const dot = element("i");
  dot.style.background = phase_colors[phase] || phase_colors.other;
  return dot;
}

// What ran when. Its processes follow each other; a line stands where one began.
function timeline(run, wall_s) {
  const bar = element("div", {class: "timeline", role: "img", "aria-label": "what ran when, from the start to the end of the run"});
  const place = (seconds) => (100 * Math.min(Math.max(seconds / wall_s, 0), 1)).toFixed(3) + "%";
  for (const [phase, from, to] of run.spans || []) {
    const part = element("span", {title: phase + ": " + duration(to - from) + ", from " + duration(from) + " to " + duration(to)});
    part.style.left = place(from);
    part.style.width = place(to - from);
    part.style.background = phase_colors[phase] || phase_colors.other;
    bar.append(part);
  }
  for (const start of (run.processes_s || []).slice(1)) {
    const line = element("b", {title: "resumed after " + duration(start)});
    line.style.left = place(start);
    bar.append(line);
  }
  return bar;
}

function times(run) {
  const phases = Object.entries(run.phases_s || {}).filter(([, seconds]) => seconds >= 0.05);
  const wall_s = run.figures.wall_s, cost = run.figures.cost_usd, has_cost = typeof cost === "number";
  if (phases.length === 0 || !(wall_s > 0)) return null;
  const titles = [["phase"], ["time", true], ["share", true], ...(has_cost ? [["cost", true]] : [])];
  const table = simple_table(titles, [...phases, ["all", wall_s]].map(([name, seconds]) => [
    name, duration(seconds), (100 * seconds / wall_s).toFixed(1) + " %",
    ...(has_cost ? [format("money", cost * seconds / wall_s)] : [])]));
  table.querySelectorAll("tbody tr").forEach((row, i) => {
    if (i < phases.length) row.firstChild.prepend(phase_dot(phases[i][0]));
  });
  table.classList.add("phases");
  return section("Time", timeline(run, wall_s), table);
}

function evaluations(run) {
  const last = new Map();
  for (const entry of run.evals || []) last.set(entry.name, entry);
  if (last.size === 0) return null;
  const has_ece = [...last.values()].some((entry) => entry.ece !== null);
  const titles = [["data set"], ["step", true], ["loss", true], ["perplexity", true], ["token accuracy", true],
                  ...(has_ece ? [["calibration error", true]] : []), ["tokens", true]];
  return section("Last evaluation", simple_table(titles, [...last.values()].map((entry) => [
    entry.name, format("count", entry.step), format("loss", entry.loss), format("loss", entry.perplexity),
    entry.token_accuracy === null ? "\u2013" : (100 * entry.token_accuracy).toFixed(2) + " %",
    ...(has_ece ? [format("loss", entry.ece)] : []), format("count", entry.num_tokens)])));
}

function ledger(run) {
  const book = run.summary && run.summary.ledger;
  if (!book || !(book.total > 0)) return null;
  const lost = Object.entries(book.reasons || {});
  const rows = lost.map(([reason, entry]) => [reason, format("count", entry.count),
    (100 * entry.count / book.total).toFixed(2) + " %", entry.first || ""]);
  const text = format("count", book.kept) + " of " + format("count", book.total) + " rows are trained on" +
    (lost.length > 0 ? "." : "; none was lost or changed.");
  return section("Data ledger", element("p", {text}),
                 rows.length > 0 ? simple_table([["reason"], ["rows", true], ["share", true], ["first at"]], rows) : null);
}

function profile_section(run) {
  const rows = Object.entries(run.profile).map(([key, value]) => [key, setting_text(value)]);
  if (rows.length === 0) return null;
  return element("details", {class: "card"}, element("summary", {text: "Profile"}), simple_table([["key"], ["value"]], rows));
}

function show_report(page, data, view) {
  const run = data.runs[0], summary = run.summary || {};
  const where = [run.folder, summary.gpu || "CPU", "lora-train " + (summary.version || data.version)];
  page.append(header(run.name, where.filter(Boolean).join("  \u00b7  "), run.status));
  if (run.reason) page.append(element("section", {class: "card notice"}, element("p", {text: run.reason})));
  page.append(figure_tiles(run));
  const grid = charts_grid(data, view);
  if (view.charts.length > 0) page.append(element("div", {class: "sticky"}, controls(data, view)), grid);
  for (const part of [times(run), evaluations(run), ledger(run), profile_section(run)]) if (part) page.append(part);
}

function show_page() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const view = new View(data);
  (data.kind === "compare" ? show_comparison : show_report)(page, data, view);
  page.append(element("footer", {text: "made by lora-train " + data.version}));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.update());
  window.addEventListener("themechange", () => view.update());
  view.update();
}

show_page();
