#include "lora_train/lora/merge.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "adapter_names.h"
#include "adapter_tensors.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/version.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/model/init_model.h"
#include "lora_train/model/model_config.h"
#include "lora_train/model/stored_linear.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/output_folder.h"
#include "merge_math.h"
#include "merge_token_rows.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using storage::DType;
using storage::FileToWrite;

constexpr const char* kGenerationFile = "generation_config.json";

/// A weight of the model, and the adapter on it.
struct Site {
  model::AdapterSpec spec;
  std::vector<std::int64_t> shape;  ///< [out, in]

  std::vector<model::Parameter> tensors() const { return model::adapter_tensors(spec, shape[1], shape[0]); }
};

std::map<std::string, Site> merged_weights(const model::ModelConfig& config,
                                           const std::vector<model::AdapterSpec>& specs) {
  std::map<std::string, Site> sites;
  for (const auto& spec : specs) sites[model::linear_path(spec) + ".weight"].spec = spec;
  for (const auto& tensor : model::expected_tensors(config)) {
    if (const auto at = sites.find(tensor.name); at != sites.end()) at->second.shape = tensor.shape;
  }
  return sites;
}

/// Whether the weight has a row for each token.
bool is_of_tokens(const std::string& name) { return name == "model.embed_tokens.weight" || name == "lm_head.weight"; }

std::string with_vocab_size(const std::string& config, std::int64_t vocab_size) {
  auto document = nlohmann::ordered_json::parse(config);
  document["vocab_size"] = vocab_size;
  return document.dump(2) + "\n";
}

std::vector<model::Parameter> tensors_of(const std::map<std::string, Site>& sites) {
  std::vector<model::Parameter> all;
  for (const auto& [name, site] : sites) std::ranges::move(site.tensors(), std::back_inserter(all));
  return all;
}

/// What quantised weights are written as.
DType plain_dtype(const model::ModelConfig& config) {
  if (config.torch_dtype == "float16") return DType::kF16;
  return config.torch_dtype == "float32" ? DType::kF32 : DType::kBF16;
}

std::string without_quantization(const std::string& config) {
  auto document = nlohmann::ordered_json::parse(config);
  document.erase("quantization_config");
  return document.dump(2) + "\n";
}

/// The inputs of a merge, opened and checked. Produces the merged weights one at a time.
class Merger {
 public:
  Merger(const MergeRequest& request, const MergeHooks& hooks)
      : request_(request),
        hooks_(hooks),
        config_(model::read_model_config(request.model)),
        weights_(storage::open_model_weights(request.model)),
        adapter_(read_adapter_config(request.adapter)),
        sites_(checked_sites()),
        token_rows_(token_rows_of(adapter_, request.adapter, config_)),
        tensors_(open_adapter_tensors(request.adapter, adapter_tensor_list())) {
    find_quantised();
    num_tensors_ = static_cast<std::int64_t>(weights_.names().size() - parts_of_quantised_.size());
    for (const auto& tensor : adapter_tensor_list()) (void)read(tensor);  // before anything is written
  }

  /// With room for the token rows of the adapter.
  const model::ModelConfig& config() const { return config_; }

  const AdapterConfig& adapter() const { return adapter_; }

  bool is_base_quantised() const { return !quantised_.empty(); }

  /// The files of the source with their tensors, each computed as it is written.
  std::vector<FileToWrite> weight_files(MergeResult& result) {
    std::vector<FileToWrite> files;
    for (const auto& file : weights_.files()) {
      FileToWrite out{file.path().filename().string(), "", {}};
      for (const auto& tensor : file.tensors()) {
        const storage::TensorEntry* entry = weights_.find(tensor.name);
        if (entry == nullptr) continue;  // in the file, but not in the index
        if (parts_of_quantised_.contains(tensor.name)) continue;
        const DType target = dtype_of(*entry);
        out.tensors.push_back({tensor.name, target, shape_of(*entry), {}, [this, entry] { return produce(*entry); }});
        result.weight_bytes += storage::tensor_bytes(target, out.tensors.back().shape);
      }
      if (!out.tensors.empty()) files.push_back(std::move(out));
    }
    result.num_tensors = num_tensors_;
    result.num_merged = static_cast<std::int64_t>(sites_.size()) + (token_rows_.embedding.empty() ? 0 : 1) +
                        (token_rows_.head.empty() ? 0 : 1);
    return files;
  }

