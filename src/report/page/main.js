// The page: reads its data and assembles charts and tables.

const axis_titles = {step: "step", tokens: "tokens", time: "time"};

// Less smoothing for fewer points: the mean of a short curve lags behind it.
function first_smoothing(runs) {
  const most = Math.max(0, ...runs.map((run) => run.curves.step.length));
  return most >= 200 ? 0.6 : most >= 50 ? 0.3 : 0;
}

class View {
  constructor(data) {
    this.data = data;
    this.runs = data.runs;
    this.axis = "step";
    this.smoothing = first_smoothing(data.runs);
    this.is_log = false;
    this.is_fitted = true;  // axes leave out the first points and outliers that would flatten the rest
    this.color_key = "";
    this.marked = null;
    this.zoom = null;  // [x0, x1], shared by all charts
    this.pointed = null;
    this.off = new Set();
    this.charts = [];
    this.listeners = [];
    this.styles = new Map();
    this.choose_styles();
  }

  on_change(listener) { this.listeners.push(listener); }
  is_on(run) { return !this.off.has(run); }
  is_single() { return this.data.kind === "report"; }
  style_of(run) { return this.styles.get(run); }

  choose_styles() {
    this.styles.clear();
    this.runs.forEach((run, i) => this.styles.set(run, run_style(i)));
    if (!this.color_key) return;
    const values = [...new Set(this.runs.map((run) => setting_text(run.profile[this.color_key])))];
    values.sort(compare_names);
    const numbers = values.map(Number);
    if (numbers.every(Number.isFinite)) values.sort((a, b) => a - b);
    for (const run of this.runs) {
      const place = values.indexOf(setting_text(run.profile[this.color_key]));
      this.styles.set(run, {color: scale_color(values.length > 1 ? place / (values.length - 1) : 0), dash: run_dashes[place % run_dashes.length]});
    }
  }

  change(what) {
    Object.assign(this, what);
    this.choose_styles();
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

// Follows the view: clicking a chart's note also shows all points.
function fit_choice(view) {
  const make = () => choice("y axis", [[true, "fit"], [false, "all points"]], view.is_fitted, (is_fitted) => view.change({is_fitted}));
  let shown = view.is_fitted, node = make();
  view.on_change(() => {
    if (shown === view.is_fitted) return;
    shown = view.is_fitted;
    const next = make();
    node.replaceWith(next);
    node = next;
  });
  return node;
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
    choice("scale", [[false, "linear"], [true, "log"]], view.is_log, (is_log) => view.change({is_log})),
    fit_choice(view));
  if (data.kind === "compare" && data.differing.length > 0) {
    const select = element("select", {"aria-label": "colour by"}, element("option", {value: "", text: "run"}),
                           ...data.differing.map((key) => element("option", {value: key, text: key})));
    select.addEventListener("change", () => view.change({color_key: select.value}));
    bar.append(element("label", {class: "control"}, element("span", {text: "colour by"}), select));
  }
  const whole = element("button", {type: "button", class: "whole", text: "whole run", onclick: () => view.change({zoom: null})});
  const hint = element("span", {class: "hint", text: "drag to zoom"});
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
    const mark = element("span", {class: "mark"});
    const button = element("button", {type: "button", class: "entry", title: "click: show or hide; double-click: show only this one"},
                           mark, element("span", {text: run.name}));
    button.addEventListener("click", () => view.toggle(run));
    button.addEventListener("dblclick", () => { view.off.delete(run); view.only(run); });
    button.addEventListener("pointerenter", () => view.mark(run));
    button.addEventListener("pointerleave", () => view.mark(null));
    entries.set(run, {button, mark});
    list.append(button);
  }
  view.on_change(() => {
    for (const [run, {button, mark}] of entries) {
      button.setAttribute("aria-pressed", String(view.is_on(run)));
      mark.replaceChildren(swatch(view.style_of(run)));
    }
  });
  return element("div", {class: "legend"}, list, element("div", {class: "legend-all"},
    element("button", {type: "button", text: "all", onclick: () => view.show_all(true)}),
    element("button", {type: "button", text: "none", onclick: () => view.show_all(false)})));
}

function theme_button() {
  const root = document.documentElement;
  const button = element("button", {type: "button", class: "theme", title: "dark or light", "aria-label": "dark or light", text: "\u25d0"});
  button.addEventListener("click", () => {
    root.dataset.theme = is_dark() ? "light" : "dark";
    window.dispatchEvent(new Event("themechange"));
  });
  return button;
}

function header(title, subtitle, status) {
  return element("header", {}, element("div", {}, element("h1", {}, element("span", {text: title}), status && badge(status)),
                                       subtitle && element("p", {text: subtitle})), theme_button());
}

function section(title, ...content) {
  return element("section", {class: "card"}, element("h2", {text: title}), ...content);
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
