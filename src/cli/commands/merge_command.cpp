// lora-train merge: an adapter folded into a Hugging Face folder, or rewritten for servers that read plain LoRA only.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/open_model.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "merge_comparison.h"
#include "output/standard_output.h"
#include "output/tensor_progress.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

struct MergeFlags {
  std::string model, adapter, output_dir, rows;
  std::optional<storage::DType> dtype;
  OntoFlags onto;
  bool portable = false, no_check = false, overwrite = false, keep_quantised = false, allow_other_base = false;
};

void add_flags(CommandParser& parser, MergeFlags& flags) {
  parser.add(
      "--model", flags.model, "DIR",
      "base model: folder, or org/name in the local Hugging Face cache (default: the one that the adapter names)");
  parser.add("--adapter", flags.adapter, "DIR", "PEFT folder, or output_dir of a run");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add("--output-dir", flags.output_dir, "DIR", "folder to write");
  add_weight_dtype(parser, flags.dtype, "each weight keeps its type");
  add_onto(parser, flags.onto);
  parser.add("--rows", flags.rows, "FILE",
             "compare the logits on the examples in this file (default: a few built-in texts)");
  parser.add_flag("--no-check", flags.no_check, "do not compare logits with the unmerged model");
  parser.add_flag("--keep-quantised", flags.keep_quantised,
                  "quantise the merged weights again, in the format of the base");
  parser.add_flag("--portable", flags.portable,
                  "instead of merging, rewrite the adapter without rsLoRA and patterns; needs no --model");
  parser.add_flag("--overwrite", flags.overwrite, "replace the output of an earlier merge");
}

void check_flags(const CommandParser& parser, const MergeFlags& flags) {
  if (flags.adapter.empty()) parser.refuse("--adapter", "missing; expected a PEFT folder.");
  if (flags.output_dir.empty()) parser.refuse("--output-dir", "missing; expected a folder to write.");
  if (flags.portable) {
    const std::string why = "cannot be combined with --portable, which only rewrites the adapter.";
    for (const char* flag : {"--model", "--dtype", "--rows", "--no-check", "--keep-quantised", "--onto",
                             "--base-precision", kAllowOtherBase}) {
      if (parser.is_given(flag)) parser.refuse(flag, why);
    }
    return;
  }
  if (flags.model.empty()) {
    parser.refuse(
        "--model",
        "missing, and the adapter names no base; expected the folder of the base model, or --portable to rewrite only "
        "the adapter.");
  }
  if (flags.no_check && !flags.rows.empty()) parser.refuse("--rows", "cannot be combined with --no-check.");
}

nlohmann::ordered_json as_json(const lora::MergeResult& result, const Comparison& comparison) {
  nlohmann::ordered_json line = {{"output_dir", result.folder.string()},
                                 {"num_tensors", result.num_tensors},
                                 {"num_merged", result.num_merged},
                                 {"weight_bytes", result.weight_bytes},
                                 {"num_files", result.num_files}};
  add_to(line, comparison);
  return line;
}

/// Adds the results to the card of the merged folder.
void add_to_card(const lora::MergeRequest& request, const fs::path& folder, const Comparison& comparison) {
  const std::string from = to_string(request.onto.base_precision);
  write_file_atomic(folder / storage::kCardFile,
                    fmt::format("{}\nMerged into the weights of the base model{}.\n\n```\n{}\n```\n",
                                read_file(folder / storage::kCardFile),
                                request.onto.is_quantised() ? ", decoded from " + from : "", in_words(comparison)));
}

/// How to quantise the merged weights again: like the base.
model::QuantizeRequest quantise_like(const std::filesystem::path& base) {
  const model::ModelConfig config = model::read_model_config(base);
  const model::BaseStorage stored = model::stored_base(config, storage::open_model_weights(base));
  if (stored.empty()) throw ConfigError("--keep-quantised", base.string() + " is not quantised");
  if (config.quantization.quant_type == "fp4") {
    throw ConfigError("--keep-quantised", base.string() +
                                              " is stored as fp4, which is not written; leave the flag out, or merge "
                                              "and use lora-train quantize");
  }
  model::QuantizeRequest request;
  request.format = stored.begin()->second.format;
  request.nested = stored.begin()->second.nested_block_size > 0;
  for (const auto& [name, storage] : stored) request.linears.insert(name);
  request.progress = tensor_progress("quantising");
  return request;
}

