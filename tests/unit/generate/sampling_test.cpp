#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/generate/generator.h"
#include "support/sampling_candidates.h"

namespace lora_train::generate {
namespace {

using kernels::Candidate;
using testing_support::candidates;

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampling, GreedyTakesTheLowestIdOfEquals) {
  EXPECT_EQ(choose_token(std::vector<float>{-1, 3, 2, 3, 3}, {}, 0, 0), 1);
}

TEST(Sampling, CandidatesComeMostLikelyFirst) {
  struct Case {
    std::vector<double> probabilities;
    SamplingOptions options;
    std::vector<Candidate> candidates;
  };
  const std::vector<double> four = {0.1, 0.4, 0.2, 0.3};
  for (const auto& [probabilities, options, expected] :
       std::vector<Case>{{{0.2, 0.5, 0.1, 0.2}, {.temperature = 1}, {{1, 0.5}, {0, 0.2}, {3, 0.2}, {2, 0.1}}},
                         {{0.2, 0.8}, {.temperature = 0.5}, {{1, 16.0 / 17}, {0, 1.0 / 17}}},
                         // What is as likely as the last one stays.
                         {{0.1, 0.4, 0.2, 0.2, 0.1}, {.temperature = 1, .top_k = 2}, {{1, 0.5}, {2, 0.25}, {3, 0.25}}},
                         {{0.1, 0.9}, {.temperature = 1, .top_k = 7}, {{1, 0.9}, {0, 0.1}}},
                         // The token that reaches top_p stays.
                         {four, {.temperature = 1, .top_p = 0.65}, {{1, 4.0 / 7}, {3, 3.0 / 7}}},
                         {four, {.temperature = 1, .top_p = 0.75}, {{1, 4.0 / 9}, {3, 3.0 / 9}, {2, 2.0 / 9}}},
                         {four, {.temperature = 1, .top_p = 1e-9}, {{1, 1}}},
                         // A share of the largest.
                         {{0.1, 0.5, 0.14, 0.26},
                          {.temperature = 1, .min_p = 0.27},
                          {{1, 0.5 / 0.9}, {3, 0.26 / 0.9}, {2, 0.14 / 0.9}}}}) {
    const std::vector<Candidate> got = candidates(logits_of(probabilities), options);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].id, expected[i].id) << i;
      EXPECT_NEAR(got[i].probability, expected[i].probability, 1e-6) << i;
    }
  }
}

TEST(Sampling, TopPOfALargeVocabularyIsThatOfAWholeSort) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(std::sin(static_cast<double>(i * i)));
  const auto all = candidates(logits, {.temperature = 1});
  const auto some = candidates(logits, {.temperature = 1, .top_p = 0.6});
  double reached = 0;
  std::size_t count = 0;
  while (reached < 0.6) reached += all[count++].probability;
  ASSERT_EQ(some.size(), count);
  EXPECT_GT(count, 1024u);  // sorted in more than one go
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(some[i].id, all[i].id);
}

TEST(Sampling, ADrawDependsOnSeedPromptAndPosition) {
  const std::vector<float> logits(1000, 0.0F);
  const SamplingOptions options{.temperature = 1, .seed = 7};
  const std::int32_t first = choose_token(logits, options, 3, 4);
  EXPECT_EQ(choose_token(logits, options, 3, 4), first);
  std::set<std::int32_t> others;
  for (std::int64_t i = 0; i < 8; ++i) {
    others.insert(choose_token(logits, options, 3, 5 + i));
    others.insert(choose_token(logits, options, 4 + i, 4));
    others.insert(choose_token(logits, {.temperature = 1, .seed = 8 + static_cast<std::uint64_t>(i)}, 3, 4));
  }
  EXPECT_GT(others.size(), 20u);
}

TEST(Sampling, DrawsOnlyWhatIsThere) {
  std::vector<float> logits(50, -2000.0F);  // their share is zero in fp64 too
  logits[17] = 0;
  for (std::int64_t i = 0; i < 50; ++i) EXPECT_EQ(choose_token(logits, {.temperature = 1}, i, 0), 17);
}

TEST(Sampling, LogProbabilityIsThatOfSoftmax) {
  EXPECT_NEAR(log_probability(logits_of({0.1, 0.4, 0.5}), 1), std::log(0.4), 1e-6);
  const std::vector<float> large = {1000, 990};
  EXPECT_NEAR(log_probability(large, 1), -10 - std::log1p(std::exp(-10)), 1e-9);
}

TEST(Sampling, RefusesWhatIsNoDistribution) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplingOptions& options : {SamplingOptions{.temperature = -1},
                                         {.temperature = nan},
                                         {.top_k = -1},
                                         {.top_p = 0},
                                         {.top_p = 1.1},
                                         {.top_p = nan},
                                         {.min_p = -0.1},
                                         {.min_p = 1.1},
                                         {.min_p = nan}}) {
    EXPECT_THROW(check_sampling(options), ConfigError);
  }
  EXPECT_NO_THROW(check_sampling({.temperature = 2, .top_k = 5, .top_p = 1, .min_p = 1}));
}

}  // namespace
}  // namespace lora_train::generate
