#include "cuda/cudnn_plans.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>

namespace lora_train::cuda {
namespace {

CudnnShape shape_of(std::int64_t num_docs, std::int64_t longest, std::int64_t num_tokens) {
  CudnnShape shape;
  shape.num_docs = num_docs;
  shape.max_len_q = shape.max_len_k = longest;
  shape.total_q = shape.total_k = num_tokens;
  shape.num_heads = 28;
  shape.num_kv_heads = 4;
  shape.head_size = 128;
  return shape;
}

TEST(CudnnKeys, AForwardPlanServesAnyTotalAndMode) {
  CudnnShape backward = shape_of(5, 3000, 9000);
  backward.dout_stride = 3584;
  backward.deterministic = true;
  EXPECT_EQ(forward_key(backward), forward_key(shape_of(7, 2500, 16000)));
  EXPECT_NE(forward_key(shape_of(9, 3000, 9000)), forward_key(shape_of(5, 3000, 9000)));
  EXPECT_NE(forward_key(shape_of(5, 5000, 9000)), forward_key(shape_of(5, 3000, 9000)));
  CudnnShape strided = shape_of(5, 3000, 9000);
  strided.out_stride = 3648;
  EXPECT_NE(forward_key(strided), forward_key(shape_of(5, 3000, 9000)));
}

TEST(CudnnKeys, ARunHasOneTotalForItsBackwardPlans) {
  std::set<CudnnShape> known, unknown;
  for (std::int64_t num_tokens = 8192; num_tokens <= 16384; num_tokens += 128) {
    known.insert(backward_key(shape_of(8, 4096, num_tokens), 16000));
    unknown.insert(backward_key(shape_of(8, 4096, num_tokens), 0));
  }
  EXPECT_EQ(known.begin()->total_q, 16000) << "what the planner counts";
  EXPECT_EQ(known.size(), 4U) << "the run's, and those beyond it";
  EXPECT_EQ(unknown.size(), 5U);
}

TEST(CudnnKeys, ABackwardPlanDependsOnItsGradientAndMode) {
  CudnnShape strided = shape_of(8, 4096, 16384), deterministic = strided;
  strided.dout_stride = 3648;
  deterministic.deterministic = true;
  EXPECT_NE(backward_key(strided, 0), backward_key(shape_of(8, 4096, 16384), 0));
  EXPECT_NE(backward_key(deterministic, 0), backward_key(shape_of(8, 4096, 16384), 0));
}

struct Plans {
  int num_started = 0, num_waits = 0;
  std::atomic<int> num_built = 0;
  PlanCache<std::int64_t> cache{3,
                                [this](const CudnnShape& key) {
                                  ++num_started;
                                  if (key.num_docs == 13) throw std::runtime_error("refused");
                                  return [this, key] {
                                    ++num_built;
                                    if (key.num_docs == 14) throw std::runtime_error("not built");
                                    return key.num_docs;
                                  };
                                },
                                [this] { ++num_waits; }};
  std::int64_t get(std::int64_t num_docs, bool is_capturing = false) {
    return cache.get(shape_of(num_docs, 1, 1), is_capturing);
  }
  bool has(std::int64_t num_docs) const { return cache.has(shape_of(num_docs, 1, 1)); }
};

TEST(PlanCache, BuildsAPlanOnceAheadOfItsUse) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2}) plans.cache.begin(shape_of(num_docs, 1, 1));
  plans.cache.wait_for_builds();
  EXPECT_EQ(plans.num_built, 2);
  EXPECT_EQ(plans.get(2), 2);
  EXPECT_EQ(plans.get(1), 1);
  EXPECT_EQ(plans.num_started, 2);
}

TEST(PlanCache, CarriesAFailureToTheOneWhoNeedsThePlan) {
  Plans plans;
  for (const std::int64_t num_docs : {13, 14, 1}) plans.cache.begin(shape_of(num_docs, 1, 1));
  plans.cache.wait_for_builds();
  EXPECT_EQ(plans.get(1), 1);
  for (const std::int64_t num_docs : {13, 14, 13}) EXPECT_THROW(plans.get(num_docs), std::runtime_error) << num_docs;
}

TEST(PlanCache, DropsThePlanThatWasNotUsedForLongest) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2, 3, 1, 4}) plans.get(num_docs);
  EXPECT_EQ(plans.cache.size(), 3U);
  EXPECT_TRUE(plans.has(1) && !plans.has(2) && plans.has(3) && plans.has(4));
  EXPECT_EQ(plans.num_waits, 1) << "the device may still use it";
}

TEST(PlanCache, KeepsWhatACapturedGraphUses) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2, 3, 4}) plans.get(num_docs, /*is_capturing=*/true);
  EXPECT_EQ(plans.num_waits, 0) << "a capture must not wait";
  for (const std::int64_t num_docs : {5, 6}) EXPECT_EQ(plans.get(num_docs), num_docs);
  for (const std::int64_t num_docs : {1, 2, 3, 4, 6}) EXPECT_TRUE(plans.has(num_docs)) << num_docs;
  EXPECT_FALSE(plans.has(5));
}

}  // namespace
}  // namespace lora_train::cuda
