// The charts of a page, and the sources of their curves in a run.

const set_style = (index) => run_style(index);

// The evaluations of a run by dataset or task, in the order of their first line.
function evals_by_name(run) {
  const sets = new Map();
  for (const entry of run.evals || []) {
    if (!sets.has(entry.name)) sets.set(entry.name, []);
    sets.get(entry.name).push(entry);
  }
  return sets;
}

// A curve for each dataset or task that has one of the keys; the label names the key if a set has several.
function eval_curves(run, view, keys) {
  const curves = [];
  let index = 0;
  for (const [name, entries] of evals_by_name(run)) {
    const style = view.is_single() ? set_style(++index) : undefined;
    const known = keys.filter((key) => entries.some((entry) => is_known(entry[key])));
    for (const key of known) {
      const label = view.is_single() ? name + (known.length > 1 ? ": " + eval_titles[key] : "") : run.name;
      const dash = known.length > 1 && key !== known[0] ? [4, 3] : [];
      curves.push({x: entries.map((entry) => entry[view.axis]), y: entries.map((entry) => is_known(entry[key]) ? entry[key] : null),
                   dots: true, label, style: style && {...style, dash: style.dash.length > 0 ? style.dash : dash}});
    }
  }
  return curves;
}

const eval_titles = {
  loss: "loss", perplexity: "perplexity", token_accuracy: "token accuracy", accuracy: "accuracy", ece: "calibration error",
  ece_equal_mass: "calibration error, equal mass", brier: "Brier score", auroc: "AUROC",
  mean_confidence: "mean confidence", over_confidence: "over-confidence",
};

function step_curve(name, label) {
  return (run, view) => run.curves[name] ? [{x: run.curves[view.axis], y: run.curves[name], label, style: view.is_single() ? run_style(0) : undefined}] : [];
}

function smoothed_curve(name, label) {
  return (run, view) => step_curve(name, label)(run, view).map((curve) => {
    const y = smoothed(curve.y, view.smoothing);
    return {...curve, y, raw: y === curve.y ? undefined : curve.y};
  });
}

// Curves that share a chart: each has its own colour in a report, its own dash pattern in a comparison.
function together(...parts) {
  return (run, view) => parts.flatMap((part, i) => part(run, view).map((curve) => (
    {...curve, style: view.is_single() ? set_style(i) : {...view.style_of(run), dash: run_dashes[i]},
     label: view.is_single() ? curve.label : run.name + ": " + curve.label})));
}

// The charts that the program describes: src/report/step_fields.h.
function step_specs(data) {
  return data.charts.map((chart) => {
    const curves = chart.curves.map(([key, name]) => (chart.is_smoothed ? smoothed_curve : step_curve)(key, name));
    return {...chart, curves: curves.length > 1 ? together(...curves) : curves[0]};
  });
}

function report_specs(data) {
  const evals = (...keys) => (run, view) => eval_curves(run, view, keys);
  const losses = (run, view) => [
    ...smoothed_curve("loss", "train")(run, view),
    ...eval_curves(run, view, ["loss"]).map((curve) => ({...curve, label: "eval: " + curve.label}))];
  return [
    {title: "Loss", unit: "per token", kind: "loss", curves: losses, may_log: true, is_wide: true},
    {title: "Accuracy", kind: "percent", curves: evals("accuracy", "token_accuracy"), is_optional: true},
    {title: "Perplexity", kind: "perplexity", curves: evals("perplexity"), may_log: true, is_optional: true},
    {title: "Calibration error", kind: "percent", curves: evals("ece"), from_zero: true, is_optional: true},
    ...step_specs(data),
  ];
}

// In a comparison, a run is a curve: the mean over its datasets, and a chart for each task.
function comparison_specs(data) {
  const mean = (name) => (run, view) => [{x: run.eval[view.axis], y: run.eval[name], dots: true}];
  const tasks = new Map();
  for (const run of data.runs) {
    for (const entry of run.evals) if (entry.kind) tasks.set(entry.name, entry.kind);
  }
  const of_task = (name, key) => (run, view) => eval_curves({...run, evals: run.evals.filter((entry) => entry.name === name)}, view, [key])
    .map((curve) => ({...curve, label: run.name}));
  const task_specs = [...tasks.keys()].flatMap((name) => ["accuracy", "ece"].map((key) => (
    {title: name + ": " + eval_titles[key], kind: "percent", curves: of_task(name, key), is_optional: true})));
  return [
    {title: "Train loss", unit: "per token", kind: "loss", curves: smoothed_curve("loss"), may_log: true, is_wide: true},
    {title: "Eval loss", unit: "per token", kind: "loss", may_log: true, is_wide: true, curves: mean("loss"), is_optional: true},
    {title: "Token accuracy", kind: "percent", curves: mean("token_accuracy"), is_optional: true},
    ...task_specs, ...step_specs(data).filter((spec) => spec.is_compared),
  ];
}

