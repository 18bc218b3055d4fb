// Commands that write a model folder: init-model, quantize.
#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/open_model.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/model/weights/init_model.h"
#include "lora_train/storage/model_file.h"
#include "output/standard_output.h"
#include "output/tensor_progress.h"
#include "registry.h"

namespace lora_train::cli {

// init-model: a Hugging Face folder with random weights.
int run_init_model(const std::vector<std::string>& arguments) {
  CommandParser parser("init-model",
                       "Writes a randomly initialised Hugging Face folder from a config.json and a tokenizer.");
  std::string config, tokenizer, output_dir;
  model::InitModelRequest request;
  parser.add("--config", config, "PATH", "config.json, or a folder that holds one");
  parser.add("--tokenizer", tokenizer, "DIR", "folder whose tokenizer files are copied");
  parser.add("--output-dir", output_dir, "DIR", "folder to write");
  parser.app().add_option("--seed", request.seed, "seed of the weights (default 42)");
  add_weight_dtype(parser, request.dtype, "bf16");
  parser.add_flag("--overwrite", request.overwrite, "replace the model in the folder");
  if (!parser.parse(arguments)) return 0;
  if (config.empty()) parser.refuse("--config", "missing; expected a config.json or a folder that holds one.");
  if (output_dir.empty()) parser.refuse("--output-dir", "missing; expected a folder to write.");

  request.config = config;
  request.tokenizer = tokenizer;
  request.output_dir = output_dir;
  const model::InitModelResult result = model::init_model(request);
  print_json_or_text(parser.common().json,
                     {{"output_dir", output_dir},
                      {"num_parameters", result.num_parameters},
                      {"weight_bytes", result.weight_bytes},
                      {"files", result.files}},
                     fmt::format("{}: {} parameters, {} in {}", output_dir, format_count(result.num_parameters),
                                 format_bytes(result.weight_bytes), join(result.files)));
  return 0;
}

// quantize: a Hugging Face folder with quantised linears.
int run_quantize(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "quantize",
      "Writes a Hugging Face folder whose linears are quantised, for faster starts: training on it gives the same "
      "numbers as base_precision on the original.");
  std::string model, output_dir;
  std::optional<bool> double_quant;
  model::QuantizeRequest request;
  parser.add("--model", model, "DIR", "folder, or org/name in the local Hugging Face cache");
  parser.add("--output-dir", output_dir, "DIR", "folder to write");
  using enum model::LinearFormat;
  parser.add_choice("--base-precision", request.format, {{"nf4", k4Bit}, {"int8", kInt8}, {"fp8", kFp8}},
                    "format of the linears (default nf4)");
  parser.add_choice("--double-quant", double_quant, {{"on", true}, {"off", false}},
                    "on: quantise the scales of nf4 too (default); off: keep them in fp32");
  parser.add_flag("--overwrite", request.overwrite, "replace the model in the folder");
  if (!parser.parse(arguments)) return 0;
  if (model.empty()) parser.refuse("--model", "missing; expected the folder of a model.");
  if (output_dir.empty()) parser.refuse("--output-dir", "missing; expected a folder to write.");
  if (double_quant == true && request.format != model::LinearFormat::k4Bit) {
    parser.refuse("--double-quant", "only scales of nf4 are quantised.");
  }
  request.model = storage::resolve_model(model).folder;
  request.output_dir = output_dir;
  request.nested = double_quant.value_or(true);
  request.progress = tensor_progress("quantising");
  const StopRequests stop_requests;
  const model::QuantizeResult result = load_engine().quantize(request);
  print_json_or_text(
      parser.common().json,
      {{"output_dir", result.folder.string()},
       {"num_linears", result.num_linears},
       {"weight_bytes", result.weight_bytes},
       {"num_files", result.num_files}},
      fmt::format("{}: {} linears quantised, {} in {} files", result.folder.string(), format_count(result.num_linears),
                  format_bytes(result.weight_bytes), result.num_files));
  return 0;
}

}  // namespace lora_train::cli
