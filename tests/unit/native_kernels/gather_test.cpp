#include <numeric>

#include "kernels/embedding/embedding_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_rows, D, gap;
  bool is_aligned;
};

// Odd widths, rows of more than one turn of a block, gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 0, true},    {9, 7, 1, true},    {17, 64, 8, true}, {6, 520, 0, false},
                                    {5, 2568, 8, true}, {13, 300, 3, true}, {4, 64, 3, true}};

/// Which of num_rows rows are picked: none, some, the last one alone, all.
std::vector<std::vector<std::int64_t>> choices(std::int64_t num_rows) {
  std::vector<std::int64_t> some, all(static_cast<std::size_t>(num_rows));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t n = 0; n < num_rows; ++n) {
    if (n % 5 == 1 || n % 5 == 2 || n % 7 == 6) some.push_back(n);
  }
  return {{}, some, {num_rows - 1}, all};
}

template <class T>
class GatherCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(GatherCuda, Elements);

TYPED_TEST(GatherCuda, PicksRows) {
  for (const auto& s : kShapes) {
    for (const auto& choice : choices(s.num_rows)) {
      const KernelArray<std::int64_t> rows(choice);
      const auto count = static_cast<std::int64_t>(rows.size());
      Guarded<TypeParam> from(s.num_rows, s.D, s.gap, s.is_aligned);
      Guarded<TypeParam> to(std::max<std::int64_t>(count, 1), s.D, 8, s.is_aligned);
      from.fill_uniform(1);
      run_in_both_orders(
          to, [&] { gather_rows_cuda(from.read(), rows.data(), to.rows(), count, s.num_rows, s.D, nullptr); });
      for (std::int64_t m = 0; m < count; ++m) {
        const TypeParam* const want = from[rows[static_cast<std::size_t>(m)]];
        ASSERT_EQ(0, std::memcmp(to[m], want, static_cast<std::size_t>(s.D) * sizeof(TypeParam))) << m;
      }
      EXPECT_TRUE(to.is_intact() && from.is_intact());
    }
  }
}

TYPED_TEST(GatherCuda, PutsRowsBack) {
  for (const auto& s : kShapes) {
    for (const auto& choice : choices(s.num_rows)) {
      const KernelArray<std::int64_t> rows(choice);
      const auto count = static_cast<std::int64_t>(rows.size());
      Guarded<TypeParam> from(std::max<std::int64_t>(count, 1), s.D, s.gap, s.is_aligned);
      Guarded<TypeParam> to(s.num_rows, s.D, 8, s.is_aligned);
      from.fill_uniform(1);
      to.fill([](auto, auto) { return 3.0F; });
      scatter_rows_cuda(from.read(), rows.data(), to.rows(), count, s.num_rows, s.D, nullptr);
      for (std::int64_t n = 0, m = 0; n < s.num_rows; ++n) {
        const bool is_picked = m < count && rows[static_cast<std::size_t>(m)] == n;
        for (std::int64_t d = 0; d < s.D; ++d)
          ASSERT_EQ(to.at(n, d), is_picked ? from.at(m, d) : 3.0) << n << ", " << d;
        m += is_picked ? 1 : 0;
      }
      EXPECT_TRUE(to.is_intact());
    }
  }
}

TYPED_TEST(GatherCuda, RowsPastTheEndAreNotTouched) {
  const KernelArray<std::int64_t> rows = {1, 4, 1000000};
  Guarded<TypeParam> from(3, 64), to(4, 64), picked(3, 64);
  from.fill_uniform(1);
  to.fill([](auto, auto) { return 3.0F; });
  scatter_rows_cuda(from.read(), rows.data(), to.rows(), 3, 4, 64, nullptr);
  gather_rows_cuda(to.read(), rows.data(), picked.rows(), 3, 4, 64, nullptr);
  for (std::int64_t d = 0; d < 64; ++d) {
    EXPECT_EQ(to.at(1, d), from.at(0, d));
    EXPECT_EQ(to.at(3, d), 3.0);
    EXPECT_EQ(picked.at(0, d), from.at(0, d));
    EXPECT_EQ(picked.at(1, d), 0.0);
    EXPECT_EQ(picked.at(2, d), 0.0);
  }
  EXPECT_TRUE(to.is_intact() && from.is_intact() && picked.is_intact());
}

}  // namespace
}  // namespace lora_train::kernels
