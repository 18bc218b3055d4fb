// Tables: results that sort by click, long values, the ledger.

function cell_value(run, column) {
  if (column.from === "figures") return run.figures[column.name];
  if (column.from === "profile") return run.profile[column.name];
  return run[column.name];
}

// "r8" before "r16", and "0.001" before "0.01".
function compare_names(a, b) {
  const parts = (text) => text.match(/\d+|\D+/g) || [];
  const [x, y] = [parts(a), parts(b)];
  for (let i = 0; i < Math.min(x.length, y.length); ++i) {
    if (x[i] === y[i]) continue;
    const are_numbers = /^[1-9]\d*$|^0$/.test(x[i]) && /^[1-9]\d*$|^0$/.test(y[i]);
    return are_numbers ? Number(x[i]) - Number(y[i]) : x[i] < y[i] ? -1 : 1;
  }
  return x.length - y.length;
}

function compare_cells(a, b) {
  const is_missing = (v) => v === null || v === undefined || v === "";
  if (is_missing(a) || is_missing(b)) return is_missing(a) - is_missing(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return compare_names(setting_text(a), setting_text(b));
}

function badge(status) {
  const known = ["done", "stopped", "failed", "running", "unfinished", "broken"];
  return element("span", {class: "badge " + (known.includes(status) ? status : "unfinished"), text: status});
}

// Headings for figures. The tooltip has the names that --sort takes.
const figure_titles = {
  step: "steps", last_train_loss: "train loss", best_train_loss: "lowest train loss", eval_loss: "eval loss",
  best_eval_loss: "lowest eval loss", tokens_per_s: "tokens per second", peak_memory_gib: "GPU memory, peak (GiB)",
  peak_host_memory_gib: "host memory, peak (GiB)", wall_s: "wall time", cost_usd: "cost",
};

function is_short_key(data, key) {
  return Math.max(...data.runs.map((run) => setting_text(run.profile[key]).length)) <= 28;
}

function results_columns(data) {
  const shown = data.differing.filter((key) => is_short_key(data, key));
  return [
    {name: "name", title: "run", from: "run"},
    ...shown.map((key) => ({name: key, title: key, from: "profile", is_number: data.runs.every((run) =>
      run.profile[key] === undefined || run.profile[key] === null || typeof run.profile[key] === "number")})),
    {name: "status", title: "status", from: "run"},
    ...(data.columns || []).map(([name, kind]) => (
      {name, title: figure_titles[name] || name.replaceAll("_", " "), from: "figures", kind, is_number: true})),
  ];
}

// The best value of a column: the lowest loss, the highest rate.
function best_of(runs, column) {
  const is_lowest = column.kind === "loss";
  if (column.from !== "figures" || (!is_lowest && column.name !== "tokens_per_s")) return null;
  const values = runs.map((run) => run.figures[column.name]).filter((v) => typeof v === "number");
  if (values.length < 2) return null;
  return is_lowest ? Math.min(...values) : Math.max(...values);
}

function results_table(data, view) {
  const columns = results_columns(data);
  const best = new Map(columns.map((column) => [column, best_of(data.runs, column)]));
  let sorted_by = null, direction = 1;
  const head = element("tr", {});
  const body = element("tbody", {});
  const rows = new Map();

  for (const run of data.runs) {
    const toggle = element("button", {class: "stroke", type: "button", title: "show or hide its curves",
                                      onclick: (event) => { event.stopPropagation(); view.toggle(run); }});
    const row = element("tr", {onpointerenter: () => view.mark(run), onpointerleave: () => view.mark(null)});
    for (const column of columns) {
      const value = cell_value(run, column);
      if (column.name === "name") {
        row.append(element("th", {scope: "row", title: run.folder}, toggle, element("span", {text: run.name})));
      } else if (column.name === "status") {
        row.append(element("td", {title: run.reason}, badge(run.status)));
      } else {
        const text = column.from === "figures" ? format(column.kind, value) : setting_text(value);
        const is_best = column.from === "figures" && best.get(column) !== null && value === best.get(column);
        row.append(element("td", {class: (column.is_number ? "number" : "") + (is_best ? " best" : ""), text}));
      }
    }
    rows.set(run, {row, toggle});
    body.append(row);
  }

  function sort(column) {
    direction = sorted_by === column ? -direction : 1;
    sorted_by = column;
    const order = [...data.runs].sort((a, b) => {
      const [x, y] = [cell_value(a, column), cell_value(b, column)];
      const missing = (v) => v === null || v === undefined;
      return missing(x) || missing(y) ? missing(x) - missing(y) : direction * compare_cells(x, y);
    });
    body.append(...order.map((run) => rows.get(run).row));
    for (const th of head.children) {
      th.setAttribute("aria-sort", th.column === column ? (direction > 0 ? "ascending" : "descending") : "none");
    }
  }

  for (const column of columns) {
    const th = element("th", {scope: "col", class: column.is_number ? "number" : "", "aria-sort": "none"},
                       element("button", {type: "button", text: column.title, title: "sort by " + column.name, onclick: () => sort(column)}));
    th.column = column;
    head.append(th);
  }
  view.on_change(() => {
    for (const [run, {row, toggle}] of rows) {
      row.classList.toggle("off", !view.is_on(run));
      row.classList.toggle("marked", view.marked === run);
      toggle.setAttribute("aria-pressed", String(view.is_on(run)));
      toggle.replaceChildren(swatch(view.style_of(run)));
    }
  });
  return element("div", {class: "scroll"}, element("table", {class: "results"}, element("thead", {}, head), body));
}

// The values too long for a column, key by key.
function long_differences(data, view) {
  const keys = data.differing.filter((key) => !is_short_key(data, key));
  return keys.map((key) => {
    const rows = data.runs.map((run) => {
      const mark = element("span");
      view.on_change(() => mark.replaceChildren(swatch(view.style_of(run))));
      return element("tr", {}, element("th", {scope: "row", title: run.folder}, mark, element("span", {text: run.name})),
                     element("td", {class: "long", text: setting_text(run.profile[key])}));
    });
    return section(key, element("div", {class: "scroll"}, element("table", {class: "differences"}, element("tbody", {}, ...rows))));
  });
}

function reasons_list(runs) {
  const list = element("ul", {class: "reasons"});
  for (const run of runs) {
    if (!run.reason) continue;
    list.append(element("li", {}, badge(run.status), element("b", {text: run.name}), element("span", {text: run.reason})));
  }
  return list.children.length > 0 ? list : null;
}

function simple_table(titles, rows) {
  const head = element("tr", {}, ...titles.map(([title, is_number]) =>
    element("th", {scope: "col", class: is_number ? "number" : "", text: title})));
  const body = element("tbody", {}, ...rows.map((cells) =>
    element("tr", {}, ...cells.map((text, i) => element("td", {class: titles[i][1] ? "number" : "", text})))));
  return element("div", {class: "scroll"}, element("table", {}, element("thead", {}, head), body));
}
