#include "lora_train/lora/merge.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/version.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/merged_weights.h"
#include "lora_train/lora/open_model.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/init_model.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "merge_math.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using storage::DType;
using storage::FileToWrite;

/// config.json of the merged model.
std::string merged_config(const std::string& source, const MergeRequest& request, const MergedWeights& merged) {
  const std::string text = model::with_own_head(merged.config(), source);
  const bool has_rows = merged.config().added_rows > 0;
  if (!merged.is_base_quantised() && !has_rows && !request.dtype) return text;
  auto document = nlohmann::ordered_json::parse(text);
  if (merged.is_base_quantised()) {
    document.erase("quantization_config");
    if (document.contains("text_config")) document["text_config"].erase("quantization_config");
  }
  if (has_rows) {
    auto& text_config = document.contains("text_config") ? document["text_config"] : document;
    text_config["vocab_size"] = merged.config().vocab_size;
  }
  const std::string edited = document.dump(2) + "\n";
  return request.dtype ? model::config_text_with_dtype(edited, *request.dtype) : edited;
}

/// The files of the merged model; weights are computed while they are written.
class Merger {
 public:
  Merger(const MergeRequest& request, const MergeHooks& hooks)
      : request_(request), hooks_(hooks), merged_(request.model, request.adapter, hooks.decode, request.onto) {}

  const MergedWeights& merged() const { return merged_; }

  /// The result has no quantization_config that would say what the codes of a tower are.
  void refuse_quantised_towers() const {
    if (!merged_.is_base_quantised()) return;
    for (const auto& [name, entry] : merged_.weights().entries()) {
      if (storage::part_beside_text(entry.name).empty() || storage::dtype_bits(entry.dtype) > 8) continue;
      throw FormatError(merged_.weights().where(entry),
                        "is {}: a tower that is quantised as well cannot be merged into; merge into the model that was "
                        "quantised",
                        storage::describe(entry));
    }
  }

  /// The files of the source with their tensors.
  std::vector<FileToWrite> weight_files(MergeResult& result) {
    std::vector<FileToWrite> files;
    for (const auto& file : merged_.weights().files()) files.push_back({file.path().filename().string(), "", {}});
    for (const auto& [name, entry] : merged_.weights().entries()) {
      if (merged_.parts_of_quantised().contains(name)) continue;
      const DType target = merged_.dtype_of(name, request_.dtype);
      std::vector<storage::TensorToWrite>& tensors = files[entry.file].tensors;
      tensors.push_back(
          {entry.name, target, merged_.shape_of(name), {}, [this, text = name, target] { return next(text, target); }});
      result.weight_bytes += storage::tensor_bytes(target, tensors.back().shape);
    }
    std::erase_if(files, [](const FileToWrite& file) { return file.tensors.empty(); });
    result.num_tensors = merged_.num_tensors();
    result.num_merged = merged_.num_merged();
    return files;
  }

  /// The source's index with the new total size; none for a single file.
  void add_index(std::uint64_t weight_bytes, std::vector<FileToWrite>& files) const {
    if (fs::exists(request_.model / storage::kWeightsFile)) return;  // an index next to it is not used
    auto index = nlohmann::ordered_json::parse(read_file(request_.model / storage::kIndexFile));
    index["metadata"]["total_size"] = weight_bytes;
    for (const std::string& name : merged_.parts_of_quantised()) {
      index["weight_map"].erase(merged_.weights().find(name)->name);
    }
    files.push_back({storage::kIndexFile, index.dump(2) + "\n"});
  }

 private:
  std::string_view next(const std::string& name, DType target) {
    throw_if_stop_requested();
    if (hooks_.progress) hooks_.progress(num_done_, merged_.num_tensors(), name);
    ++num_done_;
    return merged_.bytes(name, target);
  }

  const MergeRequest& request_;
  const MergeHooks& hooks_;
  MergedWeights merged_;
  std::int64_t num_done_ = 0;
};

/// All files except the weights, with the tokenizer that the adapter was trained with.
void add_companions(const MergeRequest& request, const Merger& merger, std::vector<FileToWrite>& files) {
  const fs::path tokenizer = merged_tokenizer_folder(request.model, request.adapter);
  for (const auto& name : storage::companion_files(request.model)) {
    if (name == storage::kAdapterConfigFile || name == storage::kTrainedWithFile ||
        (tokenizer != request.model && storage::is_tokenizer_file(name)))
      continue;
    if (name == storage::kGenerationFile && fs::exists(tokenizer / name)) continue;
    files.push_back(storage::copy_of(request.model / name));
    if (name == storage::kConfigFile) {
      files.back().text = merged_config(files.back().text, request, merger.merged());
    }
  }
  for (const auto& name : storage::companion_files(tokenizer)) {
    const bool is_wanted = name == storage::kGenerationFile || storage::is_tokenizer_file(name);
    const bool is_there = std::ranges::count(files, name, &FileToWrite::name) > 0;
    if (is_wanted && !is_there) files.push_back(storage::copy_of(tokenizer / name));
  }
  storage::copy_tool_template(tokenizer, files);
  if (!fs::exists(request.adapter / storage::kTrainedWithFile)) return;
  TrainedWith trained = read_trained_with(request.adapter);
  trained.base_precision.reset();  // the result is plain
  files.push_back({storage::kTrainedWithFile, to_json(trained)});
}

std::string readme(const MergeRequest& request, const AdapterConfig& adapter) {
  const std::string model = one_line(request.model_name), named = one_line(adapter.base_model_name_or_path);
  return card_head(request.model_name, "transformers") + "tags: [lora-train]\n---\n\n# " + model +
         " with a LoRA adapter merged in\n\nWritten by lora-train " + version() + " merge. Base model: " + model +
         (named.empty() || named == model ? "" : fmt::format(" (the adapter names {})", named)) +
         ". Adapter: " + one_line(request.adapter.string()) + ". The licence of the base model applies.\n";
}

}  // namespace

MergeResult merge_adapter(const MergeRequest& request, const MergeHooks& hooks) {
  Merger merger(request, hooks);
  merger.refuse_quantised_towers();
  MergeResult result;
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kModel, {request.model, request.adapter},
                               request.overwrite);
  result.folder = output.path();
  std::vector<FileToWrite> files = merger.weight_files(result);
  merger.add_index(result.weight_bytes, files);
  add_companions(request, merger, files);
  files.push_back({storage::kCardFile, readme(request, merger.merged().adapter())});
  result.num_files = static_cast<std::int64_t>(files.size());
  output.write(files);
  output.commit(hooks.check);
  return result;
}

fs::path merged_tokenizer_folder(const fs::path& model, const fs::path& adapter) {
  return storage::holds_tokenizer(adapter) ? adapter : model;
}

}  // namespace lora_train::lora
