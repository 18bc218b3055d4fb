// B rows, V vocabulary.
#include "lora_train/kernels/sampling/sampling.h"

#include <array>
#include <cmath>
#include <stdexcept>

#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Sampling : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(EveryPlace, Sampling,
                         ::testing::Values(Place{at::kCUDA, at::kFloat}, Place{at::kCPU, at::kFloat, true}),
                         place_name);

/// Kinds of rows of logits; each but the first has ties, or numbers that are hard on a search.
enum class Kind { kNormal, kRounded, kEqual, kPeaked, kFar, kTiny, kSteps };
constexpr std::array kKinds = {Kind::kNormal, Kind::kRounded, Kind::kEqual, Kind::kPeaked,
                               Kind::kFar,    Kind::kTiny,    Kind::kSteps};

at::Tensor logits_of(Kind kind, int64_t B, int64_t V) {
  at::manual_seed(static_cast<std::uint64_t>(V));
  const auto normal = at::randn({B, V}) * 4, ids = at::arange(V, at::kFloat).expand({B, V});
  switch (kind) {
    case Kind::kNormal: return normal;
    case Kind::kRounded: return normal.round();  // ties, with 0 and -0
    case Kind::kEqual: return at::full({B, V}, 2.5F);
    case Kind::kPeaked: return at::where(ids == 3, 900.0, normal);  // the others underflow
    case Kind::kFar: return at::where(ids.remainder(7) == 0, normal, at::where(ids.remainder(2) == 0, -3e38, -1e30));
    case Kind::kTiny: return normal * 1e-30;  // other logits, equal probabilities
    case Kind::kSteps: return ids.remainder(5) * -std::log(2.0F);
  }
  throw std::logic_error("no such kind");
}

// One token at {1.3, 0, 1e-9}; as likely as the largest at {1, 0, 0.5, 1}.
const std::vector<SamplingFilter> kFilters = {
    {0.8, 20, 0.95, 0.1}, {1, 100000}, {1, 0, 0.9999999}, {0.9, 5}, {0.7, 0, 1, 0.05}, {1, 40}, {1, 0, 0.5, 1}, {1e-6},
    {0.8, 20, 0.8},       {1, 1},      {1.3, 0, 1e-9},    {1},      {1e6, 7, 0.6},     {},      {1, 0, 0.9}};

/// The tokens of `logits`, of which rows are strided at the place, as the reference draws them.
at::Tensor expect_tokens_of_the_reference(const Place& place, const at::Tensor& values, const SamplingFilter& filter,
                                          int64_t draw = 3) {
  const int64_t B = values.size(0);
  const auto logits = with_row_gaps(values.to(at::kFloat).to(place.device));
  const auto keys = (at::arange(B, at::kLong) * 1234567891234).to(place.device);
  const auto positions = (at::arange(B, at::kLong) * ((int64_t{1} << 32) + 1) + draw).to(place.device);
  auto got = at::full({B}, 7, keys.options().dtype(at::kInt)), want = at::full_like(got, 8);
  sample_tokens(logits, filter, keys, positions, got);
  sample_tokens_reference(logits, filter, keys, positions, want);
  EXPECT_TRUE(at::equal(got, want)) << got << want << "top_k " << filter.top_k << " top_p " << filter.top_p << " min_p "
                                    << filter.min_p << " T " << filter.temperature;
  return got.cpu();
}

TEST_P(Sampling, DrawsTheTokensOfTheReference) {
  for (const int64_t V : {1, 2, 31, 250}) {
    for (const Kind kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "V " << V << " kind " << static_cast<int>(kind));
      const auto logits = logits_of(kind, 3, V);
      for (const auto& filter : kFilters) {
        for (int64_t draw = 0; draw < (V > 2 ? 2 : 1); ++draw) {
          expect_tokens_of_the_reference(place, logits, filter, draw);
        }
      }
    }
  }
  for (const int64_t V : {5000, 20011}) {  // several groups a thread
    for (const auto& filter : {SamplingFilter{}, {0.7}, {1, 10}, {1, 0, 0.8}, {0.9, 30, 0.9, 0.02}}) {
      expect_tokens_of_the_reference(place, logits_of(Kind::kNormal, 2, V), filter);
    }
  }
}

/// The sums of later passes are rounded otherwise than the first, so a share of nearly all may never be reached.
TEST_P(Sampling, AShareThatRoundingKeepsFromBeingReachedIsAllTokens) {
  // A part of the range that is lost is lost with its share of the tokens.
  expect_tokens_of_the_reference(place, uniform({24, 3001}, 3), {1, 0, std::nextafter(1.0, 0.0)});
}

TEST_P(Sampling, ZeroAndMinusZeroAreEqual) {
  const auto ids = at::arange(40).expand({2, 40});
  auto logits = at::where(ids.remainder(2) == at::arange(2).unsqueeze(1), 0.0, -0.0);
  logits.slice(1, 0, 5).fill_(-1);
  EXPECT_TRUE(at::equal(expect_tokens_of_the_reference(place, logits, {}), at::tensor({5, 5}, at::kInt)));
  for (int64_t draw = 0; draw < 8; ++draw) expect_tokens_of_the_reference(place, logits, {0.5, 1}, draw);
}

TEST_P(Sampling, ARowWithALogitThatIsNotFiniteHasNoToken) {
  for (const double wrong : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const int64_t at : {0, 17, 299}) {
      for (const auto& filter : {SamplingFilter{}, {1, 5, 0.5}}) {
        auto logits = logits_of(Kind::kNormal, 3, 300);
        logits[1][at] = wrong;
        const auto got = expect_tokens_of_the_reference(place, logits, filter);
        EXPECT_TRUE(at::equal(got.lt(0), at::tensor({0, 1, 0}, at::kInt).to(at::kBool))) << wrong << " at " << at;
      }
    }
  }
}

TEST(Sampling, RefusesAnotherNumberOfRows) {
  const auto logits = at::zeros({2, 5}), numbers = at::zeros({2}, at::kLong);
  auto three = at::zeros({3}, at::kInt), two = at::zeros({2}, at::kInt);
  EXPECT_THROW(sample_tokens(logits, {}, numbers, numbers, three), ShapeError);
  EXPECT_THROW(sample_tokens(logits, {}, numbers, numbers.narrow(0, 0, 1), two), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