/// Merges into an intermediate folder, then quantises that.
lora::MergeResult merge_and_quantise(lora::MergeRequest request, const lora::MergeHooks& hooks) {
  model::QuantizeRequest quantise = quantise_like(request.model);
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kModel, {request.model, request.adapter},
                               request.overwrite);
  request.output_dir = quantise.model = output.intermediate("plain");
  quantise.output_dir = output.intermediate("quantised");
  lora::MergeHooks without_check = hooks;
  without_check.check = {};
  lora::MergeResult result = lora::merge_adapter(request, without_check);
  const model::QuantizeResult quantised = load_engine().quantize(quantise);
  output.take_files_of(quantised.folder);
  output.write({storage::copy_of(quantise.model / storage::kCardFile)});
  remove_tree(quantise.model);
  output.commit(hooks.check);
  result.folder = output.path();
  result.weight_bytes = quantised.weight_bytes;
  result.num_files = quantised.num_files + 1;
  return result;
}

void merge_into_model(const CommandParser& parser, const MergeFlags& flags) {
  lora::MergeRequest request;
  request.dtype = flags.dtype;
  const storage::ResolvedModel model = storage::resolve_model(flags.model);
  request.model = model.folder;
  request.model_name = model.hub_name.empty() ? flags.model : model.hub_name;
  request.adapter = flags.adapter;
  check_adapter_base(flags.adapter, model, flags.allow_other_base);
  request.output_dir = flags.output_dir;
  request.overwrite = flags.overwrite;
  const MergeBase base = choose_merge_base(parser, flags.onto, flags.adapter, request.model);
  request.onto = base.onto;

  Comparison comparison = prepare_comparison(flags.rows, flags.no_check, request, base);
  lora::MergeHooks hooks;
  hooks.progress = tensor_progress("merging");
  if (comparison.why_not.empty() || flags.no_check) {
    hooks.decode = [](const auto& linear, const auto& weights) { return load_engine().decode_linear(linear, weights); };
  }
  if (comparison.why_not.empty()) {
    hooks.check = [&](const std::filesystem::path& folder) {
      compare(request, folder, comparison);
      add_to_card(request, folder, comparison);
    };
  }
  const lora::MergeResult result =
      flags.keep_quantised ? merge_and_quantise(request, hooks) : lora::merge_adapter(request, hooks);
  print_json_or_text(parser.common().json, as_json(result, comparison),
                     fmt::format("{}: {} tensors, {} of them merged, {} in {} files\n{}", result.folder.string(),
                                 format_count(result.num_tensors), format_count(result.num_merged),
                                 format_bytes(result.weight_bytes), result.num_files, in_words(comparison)));
}

void rewrite_adapter(const CommandParser& parser, const MergeFlags& flags) {
  const lora::PortableResult result = lora::make_portable({flags.adapter, flags.output_dir, flags.overwrite});
  print_json_or_text(
      parser.common().json,
      {{"output_dir", result.folder.string()},
       {"num_tensors", 2 * result.num_linears},
       {"num_padded", result.num_padded},
       {"num_rescaled", result.num_rescaled},
       {"r", result.rank},
       {"lora_alpha", result.alpha}},
      fmt::format("{}: {} linears with r {} and lora_alpha {:g}; {} padded with zeros, the scale of {} multiplied into "
                  "B",
                  result.folder.string(), format_count(result.num_linears), result.rank, result.alpha,
                  format_count(result.num_padded), format_count(result.num_rescaled)));
}

}  // namespace

int run_merge(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "merge",
      "Merges an adapter into a Hugging Face folder and prints the largest logit difference from the unmerged model; "
      "or, with --portable, rewrites an adapter for servers that ignore rsLoRA and patterns.");
  MergeFlags flags;
  add_flags(parser, flags);
  if (!parser.parse(arguments)) return 0;
  flags.adapter = find_adapter(flags.adapter);
  if (flags.model.empty() && !flags.portable) flags.model = find_base(flags.adapter);
  check_flags(parser, flags);
  const StopRequests stop_requests;
  if (flags.portable) {
    rewrite_adapter(parser, flags);
  } else {
    merge_into_model(parser, flags);
  }
  return 0;
}

}  // namespace lora_train::cli