function charts_grid(data, view) {
  const grid = element("div", {class: "grid"});
  for (const spec of data.kind === "report" ? report_specs(data) : comparison_specs(data)) {
    const chart = new Chart(spec, view);
    if (!chart.has_data() && (spec.is_optional || data.kind === "report")) continue;
    view.charts.push(chart);
    grid.append(chart.node);
  }
  // No holes: a wide chart takes a row; small ones go three per row, or two if only two are left.
  const wide = view.charts.filter((chart) => chart.spec.is_wide), small = view.charts.filter((chart) => !chart.spec.is_wide);
  if (wide.length === 1) wide[0].node.classList.add("whole-row");
  const num_halves = {0: 0, 1: Math.min(4, small.length), 2: 2}[small.length % 3];
  for (const chart of small.slice(small.length - num_halves)) chart.node.classList.add("half");
  return grid;
}
// Small SVG drawings: histograms, and results by setting. They use the theme's colours.

// x_at, y_at: map values to the drawing. ticks: [[value, text], ...]
function framed_drawing(box, label, x_ticks, y_ticks, x_at, y_at) {
  const drawing = svg_element("svg", {class: "drawing", viewBox: "0 0 " + box.width + " " + box.height, role: "img", "aria-label": label});
  for (const [value, text] of y_ticks) {
    drawing.append(svg_element("line", {class: "rule", x1: box.left, x2: box.right, y1: y_at(value), y2: y_at(value)}),
                   svg_element("text", {class: "tick", x: box.left - 7, y: y_at(value) + 4, "text-anchor": "end", text}));
  }
  x_ticks.forEach(([value, text], i) => {
    const at = x_at(value), half = 3.2 * text.length;
    const anchor = at + half > box.width - 2 ? "end" : at - half < 2 ? "start" : "middle";
    drawing.append(svg_element("text", {class: "tick", "text-anchor": anchor, y: box.bottom + 16, text,
                                        x: anchor === "end" ? Math.min(at + half, box.width - 2) : anchor === "start" ? Math.max(at - half, 2) : at}));
  });
  return drawing;
}

function titled(node, text) {
  node.append(svg_element("title", {text}));
  return node;
}

// bars: [{from, to, count, title}]
function histogram(bars, label) {
  const box = {width: 420, height: 170, left: 46, right: 412, top: 8, bottom: 144};
  const last = bars[bars.length - 1].to, most = Math.max(...bars.map((bar) => bar.count));
  const x_at = (v) => box.left + v / last * (box.right - box.left), y_at = (v) => box.bottom - v / most * (box.bottom - box.top);
  const drawing = framed_drawing(box, label, nice_ticks(0, last, 6).map((v) => [v, short_number(v)]),
                                 nice_ticks(0, most, 4).filter((v) => v === Math.round(v)).map((v) => [v, short_number(v)]), x_at, y_at);
  for (const bar of bars) {
    if (bar.count === 0) continue;
    drawing.append(titled(svg_element("rect", {class: "bar", x: x_at(bar.from) + 0.5, width: Math.max(1, x_at(bar.to) - x_at(bar.from) - 1),
                                               y: Math.min(y_at(bar.count), box.bottom - 1), height: Math.max(1, box.bottom - y_at(bar.count))}), bar.title));
  }
  return drawing;
}

// One dot per run: points [{x: number or text, y, style, title}]. Texts go side by side, in order.
function strip(points, label) {
  const box = {width: 400, height: 210, left: 56, right: 386, top: 12, bottom: 178};
  const are_numbers = points.every(({x}) => typeof x === "number");
  const values = [...new Set(points.map(({x}) => x))].sort((a, b) => are_numbers ? a - b : compare_names(a, b));
  const is_log = are_numbers && values[0] > 0 && values[values.length - 1] / values[0] > 8;
  const place = are_numbers ? (x) => (is_log ? Math.log(x) : x) : (x) => values.indexOf(x);
  const [x0, x1] = [place(values[0]), place(values[values.length - 1])], inset = 22;
  const x_at = (x) => x1 > x0 ? box.left + inset + (place(x) - x0) / (x1 - x0) * (box.right - box.left - 2 * inset) : (box.left + box.right) / 2;
  const ys = points.map(({y}) => y), low = Math.min(...ys), high = Math.max(...ys), pad = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  const y_at = (y) => box.bottom - (y - low + pad) / (high - low + 2 * pad) * (box.bottom - box.top);
  const room = Math.max(3, Math.floor(44 / Math.max(1, values.length)));
  const text_of = (x) => are_numbers ? short_number(x) : x.length > room ? x.slice(0, room - 1) + "\u2026" : x;
  const drawing = framed_drawing(box, label, values.length <= 8 || !are_numbers ? values.map((x) => [x, text_of(x)]) :
    (is_log ? log_ticks(values[0], values[values.length - 1]) : nice_ticks(values[0], values[values.length - 1], 6)).map((x) => [x, short_number(x)]),
                                 nice_ticks(low, high, 4).map((y) => [y, short_number(y)]), x_at, y_at);
  const mean = (x) => { const of_x = points.filter((point) => point.x === x); return of_x.reduce((sum, {y}) => sum + y, 0) / of_x.length; };
  if (values.length > 1) drawing.append(svg_element("polyline", {class: "mean", points: values.map((x) => x_at(x) + "," + y_at(mean(x))).join(" ")}));
  for (const {x, y, style, title} of points) drawing.append(titled(svg_element("circle", {cx: x_at(x), cy: y_at(y), r: 5, fill: style.color, class: "dot-mark"}), title));
  return drawing;
}
