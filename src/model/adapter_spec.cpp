#include "lora_train/model/adapter_spec.h"

#include "lora_train/model/layer_shape.h"

namespace lora_train::model {

std::string linear_path(std::int64_t layer, const std::string& linear) { return layer_prefix(layer) + linear; }

std::string linear_path(const AdapterSpec& spec) { return linear_path(spec.layer, spec.linear); }

std::vector<Parameter> token_row_tensors(const TokenRows& rows, std::int64_t hidden_size) {
  std::vector<Parameter> tensors;
  if (!rows.embedding.empty()) tensors.push_back({kEmbeddingRows, {std::ssize(rows.embedding), hidden_size}});
  if (!rows.head.empty()) tensors.push_back({kHeadRows, {std::ssize(rows.head), hidden_size}});
  return tensors;
}

}  // namespace lora_train::model
