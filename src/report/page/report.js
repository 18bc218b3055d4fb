// The parts of a report of one run.

function tile(label, text, note) {
  return element("div", {class: "tile"}, element("span", {text: label}), element("b", {text}), note ? element("small", {text: note}) : null);
}

/// " at step 40": the first after step 1 with this evaluation loss, to the digits of the page.
function step_of_loss(run, loss) {
  const at = run.eval.loss.findIndex((other, i) => run.eval.step[i] > 0 && other === loss);
  return at < 0 ? "" : " at step " + format("count", run.eval.step[at]);
}

function figure_tiles(run) {
  const figures = run.figures, summary = run.summary || {};
  const tiles = element("div", {class: "tiles"});
  const add = (label, kind, value, note) => is_known(value) && tiles.append(tile(label, format(kind, value), note));
  add("steps", "count", figures.step, is_known(figures.total_steps) ? "of " + format("count", figures.total_steps) : "");
  add("train loss", "loss", figures.last_train_loss, "lowest mean " + format("loss", figures.best_train_loss));
  add("eval loss", "loss", figures.eval_loss, is_known(figures.best_eval_loss) ?
    "lowest " + format("loss", figures.best_eval_loss) + step_of_loss(run, figures.best_eval_loss) : "");
  for (const [name, entries] of evals_by_name(run)) {
    const entry = entries[entries.length - 1];
    if (is_known(entry.accuracy)) add(name, "percent", entry.accuracy, is_known(entry.ece) ? "right; calibration error " + format("percent", entry.ece) : "right");
  }
  add("tokens", "short", figures.tokens, is_known(figures.epoch) ? plural_epochs(figures.epoch) : "");
  add("tokens per second", "count", figures.tokens_per_s, "in steps");
  add("GPU use", "hundredths", summary.mean_gpu_utilization, is_known(summary.energy_wh) ? trimmed(summary.energy_wh) + " Wh" : "mean");
  add("device memory, peak", "gib", figures.peak_memory_gib, "GiB");
  add("host memory, peak", "gib", figures.peak_host_memory_gib, "GiB");
  add("wall time", "seconds", figures.wall_s, is_known(figures.train_s) ? format("seconds", figures.train_s) + " in steps" : "");
  const gpus = summary.num_gpus > 1 ? summary.num_gpus + " x " : "";
  add("cost", "money", figures.cost_usd, is_known(summary.gpu_price_per_hour) ?
    gpus + format("money", summary.gpu_price_per_hour) + " an hour (" + summary.price_source + ")" : "US$");
  return tiles;
}

function plural_epochs(epochs) {
  return format("rate", epochs) + (epochs === 1 ? " epoch" : " epochs");
}

function data_text(run) {
  const sets = Array.isArray(run.profile.datasets) ? run.profile.datasets : [];
  const count = run.start && run.start.num_documents;
  return sets.map((set) => set.path).join(", ") + (is_known(count) ? " (" + plural(count, "document") + " an epoch)" : "");
}

function facts(run) {
  const summary = run.summary || {}, start = run.start || {}, list = element("dl", {class: "facts"});
  const add = (name, text) => text && list.append(element("div", {}, element("dt", {text: name}), element("dd", {text})));
  const is_earlier = is_known(summary.adapter_step) && summary.adapter_step !== summary.step;
  const device = summary.gpu || (start.device && start.device !== "cpu" ? start.device : "CPU");
  add("model", run.profile.model);
  add("data", data_text(run));
  add(run.profile.adapter === "none" ? "result" : "adapter", summary.adapter && summary.adapter + (is_earlier ? " (from step " + format("count", summary.adapter_step) + ")" : ""));
  add("started", is_known(run.started_at) ? date_text(run.started_at) : "");
  add("duration", is_known(run.figures.wall_s) ? duration(run.figures.wall_s) + (run.processes_s.length > 1 ? ", in " + run.processes_s.length + " pieces" : "") : "");
  add("device", (summary.num_gpus > 1 ? summary.num_gpus + " x " : "") + device);
  return list;
}