  /// The source's index with the new total size; none for a single file.
  void add_index(std::uint64_t weight_bytes, std::vector<FileToWrite>& files) const {
    if (fs::exists(request_.model / "model.safetensors")) return;  // an index beside it is not used
    auto index = nlohmann::ordered_json::parse(read_file(request_.model / storage::kIndexFile));
    index["metadata"]["total_size"] = weight_bytes;
    for (const std::string& name : parts_of_quantised_) index["weight_map"].erase(name);
    files.push_back({storage::kIndexFile, index.dump(2) + "\n"});
  }

 private:
  std::map<std::string, Site> checked_sites() const {
    model::check_weights(config_, weights_);
    check_patterns(adapter_.options, config_);
    return merged_weights(config_, plan_adapters(adapter_.options, config_));
  }

  std::vector<model::Parameter> adapter_tensor_list() const {
    std::vector<model::Parameter> all = tensors_of(sites_);
    std::ranges::move(model::token_row_tensors(token_rows_, config_.hidden_size), std::back_inserter(all));
    return all;
  }

  /// Whether the weight gets trained rows or more rows.
  bool gets_token_rows(const storage::TensorEntry& entry) const {
    return is_of_tokens(entry.name) && (!token_rows_.empty() || config_.added_rows > 0);
  }

  /// A tied head that is stored all the same stays equal to the embedding.
  TokenRowsToMerge rows_for(const storage::TensorEntry& entry) const {
    const bool is_embedding = entry.name != "lm_head.weight" || config_.tie_word_embeddings;
    TokenRowsToMerge rows{is_embedding ? token_rows_.embedding : token_rows_.head, {}, config_.vocab_size};
    const char* name = is_embedding ? model::kEmbeddingRows : model::kHeadRows;
    if (!rows.ids.empty()) rows.values = read({name, {std::ssize(rows.ids), config_.hidden_size}});
    return rows;
  }

  void find_quantised() {
    for (const model::TensorSpec& spec : model::linear_tensors(config_)) {
      model::StoredLinear stored = model::stored_linear(config_, spec, weights_);
      if (stored.format == model::LinearFormat::kPlain) continue;
      parts_of_quantised_.insert(stored.names.begin(), stored.names.end());
      quantised_.emplace(spec.name, std::move(stored));
    }
    if (quantised_.empty() || hooks_.decode) return;
    throw ConfigError("--model",
                      config_.path.parent_path().string() +
                          " is quantised: merging into it needs LibTorch; install torch 2.11 (lora-train doctor "
                          "says where it is looked for)");
  }

  std::vector<std::int64_t> shape_of(const storage::TensorEntry& entry) const {
    if (is_of_tokens(entry.name)) return {config_.vocab_size, config_.hidden_size};
    const auto found = quantised_.find(entry.name);
    if (found == quantised_.end()) return entry.shape;
    return {found->second.out_features, found->second.in_features};
  }

  DType dtype_of(const storage::TensorEntry& entry) const {
    if (quantised_.contains(entry.name)) return request_.dtype.value_or(plain_dtype(config_));
    return storage::is_weight_dtype(entry.dtype) ? request_.dtype.value_or(entry.dtype) : entry.dtype;
  }

  std::vector<float> read(const model::Parameter& tensor) const {
    const storage::TensorEntry& entry = *tensors_.find(tensor.name);
    std::vector<float> values = read_floats(tensors_.bytes(entry), entry.dtype);
    tensors_.release(entry);
    if (!all_finite(values)) refuse_non_finite(tensors_, tensor.name);
    return values;
  }

  [[noreturn]] void refuse_result(const storage::TensorEntry& entry, DType target) const {
    if (!all_finite(read_floats(weights_.bytes(entry), entry.dtype))) {
      throw FormatError(weights_.where(entry), "holds NaN or infinity: the base model is damaged, download it again");
    }
    throw NumericError(entry.name, "the merged weight is beyond what " + std::string(storage::dtype_name(target)) +
                                       " can hold; pass --dtype bf16 or --dtype fp32");
  }

