#include "lora_train/report/ablation/ablation_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "chart/charts.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/report/run_log.h"
#include "lora_train/report/run_page.h"
#include "text_table.h"

namespace lora_train::report {
namespace {

constexpr long long kWarmupShare = 5;

using Json = nlohmann::ordered_json;

std::string in_words(const Measurement& work) {
  return format_count(work.num_documents) + " documents with " + format_count(work.num_supervised) + " trained tokens";
}

constexpr const char* kTitle = "What each setting brings";

std::optional<LossDifference> difference_of(const Ablation& ablation, const Measurement& found) {
  const Measurement* const base = baseline(ablation.measurements);
  if (!found.is_done || base == nullptr || base == &found) return std::nullopt;
  return difference_of(base->document_losses, found.document_losses);
}

std::string speedup_of(const Ablation& ablation, const Measurement& found) {
  const Measurement* const base = baseline(ablation.measurements);
  if (!found.is_done || base == nullptr || base->tokens_per_s <= 0) return "";
  return fmt::format("{:.2f}x", found.tokens_per_s / base->tokens_per_s);
}

std::vector<Column> columns_of(const Ablation& ablation) {
  std::vector<Column> columns = {{"setting", false, {}}};
  for (const Measurement& found : ablation.measurements) columns[0].cells.push_back({found.setting.name});
  const auto add = [&](const char* title, bool is_number, const auto& text_of) {
    Column& column = columns.emplace_back(Column{title, is_number, {}});
    for (const Measurement& found : ablation.measurements)
      column.cells.push_back({found.is_done ? text_of(found) : "-"});
  };
  const auto number_or_dash = [](const char* format, const std::optional<double>& number) {
    return number ? fmt::format(fmt::runtime(format), *number) : "-";
  };
  using M = const Measurement&;
  add("tok/s", true, [](M found) { return format_count(std::llround(found.tokens_per_s)); });
  add("speed", true, [&](M found) { return speedup_of(ablation, found); });
  add("loss", true, [](M found) { return fmt::format("{:.4f}", found.loss); });
  add("eval loss", true, [&](M found) { return number_or_dash("{:.4f}", found.eval_loss); });
  add("eval loss compared", false, [&](M found) {
    const auto difference = difference_of(ablation, found);
    return difference ? in_words(*difference) : "-";
  });
  add("memory", true, [&](M found) { return number_or_dash("{:.2f} GiB", found.peak_memory_gib); });
  add("start", true, [](M found) { return fmt::format("{:.1f} s", found.startup_s); });
  return columns;
}

std::string work_in_words(const Ablation& ablation) {
  const Measurement* const base = baseline(ablation.measurements);
  std::string text =
      fmt::format("{} steps of {} documents each", ablation.num_steps, format_count(ablation.documents_per_step));
  if (base != nullptr)
    text += fmt::format(" ({} trained tokens in all), on {}", format_count(base->num_supervised),
                        base->device == "cpu" ? "the CPU" : base->device);
  return text;
}

/// The notes under the table.
std::vector<std::string> notes_of(const Ablation& ablation) {
  std::vector<std::string> notes = {fmt::format(
      "speed and losses are compared with \"{}\"; kept: the evaluation loss is at most 1% higher, with 95% confidence "
      "over documents",
      baseline(ablation.measurements) != nullptr ? baseline(ablation.measurements)->setting.name : std::string("-"))};
  for (const Measurement& found : ablation.measurements) {
    if (!found.is_done) notes.push_back(fmt::format("{}: {}", found.setting.name, found.reason));
  }
  if (!ablation.note.empty()) notes.push_back(ablation.note);
  return notes;
}

using Values = std::vector<std::pair<std::string, std::string>>;

/// `values` with one of them changed, or added.
Values with(Values values, const std::string& key, const std::string& value) {
  const auto found = std::ranges::find(values, key, &Values::value_type::first);
  found != values.end() ? void(found->second = value) : void(values.emplace_back(key, value));
  return values;
}

}  // namespace

Measurement measure(const Setting& setting, const std::filesystem::path& folder, int exit_code, long long num_steps) {
  Measurement found;
  found.setting = setting;
  const RunRecord run = read_run(folder);
  const auto& steps = run.steps;
  if (exit_code != 0 || run.status != "done" || static_cast<long long>(steps.size()) != num_steps) {
    found.reason = run.reason.empty() ? fmt::format("the run exited with code {}", exit_code) : run.reason;
    return found;
  }
  const auto& after = steps[static_cast<std::size_t>(std::max(1LL, num_steps / kWarmupShare) - 1)];
  const double seconds = steps.back().run_s - after.run_s;
  found.is_done = true;
  found.device = run.gpu.empty() ? "cpu" : run.gpu;
  found.tokens_per_s = seconds > 0 ? (steps.back().total_tokens - after.total_tokens) / seconds : 0;
  found.startup_s = run.startup_s;
  found.loss = run.figures.train_loss.value_or(0);
  found.eval_loss = run.figures.eval_loss;
  found.peak_memory_gib = run.figures.peak_memory_gib ? run.figures.peak_memory_gib : run.figures.peak_host_memory_gib;
  for (const auto& step : steps) {
    found.num_documents += step.num_documents;
    found.num_supervised += step.supervised_tokens;
  }
  found.document_losses = run.document_losses;
  return found;
}

void check_same_work(const std::vector<Measurement>& measurements) {
  const Measurement* first = nullptr;
  for (const Measurement& found : measurements) {
    if (!found.is_done) continue;
    if (first == nullptr) first = &found;
    if (found.num_documents == first->num_documents && found.num_supervised == first->num_supervised) continue;
    throw DataError(found.setting.name, "trained on " + in_words(found) + ", but \"" + first->setting.name + "\" on " +
                                            in_words(*first) +
                                            ": different work cannot be compared. Did the data change in between?");
  }
}

const Measurement* baseline(const std::vector<Measurement>& measurements) {
  const Measurement* any = nullptr;
  for (const Measurement& found : measurements) {
    if (!found.is_done) continue;
    if (found.setting.rung == Rung::kStep) return &found;
    if (any == nullptr) any = &found;
  }
  return any;
}

std::string ablation_table(const Ablation& ablation) {
  std::string text = fmt::format("{}\n\n{}\n", work_in_words(ablation), rows_of(columns_of(ablation), false));
  for (const std::string& note : notes_of(ablation)) text += visible_text(note) + "\n";
  return text;
}

std::string ablation_json(const Ablation& ablation) {
  const Measurement* const base = baseline(ablation.measurements);
  std::string text;
  for (const Measurement& found : ablation.measurements) {
    const auto if_done = [&](const Json& value) { return found.is_done ? value : Json(nullptr); };
    Json object = {{"setting", found.setting.name},
                   {"tokens_per_s", if_done(found.tokens_per_s)},
                   {"loss", if_done(found.loss)},
                   {"supervised_tokens", if_done(found.num_supervised)},
                   {"documents", if_done(found.num_documents)},
                   {"speedup", base != nullptr ? if_done(found.tokens_per_s / base->tokens_per_s) : Json(nullptr)},
                   {"eval_loss", or_null(found.eval_loss)}};
    const auto difference = difference_of(ablation, found);
    object["eval_loss_difference"] = nullptr;
    if (difference) object["eval_loss_difference"] = Json::parse(to_json(*difference, base->setting.name));
    object["peak_memory_gib"] = or_null(found.peak_memory_gib);
    object["startup_s"] = if_done(found.startup_s);
    object["values"] = Json::object();
    for (const auto& [key, value] : found.setting.values) object["values"][key] = value;
    object["reason"] = found.is_done ? Json(nullptr) : Json(found.reason);
    text += to_line(object) + "\n";
  }
  return text;
}

Drawing ablation_chart(const Ablation& ablation) {
  BarChart bars{.title = "Training speed, one setting at a time", .subtitle = work_in_words(ablation)};
  for (const Measurement& found : ablation.measurements) {
    Bar bar{.name = found.setting.name, .is_accented = found.setting.rung == Rung::kProfile};
    if (found.is_done) {
      bar.value = found.tokens_per_s;
      bar.text = fmt::format("{} tok/s ({}), loss {:.4f}", format_count(std::llround(found.tokens_per_s)),
                             speedup_of(ablation, found), found.loss);
      const auto difference = difference_of(ablation, found);
      if (difference) bar.text += ", eval loss " + to_string(judge(*difference));
    } else {
      bar.text = "not measured (see the table)";
    }
    bars.bars.push_back(bar);
  }
  return draw(bars);
}

std::string ablation_page(const Ablation& ablation) {
  std::string html = "<header><div><h1>" + std::string(kTitle) + "</h1>\n<p>" + escape_html(work_in_words(ablation)) +
                     "</p></div></header>\n<section class=\"card\"><div style=\"overflow-x:auto\">" +
                     to_svg(ablation_chart(ablation)) + "</div></section>\n<section class=\"card\">\n";
  for (const std::string& note : notes_of(ablation)) html += fmt::format("<p>{}</p>\n", escape_html(note));
  html += "<div class=\"scroll\"><table><thead><tr>";
  const std::vector<Column> columns = columns_of(ablation);
  const auto cell = [&](const char* tag, const Column& column, const std::string& text) {
    html += fmt::format("<{}{}>{}</{}>", tag, column.is_number ? " class=\"number\"" : "", escape_html(text), tag);
  };
  for (const Column& column : columns) cell("th", column, column.title);
  html += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < ablation.measurements.size(); ++i) {
    html += "<tr>";
    for (const Column& column : columns) cell(&column == &columns.front() ? "th" : "td", column, column.cells[i].text);
    html += "</tr>\n";
  }
  return plain_page(kTitle, html + "</tbody></table></div></section>\n");
}

