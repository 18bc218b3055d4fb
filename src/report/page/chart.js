// One chart on a canvas, with a second canvas over it for the cross-hair.

function nice_ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

function log_ticks(low, high) {
  const ticks = [];
  const factors = high / low > 1000 ? [1] : high / low > 20 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); ++p) {
    for (const f of factors) {
      const tick = f * Math.pow(10, p);
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : nice_ticks(low, high, 4).filter((t) => t > 0);
}

// Exponential mean without a start bias; gaps stay gaps.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let mean = 0, share = 0;
  return values.map((v) => {
    if (v === null) return null;
    mean = weight * mean + (1 - weight) * v;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}

function nearest_index(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

class Chart {
  // spec: {title, unit, kind, curves(run, view) -> [{x, y, raw?, dots?, label?, style?}] or nothing, from_zero?,
  // may_log?}
  // style: {color, dash}; without it, a curve has the style of its run.
  constructor(spec, view) {
    this.spec = spec;
    this.view = view;
    this.curves = [];
    this.base = element("canvas");
    this.over = element("canvas", {class: "over"});
    this.tip = element("div", {class: "tip", hidden: true});
    this.empty = element("div", {class: "empty", hidden: true, text: "nothing to show"});
    this.body = element("div", {class: "plot", tabindex: "0", role: "img", "aria-label": spec.title},
                        this.base, this.over, this.empty, this.tip);
    this.outliers = element("button", {type: "button", class: "outliers", hidden: true, title: "show all points",
                                       onclick: () => view.change({is_fitted: false})});
    this.keys = element("div", {class: "keys"});
    this.node = element("section", {class: "card chart" + (spec.is_wide ? " wide" : "")},
                        element("h3", {text: spec.title}, element("small", {text: spec.unit || ""}), this.outliers),
                        this.keys, this.body);
    this.drag = null;
    this.body.addEventListener("pointerdown", (event) => this.start_drag(event));
    this.body.addEventListener("pointerup", (event) => this.end_drag(event));
    this.body.addEventListener("dblclick", () => view.change({zoom: null}));
    this.body.addEventListener("pointermove", (event) => this.hover(event));
    this.body.addEventListener("pointerleave", () => view.point_at(null));
    this.body.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  has_data() {
    return this.view.runs.some((run) => (this.spec.curves(run, this.view) || []).some((c) => c.y.some((v) => v !== null)));
  }

  collect() {
    this.curves = [];
    for (const run of this.view.runs) {
      if (!this.view.is_on(run)) continue;
      for (const curve of this.spec.curves(run, this.view) || []) {
        if (curve.x.length > 0 && curve.y.some((v) => v !== null)) this.curves.push({run, ...curve});
      }
    }
  }

  // Calls visit(x, y) for every point shown.
  each_point(visit) {
    const use_log = this.uses_log(), zoom = this.view.zoom;
    for (const curve of this.curves) {
      for (const ys of curve.raw && !this.is_crowded() ? [curve.y, curve.raw] : [curve.y]) {
        for (let i = 0; i < ys.length; ++i) {
          if (ys[i] === null || (use_log && ys[i] <= 0)) continue;
          if (!zoom || (curve.x[i] >= zoom[0] && curve.x[i] <= zoom[1])) visit(curve.x[i], ys[i], curve);
        }
      }
    }
  }

  x_ends() {
    if (this.view.zoom) return this.view.zoom;
    const first = Math.min(...this.curves.map((curve) => curve.x[0]));
    const last = Math.max(...this.curves.map((curve) => curve.x[curve.x.length - 1]));
    return [first, last > first ? last : first + 1];
  }

  // The range of the points without the first tenth of the run and a few outliers. Nothing if it is not much smaller
  // than the full range.
  fitted_range(x0, x1, y0, y1) {
    const later = [];
    this.each_point((x, y) => { if (x >= x0 + (x1 - x0) * 0.1) later.push(y); });
    if (later.length < 3) return null;
    later.sort((a, b) => a - b);
    const last = later.length - 1, far = later.length > 50 ? 0.005 : 0;
    const [low, high] = [later[Math.ceil(far * last)], later[Math.floor((1 - far) * last)]];
    const room = Math.max(0.3 * (high - low), 0.02 * Math.abs(high), 1e-9);
    const fit = {y0: Math.max(y0, low - room), y1: Math.min(y1, high + room)};
    return y1 - y0 > 1.8 * (fit.y1 - (this.spec.from_zero ? Math.min(0, fit.y0) : fit.y0)) ? fit : null;
  }

  find_range() {
    let [y0, y1] = [Infinity, -Infinity];
    const use_log = this.uses_log(), [x0, x1] = this.x_ends();
    this.each_point((x, y) => { y0 = Math.min(y0, y); y1 = Math.max(y1, y); });
    if (y0 > y1) [y0, y1] = [1, 2];
    const fit = this.view.is_fitted && !use_log ? this.fitted_range(x0, x1, y0, y1) : null;
    if (fit) [y0, y1] = [fit.y0, fit.y1];
    if (this.spec.from_zero && !use_log) y0 = Math.min(0, y0);
    if (y1 <= y0) [y0, y1] = use_log ? [y0 * 0.8, y0 * 1.25] : [y0 - Math.abs(y0) * 0.1 - 1e-9, y1 + Math.abs(y1) * 0.1 + 1e-9];
    const pad = use_log ? Math.pow(y1 / y0, 0.05) : (y1 - y0) * 0.05;
    this.range = use_log ? {x0, x1, y0: y0 / pad, y1: y1 * pad}
                         : {x0, x1, y0: this.spec.from_zero && y0 === 0 ? 0 : y0 - pad, y1: y1 + pad};
  }

  uses_log() {
    return this.view.is_log && this.spec.may_log;
  }

  is_crowded() {
    return this.curves.length > 6;
  }

  fit_canvas(canvas, width, height) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    return pen;
  }

  place(width, height) {
    const {x0, x1, y0, y1} = this.range;
    const box = this.box = {left: 52, right: width - 12, top: 8, bottom: height - 24};
    const use_log = this.uses_log();
    this.x_at = (x) => box.left + (x - x0) / (x1 - x0) * (box.right - box.left);
    this.y_at = use_log ? (y) => box.bottom - Math.log(y / y0) / Math.log(y1 / y0) * (box.bottom - box.top)
                        : (y) => box.bottom - (y - y0) / (y1 - y0) * (box.bottom - box.top);
    this.x_of = (px) => x0 + (px - box.left) / (box.right - box.left) * (x1 - x0);
  }

  draw() {
    const width = this.body.clientWidth, height = this.body.clientHeight;
    if (width === 0) return;
    this.collect();
    const pen = this.fit_canvas(this.base, width, height);
    this.fit_canvas(this.over, width, height);
    this.empty.hidden = this.curves.length > 0;
    if (this.curves.length === 0) return;
    this.find_range();
    this.place(width, height);
    this.draw_grid(pen);
    this.draw_outliers(pen);
    this.show_keys();
    pen.save();
    pen.beginPath();
    pen.rect(this.box.left - 3, this.box.top - 3, this.box.right - this.box.left + 6, this.box.bottom - this.box.top + 6);
    pen.clip();
    const marked = this.view.marked;
    const order = [...this.curves].sort((a, b) => (a.run === marked) - (b.run === marked));
    for (const curve of order) {
      if (curve.raw && (!this.is_crowded() || curve.run === marked)) this.draw_line(pen, curve, curve.raw, is_dark() ? 0.55 : 0.42, 1, []);
    }
    for (const curve of order) {
      const is_faded = marked && curve.run !== marked;
      this.draw_line(pen, curve, curve.y, is_faded ? 0.15 : 1, curve.run === marked ? 2.6 : this.is_crowded() ? 1.5 : 1.9,
                     this.style_of(curve).dash);
    }
    pen.restore();
  }

  draw_grid(pen) {
    const {left, right, top, bottom} = this.box, {x0, x1, y0, y1} = this.range;
    const style = getComputedStyle(document.documentElement);
    pen.font = "11px " + style.getPropertyValue("--font");
    pen.lineWidth = 1;
    pen.strokeStyle = style.getPropertyValue("--grid");
    pen.fillStyle = style.getPropertyValue("--faint");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const y of this.uses_log() ? log_ticks(y0, y1) : nice_ticks(y0, y1, 5)) {
      const at = Math.round(this.y_at(y)) + 0.5;
      pen.beginPath();
      pen.moveTo(left, at);
      pen.lineTo(right, at);
      pen.stroke();
      pen.fillText(short_number(y), left - 8, at);
    }
    pen.textBaseline = "top";
    const ticks = this.view.axis === "time" ? time_ticks(x0, x1) : nice_ticks(x0, x1, Math.max(2, Math.floor((right - left) / 75)));
    for (const x of ticks) {
      const at = this.x_at(x);
      pen.textAlign = at > right - 20 ? "right" : at < left + 10 ? "left" : "center";
      pen.fillText(this.view.axis_text(x), pen.textAlign === "center" ? at : at > right - 20 ? right : left, bottom + 8);
    }
  }

  style_of(curve) {
    return curve.style || this.view.style_of(curve.run);
  }

  // A triangle at the edge for points beyond it, with their number in the title.
  draw_outliers(pen) {
    const {y0, y1} = this.range, {top, bottom} = this.box;
    let [above, below, highest, lowest] = [0, 0, -Infinity, Infinity];
    const seen = new Set();
    this.each_point((x, y, curve) => {
      if (y >= y0 && y <= y1) return;
      const is_above = y > y1;
      if (is_above) { ++above; highest = Math.max(highest, y); } else { ++below; lowest = Math.min(lowest, y); }
      const at = this.x_at(x), place = Math.round(at / 6) + (is_above ? "+" : "-");
      if (seen.has(place)) return;
      seen.add(place);
      const edge = is_above ? top - 3 : bottom + 3, inward = is_above ? 6 : -6;
      pen.fillStyle = this.style_of(curve).color;
      pen.beginPath();
      pen.moveTo(at, edge);
      pen.lineTo(at - 4, edge + inward);
      pen.lineTo(at + 4, edge + inward);
      pen.fill();
    });
    const text = [above > 0 && "\u25b2 " + plural(above, "point") + " above, up to " + short_number(highest),
                  below > 0 && "\u25bc " + plural(below, "point") + " below, down to " + short_number(lowest)];
    this.outliers.textContent = text.filter(Boolean).join("; ");
    this.outliers.hidden = above + below === 0;
  }

  // The legend of a chart with several curves.
  show_keys() {
    const labelled = this.curves.filter((curve) => curve.label);
    const has_keys = this.view.runs.length === 1 && labelled.length > 1;
    this.keys.replaceChildren(...(has_keys ? labelled : []).map((curve) =>
      element("span", {}, swatch(this.style_of(curve)), element("span", {text: curve.label}))));
  }

  draw_line(pen, curve, ys, alpha, width, dash) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = pen.fillStyle = this.style_of(curve).color;
    pen.setLineDash(dash);
    pen.lineWidth = width;
    pen.lineJoin = "round";
    pen.beginPath();
    let is_down = false;
    for (let i = 0; i < curve.x.length; ++i) {
      const y = ys[i];
      if (y === null || (this.uses_log() && y <= 0)) { is_down = false; continue; }
      if (is_down) pen.lineTo(this.x_at(curve.x[i]), this.y_at(y)); else pen.moveTo(this.x_at(curve.x[i]), this.y_at(y));
      is_down = true;
    }
    pen.stroke();
    pen.setLineDash([]);
    if (curve.dots || curve.x.length === 1) {
      for (let i = 0; i < curve.x.length && curve.x.length <= 60; ++i) {
        if (ys[i] === null) continue;
        pen.beginPath();
        pen.arc(this.x_at(curve.x[i]), this.y_at(ys[i]), width * 0.7 + 1.2, 0, 7);
        pen.fill();
      }
    }
    pen.globalAlpha = 1;
  }

  x_under(event) {
    const box = this.body.getBoundingClientRect();
    return this.x_of(Math.min(Math.max(event.clientX - box.left, this.box.left), this.box.right));
  }

  hover(event) {
    if (this.curves.length === 0) return;
    this.view.point_at({x: this.x_under(event), chart: this, y: event.clientY - this.body.getBoundingClientRect().top});
  }

  start_drag(event) {
    if (this.curves.length === 0 || event.button !== 0) return;
    this.drag = this.x_under(event);
    this.body.setPointerCapture(event.pointerId);
  }

  end_drag(event) {
    if (this.drag === null) return;
    const ends = [this.drag, this.x_under(event)].sort((a, b) => a - b);
    this.drag = null;
    if (this.x_at(ends[1]) - this.x_at(ends[0]) > 8) this.view.change({zoom: ends}); else this.view.point_at(this.view.pointed);
  }

  key(event) {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move || this.curves.length === 0) return;
    event.preventDefault();
    const {x0, x1} = this.range, now = this.view.pointed ? this.view.pointed.x : x0;
    this.view.point_at({x: Math.min(x1, Math.max(x0, now + move * (x1 - x0) / 50)), chart: this, y: 20});
  }

  show_pointer(pointed) {
    const pen = this.over.getContext("2d");
    pen.clearRect(0, 0, this.over.width, this.over.height);
    this.tip.hidden = true;
    if (!pointed || this.curves.length === 0) return;
    const at = this.x_at(pointed.x);
    if (at < this.box.left - 1 || at > this.box.right + 1) return;
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--faint");
    pen.globalAlpha = 0.6;
    pen.beginPath();
    pen.moveTo(at, this.box.top);
    pen.lineTo(at, this.box.bottom);
    pen.stroke();
    pen.globalAlpha = 1;
    if (this.drag !== null) {
      pen.fillStyle = pen.strokeStyle;
      pen.globalAlpha = 0.15;
      pen.fillRect(this.x_at(this.drag), this.box.top, at - this.x_at(this.drag), this.box.bottom - this.box.top);
      pen.globalAlpha = 1;
    }
    const found = this.values_at(pointed.x);
    for (const {curve, i} of found) {
      pen.fillStyle = this.style_of(curve).color;
      pen.beginPath();
      pen.arc(this.x_at(curve.x[i]), Math.min(Math.max(this.y_at(curve.y[i]), this.box.top), this.box.bottom), 3.2, 0, 7);
      pen.fill();
    }
    if (pointed.chart === this) this.show_tip(pointed, at, found);
  }

  values_at(x) {
    const found = [];
    const reach = (this.range.x1 - this.range.x0) * 0.02;
    for (const curve of this.curves) {
      if (x > curve.x[curve.x.length - 1] + reach || x < curve.x[0] - reach) continue;
      let i = nearest_index(curve.x, x);
      while (i > 0 && curve.y[i] === null) --i;
      if (curve.y[i] !== null) found.push({curve, i});
    }
    return found.sort((a, b) => b.curve.y[b.i] - a.curve.y[a.i]);
  }

  show_tip(pointed, at, found) {
    const most = 14;
    const rows = found.length > most ? [...found.slice(0, most / 2), ...found.slice(-most / 2)] : found;
    this.tip.replaceChildren(element("div", {class: "tip-head", text: this.view.axis_name() + " " + this.view.axis_text(pointed.x, true)}));
    rows.forEach(({curve, i}, row) => {
      if (found.length > most && row === most / 2) {
        this.tip.append(element("div", {class: "tip-more", text: "\u2026 " + (found.length - most) + " more"}));
      }
      const raw = curve.raw && curve.raw[i] !== null && curve.raw[i] !== curve.y[i] ? format(this.spec.kind, curve.raw[i]) : "";
      this.tip.append(element("div", {class: "tip-row" + (curve.run === this.view.marked ? " marked" : "")}, swatch(this.style_of(curve)),
                              element("span", {text: curve.label || curve.run.name}),
                              element("small", {text: raw}), element("b", {text: format(this.spec.kind, curve.y[i])})));
    });
    this.tip.hidden = false;
    const width = this.tip.offsetWidth, height = this.tip.offsetHeight;
    const is_left = at + 16 + width > this.body.clientWidth;
    this.tip.style.left = Math.max(-8, is_left ? at - width - 14 : at + 14) + "px";
    this.tip.style.top = Math.min(Math.max(0, pointed.y - height / 2), Math.max(0, this.body.clientHeight - height + 40)) + "px";
  }
}

function time_ticks(low, high) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];
  const step = steps.find((s) => (high - low) / s <= 6);
  if (high - low < 3 || !step) return nice_ticks(low, high, 5);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) ticks.push(t);
  return ticks;
}