  /// The bytes to write for the tensor, valid until the next call.
  std::string_view produce(const storage::TensorEntry& entry) {
    throw_if_stop_requested();
    if (last_ != nullptr) weights_.release(*last_);
    last_ = &entry;
    if (hooks_.progress) hooks_.progress(num_done_, num_tensors_, entry.name);
    ++num_done_;
    const auto site = sites_.find(entry.name);
    const DType target = dtype_of(entry);
    const auto quantised = quantised_.find(entry.name);
    if (gets_token_rows(entry)) {
      const WeightToMerge weight{weights_.bytes(entry), entry.dtype, entry.shape[0], entry.shape[1]};
      if (!merge_token_rows(weight, rows_for(entry), target, buffer_)) refuse_result(entry, target);
      return buffer_;
    }
    if (site == sites_.end() && target == entry.dtype && quantised == quantised_.end()) return weights_.bytes(entry);
    WeightToMerge weight{weights_.bytes(entry), entry.dtype, 1, entry.num_elements()};
    std::vector<float> decoded;
    if (quantised != quantised_.end()) {
      decoded = hooks_.decode(quantised->second, weights_);
      weight = {{reinterpret_cast<const char*>(decoded.data()), decoded.size() * sizeof(float)},
                DType::kF32,
                1,
                std::ssize(decoded)};
    }
    AdapterValues adapter;
    if (site != sites_.end()) {
      adapter.spec = site->second.spec;
      for (const auto& tensor : site->second.tensors()) adapter.tensors.push_back(read(tensor));
      weight.num_rows = site->second.shape[0];
      weight.num_columns = site->second.shape[1];
    }
    if (!merge_weight(weight, site == sites_.end() ? nullptr : &adapter, target, buffer_)) refuse_result(entry, target);
    return buffer_;
  }

  const MergeRequest& request_;
  const MergeHooks& hooks_;
  model::ModelConfig config_;
  storage::WeightFiles weights_;
  AdapterConfig adapter_;
  std::map<std::string, Site> sites_;
  model::TokenRows token_rows_;
  storage::SafetensorsFile tensors_;
  std::map<std::string, model::StoredLinear> quantised_;  ///< by the names of their weights
  std::set<std::string> parts_of_quantised_;              ///< their scales and maps
  std::string buffer_;
  const storage::TensorEntry* last_ = nullptr;
  std::int64_t num_done_ = 0, num_tensors_ = 0;
};

bool is_of_tokenizer(const std::string& name) {
  return name == kGenerationFile || std::find(std::begin(storage::kTokenizerFiles), std::end(storage::kTokenizerFiles),
                                              name) != std::end(storage::kTokenizerFiles);
}

/// Every file besides the weights. The tokenizer is the one that the adapter was trained with.
void add_companions(const MergeRequest& request, const Merger& merger, std::vector<FileToWrite>& files) {
  const fs::path tokenizer = merged_tokenizer_folder(request.model, request.adapter);
  for (const auto& name : storage::companion_files(request.model)) {
    if (name == kConfigFile || (tokenizer != request.model && is_of_tokenizer(name) && name != kGenerationFile))
      continue;
    if (name == kGenerationFile && fs::exists(tokenizer / name)) continue;
    files.push_back(storage::copy_of(request.model / name));
    if (name == "config.json" && merger.is_base_quantised())
      files.back().text = without_quantization(files.back().text);
    if (name == "config.json" && merger.config().added_rows > 0)
      files.back().text = with_vocab_size(files.back().text, merger.config().vocab_size);
    if (name == "config.json" && request.dtype) {
      files.back().text = model::config_text_with_dtype(files.back().text, *request.dtype);
    }
  }
  for (const auto& name : storage::companion_files(tokenizer)) {
    const bool is_there =
        std::any_of(files.begin(), files.end(), [&](const FileToWrite& file) { return file.name == name; });
    if (is_of_tokenizer(name) && !is_there) files.push_back(storage::copy_of(tokenizer / name));
  }
}

std::string readme(const MergeRequest& request, const AdapterConfig& adapter) {
  const std::string model = one_line(request.model_name), named = one_line(adapter.base_model_name_or_path);
  return card_head(request.model_name, "transformers") + "tags: [lora-train]\n---\n\n# " + model +
         " with a LoRA adapter merged in\n\nWritten by lora-train " + version() + " merge. Base model: " + model +
         (named.empty() || named == model ? "" : " (the adapter names " + named + ")") +
         ". Adapter: " + one_line(request.adapter.string()) + ". The licence of the base model applies.\n";
}

}  // namespace

MergeResult merge_adapter(const MergeRequest& request, const MergeHooks& hooks) {
  Merger merger(request, hooks);
  MergeResult result;
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kModel, {request.model, request.adapter},
                               request.overwrite);
  result.folder = output.path();
  std::vector<FileToWrite> files = merger.weight_files(result);
  merger.add_index(result.weight_bytes, files);
  add_companions(request, merger, files);
  files.push_back({"README.md", readme(request, merger.adapter())});
  result.num_files = static_cast<std::int64_t>(files.size());
  output.write(files);
  output.commit(hooks.check);
  return result;
}

fs::path merged_tokenizer_folder(const fs::path& model, const fs::path& adapter) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json"}) {
    if (fs::exists(adapter / name)) return adapter;
  }
  return model;
}

}  // namespace lora_train::lora
