// lora-train merge: an adapter folded into a Hugging Face folder, or rewritten for servers that read plain LoRA only.

#include <algorithm>
#include <array>
#include <cstdint>
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
#include "lora_train/data/prepare.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "output/standard_output.h"
#include "output/tensor_progress.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

struct MergeRows {
  std::vector<std::vector<std::int32_t>> ids;  ///< none empty
  std::vector<std::string> names;              ///< for each: "rows.jsonl:3", or "built-in text 1"
};

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRowTokens = 512, kMaxTokens = 2048;

constexpr std::array<const char*, 4> kTexts = {
    "The quick brown fox jumps over the lazy dog. A second sentence follows, with 3 numbers: 17, 2048 and 0.5.",
    "def mean(values):\n    \"\"\"Of a list that is not empty.\"\"\"\n    return sum(values) / len(values)\n",
    "Question: Which planet is the largest?\nAnswer: Jupiter, with about 318 times the mass of the Earth.",
    "Übung macht den Meister. La pratique rend parfait. 熟能生巧。"};

void add(std::vector<std::int32_t> ids, const std::string& name, std::int64_t longest, MergeRows& rows) {
  if (ids.empty()) return;
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(longest)));
  rows.ids.push_back(std::move(ids));
  rows.names.push_back(name);
}

/// Ids that step through the vocabulary in strides.
std::vector<std::int32_t> spread_ids(std::int64_t vocab_size, std::int64_t stride) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < 32; ++i) ids.push_back(static_cast<std::int32_t>((i + 1) * stride % vocab_size));
  return ids;
}

MergeRows built_in_rows(const tokenizer::Tokenizer* tokenizer, const model::ModelConfig& config,
                        const std::vector<std::int64_t>& trained_ids, std::int64_t longest) {
  MergeRows rows;
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    auto ids = tokenizer != nullptr ? tokenizer->encode(kTexts[i]).ids
                                    : spread_ids(config.vocab_size, 7919 + 2 * static_cast<std::int64_t>(i));
    std::erase_if(ids, [&](std::int32_t id) { return id < 0 || id >= config.vocab_size; });
    add(std::move(ids), fmt::format("built-in text {}", i + 1), longest, rows);
  }
  add({trained_ids.begin(), trained_ids.end()}, "the tokens with trained rows", longest, rows);
  return rows;
}

MergeRows rows_of_file(const data::DocumentStore& store, std::int64_t longest) {
  MergeRows rows;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < store.size(); ++i) {
    const std::int64_t length = std::min(store.num_tokens(i), longest);
    if (num_tokens + length > kMaxTokens) {
      log_info("comparing logits on the first {} of {} examples only: at most {} tokens in all", i, store.size(),
               kMaxTokens);
      break;
    }
    num_tokens += length;
    const auto ids = store.ids(i);
    add({ids.begin(), ids.end()}, store.source(i), longest, rows);
  }
  return rows;
}

/// Reads rows of `file`, in any dataset layout, cut to 512 tokens each; leaves out those past 2048 tokens in all, and
/// logs that. Empty: a few built-in texts, or, without a tokenizer, a few rows of spread ids, and a row of the tokens
/// whose rows the adapter trains. Throws DataError for rows, FormatError.
MergeRows merge_rows(const std::string& file, const fs::path& model, const fs::path& adapter) {
  const fs::path tokenizer_folder = lora::merged_tokenizer_folder(model, adapter);
  model::ModelConfig config = model::read_model_config(model);
  const model::TokenRows trained = lora::token_rows_of(lora::read_adapter_config(adapter), adapter, config);
  const std::int64_t longest = std::min(kMaxRowTokens, config.context_length());
  const auto tokenizer = tokenizer::load_tokenizer_if_present(tokenizer_folder);
  if (file.empty()) return built_in_rows(tokenizer.get(), config, trained.ids(), longest);
  const auto chat_template = tokenizer::load_chat_template("tokenizer", tokenizer_folder);
  DataSection section;
  section.datasets.emplace_back().path = file;
  section.max_seq_len = config.context_length();
  section.overlength = Overlength::kTruncate;
  section.max_drop_fraction = 1;
  section.packing = false;
  const data::DataContext context{.tokenizer = tokenizer.get(),
                                  .chat_template = chat_template.get(),
                                  .vocab_size = config.vocab_size,
                                  .max_position_embeddings = config.context_length(),
                                  .num_threads = 1};
  return rows_of_file(data::prepare_data(section, context, /*need_train=*/true).train, longest);
}

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

