// The parts of a comparison of several runs.

// The last evaluation loss where every run that has a result has one, else the last train loss.
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
      const next = points.length > 0 ? strip(points, "final " + title + " against " + key) : element("p", {class: "none", text: "no run is shown"});
      if (node.children.length > 1) node.lastChild.replaceWith(next); else node.append(next);
    });
    return node;
  });
  const more = data.differing.length - strips.length;
  return section("Final " + title + " by setting", element("div", {class: "figures small"}, ...strips),
                 more > 0 && element("p", {class: "none", text: "and " + plural(more, "key") + " more that differ"}));
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
