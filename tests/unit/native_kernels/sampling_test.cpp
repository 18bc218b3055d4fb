#include <cmath>
#include <limits>

#include "kernels/sampling/sampling_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

/// Kinds of rows of logits; each but the first has ties, or numbers that are hard on a search.
enum class Kind { kNormal, kRounded, kEqual, kPeaked, kFar, kTiny, kSteps };
constexpr std::array kKinds = {Kind::kNormal, Kind::kRounded, Kind::kEqual, Kind::kPeaked,
                               Kind::kFar,    Kind::kTiny,    Kind::kSteps};

float logit_of(Kind kind, std::mt19937& generator, std::int64_t id) {
  const float normal = std::normal_distribution<float>(0, 4)(generator);
  switch (kind) {
    case Kind::kNormal: return normal;
    case Kind::kRounded: return std::round(normal);  // ties, with 0 and -0
    case Kind::kEqual: return 2.5F;
    case Kind::kPeaked: return id == 3 ? 900.0F : normal;  // the others underflow
    case Kind::kFar: return id % 7 == 0 ? normal : (id % 2 == 0 ? -3e38F : -1e30F);
    case Kind::kTiny: return normal * 1e-30F;  // other logits, equal probabilities
    case Kind::kSteps: return -std::log(2.0F) * static_cast<float>(id % 5);
  }
  return 0;
}

void fill(Guarded<float>& logits, Kind kind, unsigned seed) {
  std::mt19937 generator(seed);
  logits.fill([&](std::int64_t, std::int64_t id) { return logit_of(kind, generator, id); });
}

std::span<const float> row_of(Guarded<float>& logits, std::int64_t b, std::int64_t V) {
  return {logits[b], static_cast<std::size_t>(V)};
}

const std::vector<SamplingFilter> kFilters = {
    {},
    {1},
    {0.7, 0, 1, 0.05},
    {1, 1},
    {0.9, 5},
    {1, 40},
    {1, 100000},
    {1, 0, 0.9},
    {1.3, 0, 1e-9},  // one token
    {1, 0, 0.9999999},
    {0.8, 20, 0.8},
    {0.8, 20, 0.95, 0.1},
    {1, 0, 0.5, 1},  // as likely as the largest
    {1e-6},
    {1e6, 7, 0.6},
};

/// Chooses for each row of `logits` at positions 0, 1, ... with key 7 b, and compares with the reference.
std::int64_t compare(Guarded<float>& logits, std::int64_t V, const SamplingFilter& filter, std::int64_t draws) {
  const std::int64_t B = logits.num_rows();
  std::int64_t num_compared = 0;
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    KernelArray<std::int64_t> keys(static_cast<std::size_t>(B)), positions(static_cast<std::size_t>(B));
    for (std::int64_t b = 0; b < B; ++b) {
      keys[static_cast<std::size_t>(b)] = packed_key({static_cast<std::uint32_t>(7 * b), 5});
      positions[static_cast<std::size_t>(b)] = draw + (std::int64_t{b} << 32);
    }
    Guarded<std::int32_t> chosen(1, B);
    sample_tokens_cuda(logits.read(), B, V, filter, keys.data(), positions.data(), chosen.data(), nullptr);
    for (std::int64_t b = 0; b < B; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const double u = sampling_draw({static_cast<std::uint32_t>(7 * b), 5}, positions[at]);
      const std::int32_t want = sample_token(row_of(logits, b, V), filter, u);
      EXPECT_EQ(chosen[0][b], want) << "row " << b << " draw " << u << " top_k " << filter.top_k << " top_p "
                                    << filter.top_p << " min_p " << filter.min_p << " T " << filter.temperature;
      ++num_compared;
    }
    EXPECT_TRUE(chosen.is_intact());
  }
  EXPECT_TRUE(logits.is_intact());
  return num_compared;
}

TEST(SamplingCuda, DrawsTheTokensOfTheReference) {
  std::int64_t num_compared = 0;
  for (const std::int64_t V : {1, 2, 31, 250}) {
    for (const Kind kind : kKinds) {
      Guarded<float> logits(3, V, 1, V % 2 == 0);
      fill(logits, kind, static_cast<unsigned>(V));
      for (const auto& filter : kFilters) {
        num_compared += compare(logits, V, filter, V > 2 ? 2 : 1);
        if (HasFailure()) FAIL() << "V " << V << " kind " << static_cast<int>(kind);
      }
    }
  }
  EXPECT_EQ(num_compared, 3 * 6 * std::ssize(kKinds) * std::ssize(kFilters));
}

/// The sums of later passes are rounded otherwise than the first, so a share of nearly all may never be reached.
TEST(SamplingCuda, AShareThatRoundingKeepsFromBeingReachedIsAllTokens) {
  constexpr std::int64_t kV = 3001;
  Guarded<float> logits(24, kV);
  logits.fill_uniform(3);  // a part of the range that is lost is lost with its share of the tokens
  compare(logits, kV, {1, 0, std::nextafter(1.0, 0.0)}, 2);
}

TEST(SamplingCuda, ZeroAndMinusZeroAreEqual) {
  Guarded<float> logits(2, 40);
  logits.fill([](std::int64_t b, std::int64_t id) { return id < 5 ? -1.0F : (id % 2 == b ? 0.0F : -0.0F); });
  EXPECT_GT(compare(logits, 40, {}, 1) + compare(logits, 40, {0.5, 1}, 8), 10);
  EXPECT_EQ(sample_token(row_of(logits, 0, 40), {}, 0), 5);
}

TEST(SamplingCuda, IsTheSameInEveryOrderOfThreads) {
  constexpr std::int64_t kV = 20011;  // 512 threads, several groups each
  Guarded<float> logits(2, kV, 3, false);
  fill(logits, Kind::kNormal, 1);
  const KernelArray<std::int64_t> keys({packed_key({1, 2}), packed_key({3, 4})}), positions({5, 6});
  for (const auto& filter : {SamplingFilter{}, {1}, {1, 0, 0.9}, {0.8, 50, 0.9, 0.01}}) {
    Guarded<std::int32_t> chosen(1, 2);
    run_in_both_orders(chosen, [&] {
      sample_tokens_cuda(logits.read(), 2, kV, filter, keys.data(), positions.data(), chosen.data(), nullptr);
    });
    EXPECT_EQ(chosen[0][0], sample_token(row_of(logits, 0, kV), filter, sampling_draw({1, 2}, 5)));
    EXPECT_EQ(chosen[0][1], sample_token(row_of(logits, 1, kV), filter, sampling_draw({3, 4}, 6)));
  }
}

TEST(SamplingCuda, ARowWithALogitThatIsNotFiniteHasNoToken) {
  constexpr std::int64_t kV = 300;
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t at : {0, 17, 299}) {
      for (const auto& filter : {SamplingFilter{}, {1, 5, 0.5}}) {
        Guarded<float> logits(3, kV);
        fill(logits, Kind::kNormal, 2);
        logits[1][at] = wrong;
        const KernelArray<std::int64_t> keys({9, 9, 9}), positions({0, 0, 0});
        Guarded<std::int32_t> chosen(1, 3);
        sample_tokens_cuda(logits.read(), 3, kV, filter, keys.data(), positions.data(), chosen.data(), nullptr);
        EXPECT_GE(chosen[0][0], 0);
        EXPECT_EQ(chosen[0][1], -1) << wrong << " at " << at;
        EXPECT_GE(chosen[0][2], 0);
      }
    }
  }
}

}  // namespace
}  // namespace lora_train::kernels