/// The comparison with the unmerged model: its rows, and later its results.
struct Comparison {
  MergeRows rows;
  std::vector<ModelSection> bases;      ///< what was trained; after quantising it on loading, the model's own too
  std::vector<lora::MergeCheck> found;  ///< for each base
  std::string why_not;                  ///< why there is no comparison
};

Comparison prepare_comparison(const MergeFlags& flags, const lora::MergeRequest& request) {
  Comparison comparison;
  if (flags.no_check) {
    comparison.why_not = "--no-check";
    return comparison;
  }
  try {
    load_engine();
  } catch (const ConfigError& error) {
    if (!flags.rows.empty()) throw;
    comparison.why_not = error.what();
    return comparison;
  }
  comparison.rows = merge_rows(flags.rows, request.model, request.adapter);
  return comparison;
}

/// The model that the merged one is compared with.
std::string name_of(const Comparison& comparison, std::size_t base) {
  if (comparison.bases.size() == 1) return "the unmerged model";
  const std::string precision = to_string(comparison.bases[0].base_precision);
  return base == 0 ? fmt::format("what was trained (base in {})", precision) : "the adapter on the original weights";
}

std::string in_words(const Comparison& comparison) {
  if (comparison.found.empty()) return "logits not compared with the unmerged model: " + comparison.why_not;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < comparison.found.size(); ++i) {
    const lora::MergeCheck& found = comparison.found[i];
    lines.push_back(fmt::format(
        "largest logit difference from {} {:.3g} (logits up to {:.3g}), at {}, token {}; another token is the most "
        "likely at {} of {} positions",
        name_of(comparison, i), found.max_difference, found.max_logit, comparison.rows.names.at(found.row),
        found.position + 1, format_count(found.num_argmax_changed), format_count(found.num_positions)));
  }
  return join(lines, "\n");
}

nlohmann::ordered_json as_json(const lora::MergeCheck& found, const Comparison& comparison) {
  return {{"max_logit_difference", found.max_difference}, {"max_logit", found.max_logit},
          {"row", comparison.rows.names.at(found.row)},   {"token", found.position + 1},
          {"num_positions", found.num_positions},         {"num_argmax_changed", found.num_argmax_changed}};
}

nlohmann::ordered_json as_json(const lora::MergeResult& result, const Comparison& comparison) {
  nlohmann::ordered_json line = {{"output_dir", result.folder.string()}, {"num_tensors", result.num_tensors},
                                 {"num_merged", result.num_merged},      {"weight_bytes", result.weight_bytes},
                                 {"num_files", result.num_files},        {"max_logit_difference", nullptr}};
  if (comparison.found.empty()) {
    line["not_compared"] = comparison.why_not;
    return line;
  }
  line.update(as_json(comparison.found[0], comparison));
  if (comparison.found.size() > 1) line["original"] = as_json(comparison.found[1], comparison);
  return line;
}

/// Compares the merged folder, and adds the result to its card.
void compare(const lora::MergeRequest& request, const fs::path& folder, Comparison& comparison) {
  log_info("comparing logits with the unmerged model on " + count_of(std::ssize(comparison.rows.ids), "example"));
  comparison.found =
      load_engine().check_merge({request.model, request.adapter, folder, comparison.rows.ids, comparison.bases});
  const fs::path card = folder / storage::kCardFile;
  const std::string onto = request.onto.is_quantised()
                               ? fmt::format(", decoded from {}", to_string(request.onto.base_precision))
                               : std::string();
  write_file_atomic(card, fmt::format("{}\nMerged into the weights of the base model{}.\n\n```\n{}\n```\n",
                                      read_file(card), onto, in_words(comparison)));
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

  Comparison comparison = prepare_comparison(flags, request);
  comparison.bases = {base.trained_on};
  if (base.trained_on.is_quantised()) comparison.bases.emplace_back();
  lora::MergeHooks hooks;
  hooks.progress = tensor_progress("merging");
  if (comparison.why_not.empty() || flags.no_check) {
    hooks.decode = [](const auto& linear, const auto& weights) { return load_engine().decode_linear(linear, weights); };
  }
  if (comparison.why_not.empty()) {
    hooks.check = [&](const std::filesystem::path& folder) { compare(request, folder, comparison); };
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