const phase_colors = {data: "#12a3b4", load: "#3b76d6", tune: "#8a63d2", train: "#2f9e5f", evaluate: "#e5730b",
                      save: "#d03b4b", result: "#c44a9c", other: "#8a94a2"};

function phase_dot(phase) {
  const dot = element("i");
  dot.style.background = phase_colors[phase] || phase_colors.other;
  return dot;
}

// Timeline of phases. Processes follow each other; a line marks each start.
function timeline(run, wall_s) {
  const bar = element("div", {class: "timeline", role: "img", "aria-label": "timeline of the run"});
  const place = (seconds) => (100 * Math.min(Math.max(seconds / wall_s, 0), 1)).toFixed(3) + "%";
  for (const [phase, from, to] of run.spans || []) {
    const part = element("span", {title: phase + ": " + duration(to - from) + ", from " + duration(from) + " to " + duration(to)});
    part.style.left = place(from);
    part.style.width = place(to - from);
    part.style.background = phase_colors[phase] || phase_colors.other;
    bar.append(part);
  }
  for (const start of run.processes_s.slice(1)) {
    const line = element("b", {title: "resumed after " + duration(start)});
    line.style.left = place(start);
    bar.append(line);
  }
  return bar;
}

function times(run) {
  const phases = Object.entries(run.phases_s || {}).filter(([, seconds]) => seconds >= 0.05);
  const wall_s = run.figures.wall_s, cost = run.figures.cost_usd, has_cost = is_known(cost);
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

const eval_columns = [
  ["loss", "loss"], ["perplexity", "perplexity"], ["token_accuracy", "percent"], ["accuracy", "percent"], ["ece", "percent"],
  ["ece_equal_mass", "percent"], ["brier", "loss"], ["auroc", "loss"], ["mean_confidence", "percent"], ["over_confidence", "percent"],
];

function evaluations(run) {
  const last = [...evals_by_name(run).values()].map((entries) => entries[entries.length - 1]);
  if (last.length === 0) return null;
  const columns = eval_columns.filter(([key]) => last.some((entry) => is_known(entry[key])));
  const titles = [["dataset"], ["step", true], ...columns.map(([key]) => [eval_titles[key], true]), ["size", true]];
  return section("Last evaluation", simple_table(titles, last.map((entry) => [
    entry.name, format("count", entry.step), ...columns.map(([key, kind]) => format(kind, entry[key])),
    entry.kind ? plural(entry.num_rows, "example") : plural(entry.num_tokens, "token")])));
}

// Drawings of the program: the first evaluation, and that of the result or the last.
function calibration(run) {
  const parts = (run.reliability || []).map((drawing) => {
    const figure = element("figure", {});
    figure.innerHTML = drawing;
    return figure;
  });
  return parts.length > 0 ? section("Calibration", element("div", {class: "figures"}, ...parts)) : null;
}

function answer_block(title, answer) {
  if (!answer) return null;
  const confidence = is_known(answer.confidence) ? " \u00b7 confidence " + format("percent", answer.confidence) : "";
  return element("div", {class: "said " + (answer.is_right ? "right" : "wrong")},
                 element("small", {text: title + " \u00b7 " + (answer.is_right ? "right" : "wrong") + confidence}), element("pre", {text: answer.answer}));
}

function answers(run) {
  const rows = new Map();
  for (const answer of run.answers || []) {
    const key = JSON.stringify([answer.name, answer.source, answer.prompt]);
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(answer);
  }
  if (rows.size === 0) return null;
  const cards = [...rows.values()].map((said) => element("article", {class: "sample"},
    element("small", {text: said[0].name + (said[0].source ? " \u00b7 " + said[0].source : "")}), element("pre", {class: "prompt", text: said[0].prompt}),
    said[0].expected && element("div", {class: "said"}, element("small", {text: "expected"}), element("pre", {text: said[0].expected})),
    ...said.map((answer) => answer_block((answer.step === 0 ? "before training" : "step " + format("count", answer.step)), answer))));
  return section("Answers before and after", element("div", {class: "samples"}, ...cards));
}

function ledger(run) {
  const book = run.summary && run.summary.ledger;
  if (!book || !(book.total > 0)) return null;
  const lost = Object.entries(book.reasons || {}), held_out = book.held_out || 0;
  const rows = lost.map(([reason, entry]) => [reason.replaceAll("_", " "), format("count", entry.count),
    (100 * entry.count / book.total).toFixed(2) + " %", entry.first || ""]);
  const text = format("count", book.kept - held_out) + " of " + plural(book.total, "example") + (book.kept - held_out === 1 ? " is" : " are") + " trained on" +
    (held_out > 0 ? ", " + format("count", held_out) + (held_out === 1 ? " is" : " are") + " held out for evaluation" : "") +
    (lost.length > 0 ? "." : "; none was lost or changed.");
  return section("Data ledger", element("p", {text}),
                 rows.length > 0 ? simple_table([["reason"], ["examples", true], ["share", true], ["first at"]], rows) : null);
}

function lengths(run) {
  const found = run.start && run.start.document_lengths;
  if (!found || !(found.bin_width > 0) || !Array.isArray(found.counts) || found.counts.length === 0) return null;
  const count = found.counts.reduce((sum, n) => sum + n, 0);
  if (!(count > 0)) return null;
  const bars = found.counts.map((n, i) => {
    const from = i * found.bin_width, to = from + found.bin_width;
    return {from, to, count: n, title: format("count", from + 1) + " to " + plural(to, "token") + ": " + plural(n, "document")};
  });
  const text = plural(count, "document") + ": " + short_number(found.num_tokens / count) + " tokens on average, " +
    format("count", found.longest) + " at most" + (is_known(run.profile.max_seq_len) ? " (max_seq_len " + format("count", run.profile.max_seq_len) + ")" : "") + ".";
  return section("Document lengths", element("p", {text}), histogram(bars, "documents by tokens"));
}

function data_section(run) {
  const parts = [ledger(run), lengths(run)].filter(Boolean);
  return parts.length > 0 ? element("div", {class: "pair"}, ...parts) : null;
}

// The user's choices, compared with the shipped profile that theirs extends and with the defaults.
function choices_section(run) {
  const start = run.start || {}, set_by = start.set_by || {}, bases = start.base_files || [], base_values = start.base_values || {};
  const keys = Object.keys(run.profile).filter((key) => base_values[key] !== undefined || JSON.stringify(run.profile[key]) !== JSON.stringify(run.defaults[key]));
  if (keys.length === 0) return null;
  const is_base = (key) => bases.some((file) => (set_by[key] || "").startsWith(file + ":"));
  const short = (place) => place.replace(/^.*\//, "");
  const columns = [["key"], ["value"], ...(bases.length > 0 ? [["in " + bases.map(short).join(", ")]] : []), ["default"], ["set by"]];
  const rows = [...keys.filter((key) => !is_base(key)), ...keys.filter(is_base)].map((key) => [
    key, setting_text(run.profile[key]), ...(bases.length > 0 ? [is_base(key) ? "the same" : base_values[key] || "\u2013"] : []),
    setting_text(run.defaults[key]), set_by[key] ? short(set_by[key]) : "the run"]);
  const table = simple_table(columns, rows);
  table.classList.add("settings", "choices");
  return section(bases.length > 0 ? "Profile: differences from " + bases.map(short).join(", ") + " and the defaults" : "Profile: differences from the defaults", table);
}

function profile_section(run) {
  const rows = Object.entries(run.profile).map(([key, value]) => [key, setting_text(value)]);
  if (rows.length === 0) return null;
  const table = simple_table([["key"], ["value"]], rows);
  table.classList.add("settings");
  return element("details", {class: "card"}, element("summary", {text: "Full profile"}), table);
}

const environment_titles = {command: "command", working_folder: "started in", commit: "commit", libtorch: "LibTorch", cuda: "CUDA", driver: "driver",
                            gpu: "GPU", host: "host", operating_system: "operating system", cpu: "CPU", host_memory: "host memory"};

function environment(run) {
  const start = run.start || {}, known = start.environment || {};
  const rows = [["lora-train", (run.summary && run.summary.version) || start.version || ""], ["folder", run.folder],
                ...Object.entries(known).map(([name, text]) => [environment_titles[name] || name, String(text)]),
                ...(start.world_size > 1 ? [["ranks", format("count", start.world_size)]] : []),
                ...(start.profile_hash ? [["profile hash", start.profile_hash]] : [])];
  const table = simple_table([["what"], ["value"]], rows.filter(([, text]) => text));
  table.classList.add("settings");
  return section("Environment", table);
}

// "The GPU was throttled in 12 of 200 logged steps: power_cap (12)."
function throttling(run) {
  const found = Object.entries(run.gpu_throttle || {});
  if (found.length === 0) return null;
  const text = "The GPU was throttled in some of " + plural(run.curves.step.length, "logged step") + ": " +
    found.map(([reason, count]) => reason + " (" + format("count", count) + ")").join(", ") + ".";
  return element("section", {class: "card notice"}, element("p", {text}));
}

function show_report(page, data, view) {
  const run = data.runs[0];
  page.append(header(run.name, "", run.status), facts(run));
  if (run.reason) page.append(element("section", {class: "card notice"}, element("p", {text: run.reason})));
  page.append(figure_tiles(run));
  const grid = charts_grid(data, view);
  if (view.charts.length > 0) page.append(element("div", {class: "sticky"}, controls(data, view)), grid);
  const parts = [throttling, evaluations, calibration, answers, times, data_section, choices_section, environment, profile_section];
  for (const part of parts.map((make) => make(run))) if (part) page.append(part);
}
// The parts of a comparison of several runs.

// The last evaluation loss if every run with a result has one, else the last train loss.
function final_loss(data) {
  const has_eval = data.runs.every((run) => is_known(run.figures.eval_loss) || !is_known(run.figures.last_train_loss));
  return has_eval ? ["eval_loss", "eval loss"] : ["last_train_loss", "train loss"];
}

// The final loss against each key that differs.
function settings_strips(data, view) {
  const [figure, title] = final_loss(data);
  const runs = data.runs.filter((run) => is_known(run.figures[figure]));
  if (runs.length < 2 || data.differing.length === 0) return null;
  const strips = data.differing.slice(0, 12).map((key) => {
    const node = element("figure", {}, element("h3", {text: key}, element("small", {text: "final " + title})));
    view.on_change(() => {
      const shown = runs.filter((run) => view.is_on(run));
      const are_numbers = shown.every((run) => is_known(run.profile[key]));
      const points = shown.map((run) => {
        const value = run.profile[key], y = run.figures[figure];
        return {x: are_numbers ? value : setting_text(value), y, style: view.style_of(run),
                title: run.name + ": " + key + " " + setting_text(value) + ", " + title + " " + format("loss", y)};
      });
      const next = points.length > 0 ? strip(points, "final " + title + " against " + key) : element("p", {class: "none", text: "no runs shown"});
      if (node.children.length > 1) node.lastChild.replaceWith(next); else node.append(next);
    });
    return node;
  });
  const more = data.differing.length - strips.length;
  return section("Final " + title + " by setting", element("div", {class: "figures small"}, ...strips),
                 more > 0 && element("p", {class: "none", text: "and " + plural(more, "more differing key")}));
}

function show_comparison(page, data, view) {
  const counts = new Map();
  for (const run of data.runs) counts.set(run.status, (counts.get(run.status) || 0) + 1);
  const states = [...counts].map(([status, n]) => n + " " + status).join(", ");
  page.append(header(data.runs.length + (data.runs.length === 1 ? " run" : " runs") + " compared", states));
  page.append(section("Results", results_table(data, view), reasons_list(data.runs)));
  page.append(element("div", {class: "sticky"}, controls(data, view), legend(data, view)));
  page.append(charts_grid(data, view));
  for (const part of [settings_strips(data, view), ...long_differences(data, view)]) if (part) page.append(part);
}
