// Which charts a page has, and from what of a run their curves come.

const set_style = (index) => run_style(index);

// The evaluations of a run by data set or task, in the order of their first line.
function evals_by_name(run) {
  const sets = new Map();
  for (const entry of run.evals || []) {
    if (!sets.has(entry.name)) sets.set(entry.name, []);
    sets.get(entry.name).push(entry);
  }
  return sets;
}

// A curve for each data set or task that has one of the keys; its label names the key where a set has several.
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

// Curves that share a chart: each has a colour of its own in a report, a dash pattern of its own in a comparison.
function together(...parts) {
  return (run, view) => parts.flatMap((part, i) => part(run, view).map((curve) => (
    {...curve, style: view.is_single() ? set_style(i) : {...view.style_of(run), dash: run_dashes[i]},
     label: view.is_single() ? curve.label : run.name + ": " + curve.label})));
}

const device_specs = [
  {title: "Learning rate", kind: "short", curves: step_curve("learning_rate"), from_zero: true},
  {title: "Gradient norm", unit: "before clipping", kind: "short", curves: smoothed_curve("grad_norm"), may_log: true, from_zero: true},
  {title: "Throughput", unit: "tokens per second", kind: "count", curves: smoothed_curve("tokens_per_s"), from_zero: true},
  {title: "Memory", unit: "GiB", kind: "gib", from_zero: true, is_optional: true,
   curves: together(step_curve("memory_gib", "GPU"), step_curve("host_memory_gib", "host"))},
  {title: "GPU use", unit: "% of the time", kind: "hundredths", curves: smoothed_curve("gpu_utilization"), from_zero: true, is_optional: true},
  {title: "CPU use", unit: "% of one core", kind: "hundredths", curves: smoothed_curve("cpu_percent"), from_zero: true, is_optional: true},
  {title: "GPU power", unit: "W", kind: "short", curves: smoothed_curve("gpu_power_w"), from_zero: true, is_optional: true},
  {title: "GPU temperature", unit: "\u00b0C", kind: "short", curves: step_curve("gpu_temperature_c"), is_optional: true},
  {title: "GPU clock", unit: "MHz", kind: "count", curves: step_curve("gpu_clock_mhz"), is_optional: true},
  {title: "Waiting for data", unit: "ms per step", kind: "short", curves: smoothed_curve("data_wait_ms"), from_zero: true,
   is_optional: true, is_in_report: true},
];

function report_specs() {
  const evals = (...keys) => (run, view) => eval_curves(run, view, keys);
  const losses = (run, view) => [
    ...smoothed_curve("loss", "train")(run, view),
    ...eval_curves(run, view, ["loss"]).map((curve) => ({...curve, label: "eval: " + curve.label}))];
  return [
    {title: "Loss", unit: "per token", kind: "loss", curves: losses, may_log: true, is_wide: true},
    {title: "Accuracy", kind: "percent", curves: evals("accuracy", "token_accuracy"), is_optional: true},
    {title: "Perplexity", kind: "perplexity", curves: evals("perplexity"), may_log: true, is_optional: true},
    {title: "Calibration error", kind: "percent", curves: evals("ece"), from_zero: true, is_optional: true},
    ...device_specs,
  ];
}

// In a comparison a run is a curve: the mean over its data sets, and a chart for each task.
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
    ...task_specs, ...device_specs,
  ];
}

function charts_grid(data, view) {
  const grid = element("div", {class: "grid"});
  for (const spec of data.kind === "report" ? report_specs() : comparison_specs(data)) {
    if (spec.is_in_report && data.kind !== "report") continue;
    const chart = new Chart(spec, view);
    if (!chart.has_data() && (spec.is_optional || data.kind === "report")) continue;
    view.charts.push(chart);
    grid.append(chart.node);
  }
  // No holes: one wide chart takes a row; small ones stand three a row, two where that is all that is left.
  const wide = view.charts.filter((chart) => chart.spec.is_wide), small = view.charts.filter((chart) => !chart.spec.is_wide);
  if (wide.length === 1) wide[0].node.classList.add("whole-row");
  const num_halves = {0: 0, 1: Math.min(4, small.length), 2: 2}[small.length % 3];
  for (const chart of small.slice(small.length - num_halves)) chart.node.classList.add("half");
  return grid;
}
