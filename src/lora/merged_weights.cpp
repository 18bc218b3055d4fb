#include "lora_train/lora/merged_weights.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_tensors.h"
#include "merge_math.h"

namespace lora_train::lora {
namespace {

using storage::DType;

/// True if the weight has a row for each token.
bool is_of_tokens(const std::string& name) { return name == "model.embed_tokens.weight" || name == "lm_head.weight"; }

/// The dtype in which quantised weights are written.
DType plain_dtype(const model::ModelConfig& config) {
  if (config.torch_dtype == "float16") return DType::kF16;
  return config.torch_dtype == "float32" ? DType::kF32 : DType::kBF16;
}

}  // namespace

MergedWeights::MergedWeights(const std::filesystem::path& model, const std::filesystem::path& adapter,
                             DecodeLinear decode, const ModelSection& onto)
    : decode_(std::move(decode)),
      has_adapter_(!adapter.empty()),
      config_(model::read_model_config(model)),
      weights_(storage::open_model_weights(model)) {
  if (has_adapter_) adapter_ = read_adapter_config(adapter);
  model::log_parts_beside_text(config_, weights_);
  find_quantised(onto);
  sites_ = adapted_sites();
  if (has_adapter_) {
    token_rows_ = token_rows_of(adapter_, adapter, config_);
    tensors_.emplace(open_adapter_tensors(adapter, adapter_tensor_list()));
  }
  for (const auto& tensor : adapter_tensor_list()) (void)read(tensor);  // before anything is written
}

std::map<std::string, MergedWeights::Site> MergedWeights::adapted_sites() const {
  std::map<std::string, Site> sites;
  if (!has_adapter_) return sites;
  check_patterns(adapter_, config_);
  for (const auto& spec : plan_adapters(adapter_, config_)) sites[model::linear_path(spec) + ".weight"].spec = spec;
  for (const auto& tensor : model::expected_tensors(config_)) {
    if (const auto at = sites.find(tensor.name); at != sites.end()) at->second.shape = tensor.shape;
  }
  return sites;
}

std::vector<model::Parameter> MergedWeights::adapter_tensor_list() const {
  std::vector<model::Parameter> all;
  for (const auto& [name, site] : sites_) std::ranges::move(site.tensors(), std::back_inserter(all));
  std::ranges::move(model::token_row_tensors(token_rows_, config_.hidden_size), std::back_inserter(all));
  return all;
}

std::int64_t MergedWeights::num_merged() const {
  return std::ssize(sites_) + (token_rows_.embedding.empty() ? 0 : 1) + (token_rows_.head.empty() ? 0 : 1);
}

/// True if the weight gets trained or additional rows.
bool MergedWeights::gets_token_rows(const std::string& name) const {
  return is_of_tokens(name) && (!token_rows_.empty() || config_.added_rows > 0);
}

/// A tied head that is stored anyway stays equal to the embedding.
TokenRowsToMerge MergedWeights::rows_for(const std::string& name) const {
  const bool is_embedding = name != "lm_head.weight" || config_.tie_word_embeddings;
  TokenRowsToMerge rows{is_embedding ? token_rows_.embedding : token_rows_.head, {}, config_.vocab_size};
  const char* tensor = is_embedding ? model::kEmbeddingRows : model::kHeadRows;
  if (!rows.ids.empty()) rows.values = read({tensor, {std::ssize(rows.ids), config_.hidden_size}});
  return rows;
}

void MergedWeights::find_quantised(const ModelSection& onto) {
  const model::BaseStorage base = model::base_storage(onto, config_, weights_);
  for (const model::TensorSpec& spec : model::linear_tensors(config_)) {
    const auto kept = base.find(spec.module());
    if (kept == base.end()) continue;
    model::StoredLinear stored = model::stored_linear(config_, spec, weights_);
    static_cast<model::LinearStorage&>(stored) = kept->second;
    parts_of_quantised_.insert(stored.names.begin(), stored.names.end());
    quantised_.emplace(spec.name, std::move(stored));
  }
  if (quantised_.empty() || decode_) return;
  throw ConfigError("--model",
                    config_.path.parent_path().string() +
                        " is quantised, or was in training: merging into it needs LibTorch; install torch 2.11 "
                        "(lora-train doctor shows the folders it searches)");
}

std::vector<std::int64_t> MergedWeights::shape_of(const std::string& name) const {
  if (is_of_tokens(name)) return {config_.vocab_size, config_.hidden_size};
  const auto found = quantised_.find(name);
  if (found == quantised_.end()) return weights_.find(name)->shape;
  return {found->second.out_features, found->second.in_features};
}

DType MergedWeights::dtype_of(const std::string& name, std::optional<DType> wanted) const {
  const auto quantised = quantised_.find(name);
  if (quantised != quantised_.end() && quantised->second.scales != nullptr)
    return wanted.value_or(plain_dtype(config_));
  const storage::TensorEntry& entry = *weights_.find(name);
  const bool is_text = storage::part_beside_text(entry.name).empty();
  return is_text && storage::is_weight_dtype(entry.dtype) ? wanted.value_or(entry.dtype) : entry.dtype;
}

bool MergedWeights::is_computed(const std::string& name) const {
  return gets_token_rows(name) || sites_.contains(name) || quantised_.contains(name);
}

std::vector<float> MergedWeights::read(const model::Parameter& tensor) const {
  const storage::TensorEntry& entry = *tensors_->find(tensor.name);
  std::vector<float> values = read_floats(tensors_->bytes(entry), entry.dtype);
  tensors_->release(entry);
  if (!all_finite(values)) refuse_non_finite(*tensors_, entry);
  return values;
}

void MergedWeights::refuse_result(const storage::TensorEntry& entry, DType target) const {
  if (storage::is_weight_dtype(entry.dtype) && !all_finite(read_floats(weights_.bytes(entry), entry.dtype))) {
    throw FormatError(weights_.where(entry), "holds NaN or infinity: the base model is damaged; download it again");
  }
  throw NumericError(entry.name, "the merged weight is beyond what {} can hold; pass --dtype bf16 or --dtype fp32",
                     storage::dtype_name(target));
}

std::string_view MergedWeights::bytes(const std::string& name, DType target) {
  if (last_ != nullptr) weights_.release(*last_);
  const storage::TensorEntry& entry = *weights_.find(name);
  last_ = &entry;
  const auto site = sites_.find(name);
  const auto quantised = quantised_.find(name);
  if (gets_token_rows(name)) {
    const WeightToMerge weight{weights_.bytes(entry), entry.dtype, entry.shape[0], entry.shape[1]};
    if (!merge_token_rows(weight, rows_for(name), target, buffer_)) refuse_result(entry, target);
    return buffer_;
  }
  if (site == sites_.end() && target == entry.dtype && quantised == quantised_.end()) return weights_.bytes(entry);
  WeightToMerge weight{weights_.bytes(entry), entry.dtype, 1, entry.num_elements()};
  std::vector<float> decoded;
  if (quantised != quantised_.end()) {
    decoded = decode_(quantised->second, weights_);
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

}  // namespace lora_train::lora
