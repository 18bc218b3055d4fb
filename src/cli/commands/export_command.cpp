// lora-train export: a model or an adapter as a GGUF file.
#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/open_model.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/export/export.h"
#include "lora_train/lora/merge.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_output.h"
#include "merge_comparison.h"
#include "output/standard_output.h"
#include "output/tensor_progress.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

struct ExportFlags {
  std::string gguf, model, adapter;
  std::optional<gguf::TensorType> type;
  OntoFlags onto;
  bool merge = false, no_check = false, overwrite = false, allow_other_base = false;
};

void add_export_flags(CommandParser& parser, ExportFlags& flags) {
  parser.add("--gguf", flags.gguf, "FILE", "GGUF file to write");
  parser.add("--model", flags.model, "DIR",
             "model: folder, or org/name in the local Hugging Face cache (default: the one that the adapter names)");
  parser.add("--adapter", flags.adapter, "DIR", "PEFT folder, or output_dir of a run: written alone, or with --merge");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add_flag("--merge", flags.merge, "write the model with the adapter merged in");
  add_onto(parser, flags.onto);
  parser.add_flag(
      "--no-check", flags.no_check,
      "do not compare the logits of a merge after QLoRA, which needs room for the merged model beside the file");
  using enum gguf::TensorType;
  parser.add_choice("--type", flags.type, {{"f32", kF32}, {"f16", kF16}, {"bf16", kBF16}, {"q8_0", kQ8_0}},
                    "type of the matrices (default: as the model is stored); for an adapter, f32 "
                    "(default) or f16");
  parser.add_flag("--overwrite", flags.overwrite, "replace a GGUF file");
}

void check_gguf_flags(const CommandParser& parser, const ExportFlags& flags) {
  if (flags.merge && flags.adapter.empty()) parser.refuse("--merge", "needs --adapter, the adapter to merge.");
  for (const char* flag : {"--onto", "--base-precision", "--no-check"}) {
    if (!flags.merge && parser.is_given(flag)) parser.refuse(flag, "is for --merge.");
  }
  parser.refuse_special_file("--gguf", flags.gguf);
  if (path_kind(flags.gguf) == PathKind::kNone) return;
  if (!flags.overwrite)
    parser.refuse("--gguf", flags.gguf + " already exists: choose another file, or pass --overwrite.");
  refuse_foreign("export", flags.gguf, [](std::string_view start) { return start.starts_with(gguf::kMagic); });
}

void check_export_flags(const CommandParser& parser, const ExportFlags& flags) {
  if (flags.gguf.empty()) parser.refuse("--gguf", "missing; expected a file to write.");
  if (flags.model.empty()) {
    parser.refuse("--model", flags.adapter.empty()
                                 ? "missing; expected the folder of a model."
                                 : "missing, and the adapter names no base; expected the folder of the base model.");
  }
  check_gguf_flags(parser, flags);
}

/// After QLoRA, measures the merged weights in the types of the model, as a folder that is deleted again.
Comparison compare_merged(const ExportFlags& flags, const gguf::ExportRequest& request, const MergeBase& base) {
  lora::MergeRequest merge;
  merge.model = request.model;
  merge.adapter = request.adapter;
  merge.onto = base.onto;
  Comparison comparison = prepare_comparison("", flags.no_check, merge, base);
  if (!comparison.why_not.empty()) return comparison;
  const storage::OutputFolder folder(request.file.string() + ".merged", storage::OutputKind::kModel,
                                     {request.model, request.adapter}, false);
  merge.output_dir = folder.intermediate("model");
  lora::merge_adapter(merge, {request.decode, tensor_progress("merging"), {}});
  compare(merge, merge.output_dir, comparison);
  return comparison;
}

void print_result(const CommandParser& parser, const ExportFlags& flags, const gguf::ExportResult& result,
                  const std::optional<Comparison>& comparison) {
  const std::string type(gguf::row_of(result.type).name);
  if (parser.common().json) {
    nlohmann::ordered_json line = {{"file", flags.gguf},
                                   {"holds", flags.adapter.empty() || flags.merge ? "model" : "adapter"},
                                   {"type", lower_case(type)},
                                   {"num_tensors", result.num_tensors},
                                   {"num_merged", result.num_merged},
                                   {"num_f16_instead", result.num_other_type},
                                   {"num_bytes", result.num_bytes}};
    if (comparison) add_to(line, *comparison);
    print_line(to_line(line));
    return;
  }
  print_line(fmt::format("{}: {} tensors in {}{}, {}", flags.gguf, format_count(result.num_tensors), type,
                         flags.merge ? fmt::format(", {} of them merged", format_count(result.num_merged)) : "",
                         format_bytes(result.num_bytes)));
  if (result.num_other_type > 0) {
    print_line(format_count(result.num_other_type) + " matrices are F16: their rows are not a multiple of 32");
  }
  if (comparison) print_line("in the types of the model, before that of the file: " + in_words(*comparison));
}

int export_as_gguf(const CommandParser& parser, const ExportFlags& flags, const storage::ResolvedModel& model) {
  gguf::ExportRequest request;
  request.type = flags.type;
  request.file = std::filesystem::absolute(flags.gguf);
  request.model = model.folder;
  request.adapter = flags.adapter;
  request.name = model.hub_name.empty() ? model.folder.filename().string() : model.hub_name;
  request.decode = [](const auto& linear, const auto& weights) { return load_engine().decode_linear(linear, weights); };
  request.progress = tensor_progress("exporting");
  make_folders(request.file.parent_path());
  const bool is_adapter = !flags.adapter.empty() && !flags.merge;
  std::optional<Comparison> comparison;
  if (flags.merge) {
    const MergeBase base = choose_merge_base(parser, flags.onto, flags.adapter, model.folder);
    request.onto = base.onto;
    if (base.trained_on.is_quantised()) comparison = compare_merged(flags, request, base);
  }
  print_result(parser, flags, is_adapter ? gguf::export_adapter(request) : gguf::export_model(request), comparison);
  return 0;
}

}  // namespace

int run_export(const std::vector<std::string>& arguments) {
  CommandParser parser("export",
                       "Writes a GGUF file for llama.cpp: a model, a model with an adapter merged in (--merge), or an "
                       "adapter alone.");
  ExportFlags flags;
  add_export_flags(parser, flags);
  if (!parser.parse(arguments)) return 0;
  flags.adapter = find_adapter(flags.adapter);
  if (flags.model.empty()) flags.model = find_base(flags.adapter);
  check_export_flags(parser, flags);
  const storage::ResolvedModel model = storage::resolve_model(flags.model);
  if (!flags.adapter.empty()) check_adapter_base(flags.adapter, model, flags.allow_other_base);
  const StopRequests stop_requests;
  return export_as_gguf(parser, flags, model);
}

}  // namespace lora_train::cli
