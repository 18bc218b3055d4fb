#include "lora_train/plan/setup/batch_feed.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::plan {
namespace {

/// Two documents: 3 and 2 tokens.
struct Host {
  std::vector<std::int32_t> ids{7, 5, 9, 5, 2}, labels{5, -100, -100, 2, -100}, positions{0, 1, 2, 0, 1},
      cu_seqlens{0, 3, 5}, document_in_step{11, 4};
  data::MicroBatch batch() const { return {ids, labels, positions, cu_seqlens, document_in_step, 3, 2}; }
};

/// Leaves no zero where fillers come.
const std::vector<std::int32_t> kSixes(300, 6), kEnds{0, 128, 256, 300};
const data::MicroBatch kFull{kSixes, kSixes, kSixes, kEnds, kSixes, 128, 300};
const data::BatchClass kSmall{8, 4, 4}, kLarge{300, 8, 128};

std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.const_data_ptr<std::int64_t>(), wide.const_data_ptr<std::int64_t>() + wide.numel()};
}

using Values = std::vector<std::int64_t>;

TEST(BatchFeed, PutsEveryPartInItsPlace) {
  BatchFeed feed({}, {8, true, true, true});
  const Host host;
  const model::Batch batch = feed.put(host.batch());
  EXPECT_EQ(values(batch.ids), (Values{7, 5, 9, 5, 2}));
  EXPECT_EQ(values(batch.positions), (Values{0, 1, 2, 0, 1}));
  EXPECT_EQ(values(batch.supervised), (Values{0, 3}));
  EXPECT_EQ(batch.supervised.scalar_type(), at::kLong);
  EXPECT_EQ(values(batch.targets), (Values{5, 2}));
  EXPECT_EQ(batch.cu_seqlens, (Values{0, 3, 5}));
  EXPECT_EQ(batch.max_document_tokens, 3);
  EXPECT_TRUE(batch.dropout.enabled);
  EXPECT_EQ(values(batch.dropout.token_document), (Values{11, 11, 11, 4, 4}));
  EXPECT_EQ(values(batch.dropout.token_position), (Values{0, 1, 2, 0, 1}));
  EXPECT_EQ(values(batch.order), (Values{4, 1, 3, 0, 2}));
  EXPECT_EQ(values(batch.cu_seqlens_device), (Values{0, 3, 5}));
}

TEST(BatchFeed, FillsABatchUpToItsClassAlwaysInOnePlace) {
  BatchFeed feed({}, {300, true, true, true, {kSmall, kLarge}, 7});
  feed.put(kFull, 1);
  const std::span<const std::int32_t> eight = kFull.ids.subspan(0, 8);
  feed.put({eight, eight, eight, {{0, 4, 8}}, kFull.document_in_step, 4, 8}, 0);
  const Host host;
  ASSERT_EQ(feed.class_of(host.batch()), 0);
  const model::Batch batch = feed.put(host.batch(), 0);
  EXPECT_EQ(values(batch.ids), (Values{7, 5, 9, 5, 2, 0, 0, 0}));
  EXPECT_EQ(values(batch.positions), (Values{0, 1, 2, 0, 1, 0, 0, 0}));
  EXPECT_EQ(batch.cu_seqlens, (Values{0, 3, 5, 8, 8}));
  EXPECT_EQ(values(batch.cu_seqlens_device), (Values{0, 3, 5, 8, 8}));
  EXPECT_EQ(batch.max_document_tokens, 4);
  EXPECT_EQ(batch.num_trained_tokens(), 2);
  ASSERT_EQ(batch.supervised.size(0), 301) << "whole chunks for the largest class";
  EXPECT_EQ(values(batch.supervised.narrow(0, 0, 2)), (Values{0, 3}));
  EXPECT_TRUE(batch.supervised.narrow(0, 2, 299).ge(300).all().item<bool>());
  EXPECT_TRUE(batch.targets.narrow(0, 2, 299).eq(-1).all().item<bool>());
  EXPECT_EQ(values(batch.dropout.token_document), (Values{11, 11, 11, 4, 4, 0, 0, 0}));
  EXPECT_EQ(values(batch.order), (Values{5, 6, 7, 4, 1, 3, 0, 2}));

  const model::Batch other = feed.put(host.batch(), 1), again = feed.put(host.batch(), 0);
  EXPECT_EQ(other.num_tokens(), 300);
  EXPECT_EQ(other.cu_seqlens, (Values{0, 3, 5, 133, 261, 300, 300, 300, 300}));
  EXPECT_TRUE(other.positions.narrow(0, 5, 295).eq(0).all().item<bool>());
  EXPECT_EQ(again.ids.data_ptr(), batch.ids.data_ptr());
  EXPECT_EQ(other.supervised.data_ptr(), batch.supervised.data_ptr()) << "one loss head serves all classes";
  EXPECT_EQ(other.targets.data_ptr(), batch.targets.data_ptr());
}

