#include "distill_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/shell_line.h"
#include "lora_train/base/text.h"
#include "output/json_text.h"

namespace lora_train::cli {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> sum(const std::optional<double>& one, const std::optional<double>& other) {
  if (!one && !other) return std::nullopt;
  return one.value_or(0) + other.value_or(0);
}

double total_s(const DistillRecord& record) { return record.teacher.seconds + record.training_s.value_or(0); }

std::optional<double> total_cost(const DistillRecord& record) {
  return sum(record.teacher.cost_usd, record.training_cost_usd);
}

Json as_json(const TeacherPhase& phase) {
  return {{"teacher", phase.teacher},
          {"answers", phase.answers},
          {"rows", phase.rows},
          {"heldout_rows", phase.held_out_rows},
          {"prompt_tokens", phase.prompt_tokens},
          {"completion_tokens", phase.completion_tokens},
          {"seconds", phase.seconds},
          {"cost_usd", or_null(phase.cost_usd)}};
}

std::string cost_in_words(const std::optional<double>& cost) {
  return cost ? string_printf("$%.2f", *cost) : "no price";
}

std::string share(const std::optional<double>& value) {
  return value ? string_printf("%.2f%%", 100 * *value) : std::string("not measured");
}

std::string table_line(const std::string& name, double seconds, const std::optional<double>& cost,
                       const std::string& what) {
  return string_printf("%-10s %12s %10s   %s\n", name.c_str(), format_duration(seconds).c_str(),
                       cost_in_words(cost).c_str(), what.c_str());
}

}  // namespace

std::filesystem::path record_file(const std::filesystem::path& output_dir) { return output_dir / "distill.json"; }

TeacherPhase read_teacher_phase(const std::filesystem::path& output_dir) {
  TeacherPhase phase;
  const std::filesystem::path file = record_file(output_dir);
  if (path_kind(file) == PathKind::kNone) return phase;
  const Json record = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  try {
    const Json& teacher = record.at("teacher");
    phase.teacher = teacher.at("teacher");
    phase.answers = teacher.at("answers");
    phase.rows = teacher.at("rows");
    phase.held_out_rows = teacher.at("heldout_rows");
    phase.prompt_tokens = teacher.at("prompt_tokens");
    phase.completion_tokens = teacher.at("completion_tokens");
    phase.seconds = teacher.at("seconds");
    if (!teacher.at("cost_usd").is_null()) phase.cost_usd = teacher.at("cost_usd").get<double>();
  } catch (const Json::exception&) {
    throw ConfigError(file.string(), "was not written by distill: name another output_dir, or move the file");
  }
  return phase;
}

void write_record(const DistillRecord& record) {
  write_file_atomic(record_file(record.output_dir), to_json(record) + "\n");
}

void add_training(DistillRecord& record) {
  const report::RunRecord run = report::read_run(record.output_dir);
  record.training_s = run.figures.wall_s;
  record.training_cost_usd = run.figures.cost_usd;
  record.steps = run.figures.step;
  record.eval_loss = run.figures.eval_loss;
  const Json summary = Json::parse(run.summary_json, nullptr, /*allow_exceptions=*/false);
  const auto of_summary = [&](const char* key) { return summary.is_object() ? summary.value(key, Json()) : Json(); };
  if (const Json adapter = of_summary("adapter"); adapter.is_string()) record.adapter = adapter;
  const Json result = of_summary("adapter_step");
  for (const report::LoggedEval& eval : run.evals) {
    if (eval.name != kAgreement || eval.kind.empty()) continue;
    if (eval.step == 0) record.agreement_before = eval.accuracy;
    const bool is_of_result = result.is_number() ? eval.step == result.get<long long>() : eval.step > 0;
    if (is_of_result) record.agreement_after = eval.accuracy;
  }
}

std::string to_json(const DistillRecord& record) {
  return to_line({{"output_dir", record.output_dir},
                  {"teacher", as_json(record.teacher)},
                  {"training",
                   {{"steps", or_null(record.steps)},
                    {"eval_loss", or_null(record.eval_loss)},
                    {"seconds", or_null(record.training_s)},
                    {"cost_usd", or_null(record.training_cost_usd)}}},
                  {"agreement",
                   {{"rows", record.teacher.held_out_rows},
                    {"before", or_null(record.agreement_before)},
                    {"after", or_null(record.agreement_after)}}},
                  {"seconds", total_s(record)},
                  {"cost_usd", or_null(total_cost(record))},
                  {"adapter", or_null(record.adapter)}});
}

std::string to_table(const DistillRecord& record) {
  const TeacherPhase& teacher = record.teacher;
  std::string training =
      count_of(static_cast<long long>(record.steps.value_or(0)), "step") + " on " + count_of(teacher.rows, "row");
  if (record.eval_loss) training += string_printf(", loss %.4f on those held out", *record.eval_loss);
  std::string text = string_printf("%-10s %12s %10s\n", "phase", "time", "cost");
  text += table_line("teacher", teacher.seconds, teacher.cost_usd,
                     count_of(teacher.answers, "answer") + ", " + format_count(teacher.prompt_tokens) + " prompt and " +
                         format_count(teacher.completion_tokens) + " answer tokens");
  text += table_line("training", record.training_s.value_or(0), record.training_cost_usd, training);
  text += table_line("all", total_s(record), total_cost(record), "");
  text = text.substr(0, text.find_last_not_of(" \n") + 1) + "\n";
  if (teacher.held_out_rows > 0) {
    text += "the teacher's answer to " + count_of(teacher.held_out_rows, "prompt") +
            " held out: " + share(record.agreement_before) + " before training, " + share(record.agreement_after) +
            " after\n";
  } else {
    text +=
        "no prompts are held out, so the student is not compared with its teacher: give eval_datasets or "
        "val_set_size\n";
  }
  if (record.adapter.empty()) return text;
  const bool is_model = std::filesystem::path(record.adapter).filename() == "model";
  text += "result: " + record.adapter + "; try it: " +
          shell_line({"lora-train", "chat", is_model ? "--model" : "--adapter",
                      is_model ? record.adapter : record.output_dir}) +
          "\nreport: " + (std::filesystem::path(record.output_dir) / "report.html").string() + "\n";
  return text;
}

}  // namespace lora_train::cli
