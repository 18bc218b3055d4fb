// Output folders of runs, written by hand.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace lora_train::report {

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string start_line(int step, const std::string& name = "") {
  return "{\"event\":\"start\",\"step\":" + std::to_string(step) + ",\"total_steps\":4,\"run_name\":\"" + name +
         "\"}\n";
}

inline std::string train_line(int step, double loss, double elapsed_s) {
  return "{\"event\":\"train\",\"step\":" + std::to_string(step) + ",\"loss\":9,\"loss_mean\":" + std::to_string(loss) +
         ",\"supervised_tokens\":10,\"tokens\":100,\"step_ms\":500,\"tokens_per_s\":200,\"grad_norm\":1,"
         "\"learning_rate\":0.01,\"elapsed_s\":" +
         std::to_string(elapsed_s) + "}\n";
}

inline std::string eval_line(int step, const std::string& name, double loss, int num_tokens = 10) {
  return "{\"event\":\"eval\",\"step\":" + std::to_string(step) + ",\"name\":\"" + name +
         "\",\"loss\":" + std::to_string(loss) + ",\"num_tokens\":" + std::to_string(num_tokens) + "}\n";
}

/// A line with some members more.
inline std::string with(std::string line, const std::string& more) { return line.insert(line.rfind('}'), "," + more); }

/// A finished run of four steps.
inline void write_run(const std::filesystem::path& folder, const std::string& settings, double eval_loss) {
  write_text(folder / "profile.yaml",
             "model: m\ndatasets: [{path: a.jsonl}]\n" + settings + "output_dir: " + folder.string() + "\n");
  std::string lines = start_line(0);
  for (int step = 1; step <= 4; ++step) lines += train_line(step, 3 - 0.5 * step, step);
  write_text(folder / "metrics.jsonl", lines + eval_line(4, "val", eval_loss));
  write_text(folder / "summary.json",
             "{\"status\":\"done\",\"step\":4,\"total_steps\":4,\"eval_loss\":" + std::to_string(eval_loss) +
                 ",\"best_eval_loss\":" + std::to_string(eval_loss) +
                 ",\"best_step\":4,\"tokens\":400,\"tokens_per_s\":200.5,\"wall_s\":5.5,\"peak_host_memory_gib\":0.5,"
                 "\"num_gpus\":0,\"cost_usd\":null,\"ledger\":{\"total\":12,\"kept\":11,\"reasons\":{\"overlength\":"
                 "{\"count\":1,\"first\":\"a.jsonl:3\"}}}}\n");
}

}  // namespace lora_train::report
