// Rows of embedding and head that are trained, and rows that the files lack.
#include <ATen/ATen.h>

#include "lora_train/model/weights/base_weights.h"

namespace lora_train::model {

at::Tensor mean_of_rows(const at::Tensor& matrix) {
  constexpr int64_t kPiece = 4096;  // rows in fp64 at a time
  at::Tensor sum = at::zeros({matrix.size(1)}, matrix.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < matrix.size(0); begin += kPiece) {
    sum += matrix.slice(0, begin, begin + kPiece).to(at::kDouble).sum(0);
  }
  return (sum / matrix.size(0)).to(at::kFloat);
}

void ComputeWeights::bind_token_rows() {
  const auto rows = [this](const std::vector<int64_t>& ids, const char* name) -> kernels::TrainableRows {
    if (ids.empty()) return {};
    const at::Tensor indices = at::tensor(at::ArrayRef<int64_t>(ids), at::kLong);
    return {indices.to(options_.device), parameters_.value(name), parameters_.grad(name)};
  };
  outer_.rows = rows(shape_.rows.embedding, kEmbeddingRows);
  outer_.head_rows = config_.tie_word_embeddings ? outer_.rows : rows(shape_.rows.head, kHeadRows);
}

void ComputeWeights::fill_added_rows() {
  const int64_t stored = config_.stored_rows();
  if (stored == config_.vocab_size) return;
  const auto fill = [&](at::Tensor& matrix) {
    matrix.narrow(0, stored, config_.added_rows).copy_(mean_of_rows(matrix.narrow(0, 0, stored)));
  };
  fill(outer_.embedding);
  if (!outer_.is_tied) fill(outer_.head);
}

}  // namespace lora_train::model