bool is_ablation_page(std::string_view start) {
  return start.starts_with("<!doctype html>") && start.find(std::string("<title>") + kTitle) != std::string_view::npos;
}

std::vector<Setting> make_ladder(const Profile& profile, const LadderOptions& options) {
  const bool trains_all = profile.adapter.kind == AdapterKind::kNone;
  Values values = {{"precision", "fp32"},
                   {"gradient_checkpointing", "full"},
                   {"packing", "false"},
                   {"dataset_prepared_path", options.no_token_cache},
                   {"dataloader_num_workers", "0"},
                   {"save_steps", std::to_string(std::max(1LL, options.num_steps / 4))},
                   {"optim", "adamw_torch"}};
  if (!options.stores_quantised) values.emplace_back("base_precision", "auto");
  if (options.is_gpu) {
    values.insert(values.end(), {{"tf32", "false"}, {"dataloader_pin_memory", "false"}, {"cuda_graphs", "off"}});
  }
  std::vector<Setting> settings = {{"your profile", Rung::kProfile, {}}, {"plain", Rung::kStep, values}};
  const auto step = [&](const std::string& name, const std::string& key, const std::string& value) {
    values = with(values, key, value);
    settings.push_back({"+ " + name, Rung::kStep, values});
  };
  const auto variant = [&](const std::string& name, const std::string& key, const std::string& value) {
    settings.push_back({name, Rung::kVariant, with(values, key, value)});
  };
  if (options.is_gpu) step("tf32", "tf32", "true");
  step("bf16", "precision", "bf16");
  step("recomputation where needed", "gradient_checkpointing", "auto");
  step("packing", "packing", "true");
  const std::string& token_cache = profile.data.dataset_prepared_path;
  step("token cache", "dataset_prepared_path", token_cache.empty() ? "null" : token_cache);
  step("data workers", "dataloader_num_workers", "2");
  if (options.is_gpu) {
    step("page-locked memory", "dataloader_pin_memory", "true");
    step("CUDA graphs", "cuda_graphs", "auto");
  }
  step("no saves before the end", "save_steps", "off");
  variant("8-bit AdamW", "optim", "adamw_8bit");
  if (!trains_all && !options.stores_quantised) {
    variant("int8 base", "base_precision", "int8");
    variant("nf4 base", "base_precision", "nf4");
  }
  return settings;
}

std::string left_out(const LadderOptions& options) {
  return options.is_gpu ? "" : "left out because they have no effect on a CPU: tf32, page-locked memory, CUDA graphs";
}

Values shared_values(long long num_steps, long long documents_per_step) {
  return {{"max_steps", std::to_string(num_steps)},
          {"num_epochs", "null"},
          {"batch_unit", "documents"},
          {"global_batch_size", std::to_string(documents_per_step)},
          {"lr_scaling", "none"},
          {"logging_steps", "1"},
          {"report_to", "none"},
          {"eval_steps", "off"},
          {"eval_on_start", "false"},
          {"eval_tasks", "[]"},
          {"metric_for_best_model", "null"},
          {"load_best_model_at_end", "false"},
          {"early_stopping_patience", "null"},
          {"save_interval", "off"},
          {"max_time", "off"},
          {"resume_from_checkpoint", "none"}};
}

}  // namespace lora_train::report