TEST(BatchFeed, PadsAnEvaluationButNotItsListOfTokens) {
  BatchFeed feed({}, {300, true, true, true, {kLarge}, 7, true, 0, {kSmall}});
  const Host host;
  const model::Batch batch = feed.put_evaluation(host.batch());
  EXPECT_EQ(values(batch.ids), (Values{7, 5, 9, 5, 2, 0, 0, 0}));
  EXPECT_EQ(batch.cu_seqlens, (Values{0, 3, 5, 8, 8}));
  EXPECT_EQ(batch.max_document_tokens, 4);
  EXPECT_EQ(values(batch.supervised), (Values{0, 3}));
  EXPECT_EQ(values(batch.targets), (Values{5, 2}));
  EXPECT_EQ(values(batch.weights), (Values{1, 1}));
  EXPECT_EQ(batch.num_trained_tokens(), 2);
  EXPECT_FALSE(batch.dropout.enabled);
  BatchFeed plain({}, {300, true, true, true, {kLarge}, 7});
  EXPECT_EQ(values(plain.put_evaluation(host.batch()).ids), (Values{7, 5, 9, 5, 2})) << "no class for evaluations";
}

TEST(BatchFeed, SaysWhichAttentionCallsWillCome) {
  BatchFeed feed({}, {300, true, false, false, {kSmall, kLarge}, 7, false, 0, {{16, 5, 6}}});
  const Host host;
  const auto training = feed.put(host.batch(), 1).layout(0, 1, kernels::AttentionBackend::kAuto).calls;
  const auto evaluation = feed.put_evaluation(host.batch()).layout(0, 1, kernels::AttentionBackend::kAuto).calls;
  ASSERT_TRUE(training && evaluation);
  EXPECT_EQ(training->max_tokens, 300);
  EXPECT_TRUE(training->has_backward && !evaluation->has_backward);
  ASSERT_EQ(training->sizes.size(), 2U);
  EXPECT_EQ(training->sizes[1].num_docs, 8);
  EXPECT_EQ(training->sizes[1].max_len, 128);
  ASSERT_EQ(evaluation->sizes.size(), 1U);
  EXPECT_EQ(evaluation->sizes[0].max_len, 6);
}

std::vector<float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

TEST(BatchFeed, WeightsLieBesideTargets) {
  BatchFeed feed({}, {300, true, true, true, {kSmall, kLarge}, 7, /*has_weights=*/true});
  const Host host;
  const std::vector<float> weights = {0.5F, 0, 0, 3, 0};
  data::MicroBatch weighted = host.batch();
  weighted.weights = weights;
  EXPECT_EQ(floats(feed.put(weighted).weights), (std::vector<float>{0.5F, 3}));
  EXPECT_EQ(floats(feed.put(host.batch()).weights), (std::vector<float>{1, 1})) << "a micro-batch without any";
  const std::vector<float> sixes(300, 6);
  data::MicroBatch full = kFull;
  full.weights = sixes;
  feed.put(full, 1);
  std::vector<float> want(301, 0.0F);
  want[0] = 0.5F;
  want[1] = 3;
  const model::Batch in_small = feed.put(weighted, 0), in_large = feed.put(weighted, 1);
  EXPECT_EQ(floats(in_large.weights), want) << "0 where there is no token";
  EXPECT_EQ(in_small.weights.data_ptr(), in_large.weights.data_ptr()) << "one loss head serves all classes";
  BatchFeed plain({}, {8});
  EXPECT_FALSE(plain.put(host.batch()).weights.defined());
  EXPECT_THROW(plain.put(weighted), ShapeError);
}

TEST(BatchFeed, TakesUpToItsCapacityAndNoMore) {
  BatchFeed feed({}, {5}), small({}, {4});
  const Host host;
  const model::Batch batch = feed.put(host.batch());
  EXPECT_FALSE(batch.dropout.enabled || batch.order.defined());
  EXPECT_THROW(small.put(host.batch()), ShapeError);
}

TEST(BatchFeed, HasRoomForDocumentsOfOneToken) {
  constexpr std::size_t kTokens = 1000;
  const std::vector<std::int32_t> ones(kTokens, 1), none(kTokens, data::kIgnoredLabel);
  std::vector<std::int32_t> cu_seqlens(kTokens + 1);
  for (std::size_t i = 0; i <= kTokens; ++i) cu_seqlens[i] = static_cast<std::int32_t>(i);
  BatchFeed feed({}, {kTokens, true, true, true});
  const model::Batch batch = feed.put({ones, none, ones, cu_seqlens, ones, 1, 0});
  EXPECT_EQ(batch.supervised.size(0), 0);
  EXPECT_EQ(batch.order.size(0), static_cast<std::int64_t>(kTokens));
}

}  // namespace
}  // namespace lora_train::plan
