#include "kernels/dropout/dropout_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr PhiloxKey kKey{0xa4093822u, 0x299f31d0u};

struct Shape {
  std::int64_t num_tokens, D, gap;
  bool is_aligned;
};
// Features past a whole counter, a whole pack, and more than a block takes at once; rows that allow no packs.
const std::vector<Shape> kShapes = {{1, 1, 0, true},   {3, 6, 3, true},    {5, 67, 0, true},   {4, 64, 8, true},
                                    {4, 64, 0, false}, {2, 4160, 0, true}, {2, 4161, 1, false}};

template <class T>
class DropoutCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(DropoutCuda, Elements);

template <class T>
double expected(Guarded<T>& x, const KernelArray<std::int32_t>& documents, const KernelArray<std::int32_t>& positions,
                double p, std::int64_t n, std::int64_t d) {
  const auto token = static_cast<std::size_t>(n);
  const auto words = philox4x32({static_cast<std::uint32_t>(documents[token]),
                                 static_cast<std::uint32_t>(positions[token]), static_cast<std::uint32_t>(d / 4), 0},
                                kKey);
  const double u = static_cast<double>(words[static_cast<std::size_t>(d % 4)] >> 8) / 16777216.0;
  return u >= p ? x.at(n, d) / (1 - p) : 0;
}

TYPED_TEST(DropoutCuda, DrawsTheMaskOfDocumentPositionAndFeature) {
  const KernelArray<std::int32_t> documents = {0, 3, 3, 70000, 1}, positions = {5, 0, 1, 2047, 9};
  const KernelArray<PhiloxKey> key = {kKey};
  for (const auto& [tokens, D, gap, is_aligned] : kShapes) {
    for (const double p : {0.0, 0.05, 0.5}) {
      Guarded<TypeParam> x(tokens, D, gap, is_aligned), y(tokens, D, gap, is_aligned);
      x.fill([](auto n, auto d) { return static_cast<float>(1 + (n * 7 + d) % 13); });
      const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 16777216.0));
      const auto run = [&, count = tokens, width = D](Rows<const TypeParam> from, Rows<TypeParam> to) {
        dropout_forward_cuda(from, documents.data(), positions.data(), key.data(), threshold,
                             static_cast<float>(1 / (1 - p)), to, count, width, nullptr);
      };
      std::vector<double> want;
      for (std::int64_t n = 0; n < tokens; ++n) {
        for (std::int64_t d = 0; d < D; ++d) want.push_back(expected(x, documents, positions, p, n, d));
      }
      const auto at = [&, width = D](auto n, auto d) { return want[static_cast<std::size_t>(n * width + d)]; };
      run_in_both_orders(y, [&] { run(x.read(), y.rows()); });
      if (D > 1 || p == 0) {  // one element may be dropped, and all of the reference is zero
        EXPECT_TRUE(is_near(y, tokens, D, at, element_tolerance<TypeParam>())) << D << " " << p;
      }
      run(x.read(), x.rows());  // in place
      EXPECT_EQ(0, std::memcmp(x.values().data(), y.values().data(), x.values().size() * sizeof(TypeParam)));
      EXPECT_TRUE(x.is_intact() && y.is_intact());
    }
  }
}

// A sanitizer sees a pack read or written where none may be.
TYPED_TEST(DropoutCuda, EitherSideMayBeMisaligned) {
  const KernelArray<std::int32_t> zero = {0};
  const KernelArray<PhiloxKey> key = {kKey};
  for (const bool is_x_aligned : {true, false}) {
    Guarded<TypeParam> x(1, 64, 0, is_x_aligned), y(1, 64, 0, !is_x_aligned);
    x.fill([](auto, auto d) { return static_cast<float>(1 + d); });
    dropout_forward_cuda(x.read(), zero.data(), zero.data(), key.data(), 0, 1.0F, y.rows(), 1, 64, nullptr);
    EXPECT_TRUE(is_near(
        y, 1, 64, [](auto, auto d) { return static_cast<double>(1 + d); }, 0));
  }
}

TYPED_TEST(DropoutCuda, KeepsAnElementAtTheThreshold) {
  Guarded<TypeParam> x(1, 4), y(1, 4);
  x.fill([](auto, auto) { return 1.0F; });
  const KernelArray<std::int32_t> zero = {0};
  const KernelArray<PhiloxKey> key = {kKey};
  const std::uint32_t drawn = philox4x32({0, 0, 0, 0}, kKey)[2] >> 8;
  for (const std::uint32_t above : {0u, 1u}) {
    dropout_forward_cuda(x.read(), zero.data(), zero.data(), key.data(), drawn + above, 2.0F, y.rows(), 1, 4, nullptr);
    EXPECT_EQ(y.at(0, 2), above == 0 ? 2 : 0);
  }
}

TYPED_TEST(DropoutCuda, ADroppedNaNIsZero) {
  Guarded<TypeParam> x(1, 64), y(1, 64);  // NaN everywhere
  const KernelArray<std::int32_t> zero = {0};
  const KernelArray<PhiloxKey> key = {kKey};
  dropout_forward_cuda(x.read(), zero.data(), zero.data(), key.data(), 8388608u, 2.0F, y.rows(), 1, 64, nullptr);
  std::int64_t num_zeros = 0;
  for (std::int64_t d = 0; d < 64; ++d) {
    num_zeros += y.at(0, d) == 0 ? 1 : 0;
    EXPECT_TRUE(y.at(0, d) == 0 || std::isnan(y.at(0, d)));
  }
  EXPECT_GT(num_zeros, 10);
  EXPECT_LT(num_zeros, 54);
}

}  // namespace
}  // namespace lora_train::kernels
