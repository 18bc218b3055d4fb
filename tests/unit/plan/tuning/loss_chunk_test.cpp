// The rows of a loss chunk where nothing is measured.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/model/loss_head.h"
#include "lora_train/plan/tuning/tuning_cases.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kVocabulary = 152064, kHidden = 3584, kRowBytes = 2 * kVocabulary;  // Qwen2.5-7B in bf16
constexpr std::int64_t kDefault = model::LossHeadOptions{}.chunk_bytes / kRowBytes;

std::int64_t rows_for(std::int64_t supervised, std::int64_t spare_bytes) {
  const at::Tensor head = at::empty({kVocabulary, kHidden}, at::device(at::kMeta).dtype(at::kBFloat16));
  return loss_chunk_by_count(head, supervised, spare_bytes, 132) / kRowBytes;
}

TEST(LossChunkByCount, TakesManyRowsWhereMemoryAllows) {
  constexpr std::int64_t kMore = kRowBytes + 4 * 2 * kHidden;  // per row: logits, and four rows of hidden states
  EXPECT_EQ(rows_for(16384, std::int64_t{8} << 30), 8192);
  EXPECT_EQ(rows_for(16384, (8192 - kDefault) * kMore), 8192);
  EXPECT_EQ(rows_for(16384, (8192 - kDefault) * kMore - 1), 4096);
  EXPECT_EQ(rows_for(16384, 0), kDefault);
}

TEST(LossChunkByCount, CountsThePaddingOfTheLastChunk) {
  EXPECT_EQ(rows_for(8192, std::int64_t{8} << 30), 8192);
  const std::int64_t rows = rows_for(4600, std::int64_t{8} << 30);  // 8192 rows would be half empty
  EXPECT_LT(rows, 4096);
  EXPECT_LT((4600 + rows - 1) / rows * rows, 6144);
  EXPECT_LE(rows_for(100, std::int64_t{8} << 30), kDefault);
}

}  // namespace
}  // namespace lora_train::plan
