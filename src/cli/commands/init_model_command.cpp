// lora-train init-model: a Hugging Face folder with random weights.
#include "command_line.h"
#include "lora_train/base/text.h"
#include "lora_train/model/weights/init_model.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

void print_result(const model::InitModelResult& result, const std::string& folder, bool json) {
  if (json) {
    const nlohmann::ordered_json line = {{"output_dir", folder},
                                         {"num_parameters", result.num_parameters},
                                         {"weight_bytes", result.weight_bytes},
                                         {"files", result.files}};
    print_line(to_line(line));
    return;
  }
  print_line(folder + ": " + format_count(result.num_parameters) + " parameters, " +
             format_bytes(static_cast<double>(result.weight_bytes)) + " in " + join(result.files));
}

}  // namespace

int run_init_model(const std::vector<std::string>& arguments) {
  CommandParser parser("init-model",
                       "Writes a randomly initialised Hugging Face folder from a config.json and a "
                       "tokenizer.");
  std::string config, tokenizer, output_dir, dtype = "bf16";
  model::InitModelRequest request;
  parser.app().add_option("--config", config, "config.json, or a folder that holds one")->type_name("PATH");
  parser.app().add_option("--tokenizer", tokenizer, "folder whose tokenizer files are copied")->type_name("DIR");
  parser.app().add_option("--output-dir", output_dir, "folder to write")->type_name("DIR");
  parser.app().add_option("--seed", request.seed, "seed of the weights (default 42)");
  parser.app().add_option("--dtype", dtype, "type of the weights: bf16 (default), fp16 or fp32");
  parser.app().add_flag("--overwrite", request.overwrite, "replace the model in the folder");
  if (!parser.parse(arguments)) return 0;
  if (config.empty()) parser.refuse("--config", "missing; expected a config.json or a folder that holds one.");
  if (output_dir.empty()) parser.refuse("--output-dir", "missing; expected a folder to write.");

  request.config = config;
  request.tokenizer = tokenizer;
  request.output_dir = output_dir;
  request.dtype = parser.weight_dtype("--dtype", dtype);
  print_result(model::init_model(request), output_dir, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
