// Numbers too: only GPUs take these kernels elsewhere.
#include <algorithm>
#include <limits>

#include "kernels/attention/attention_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

TEST(RaggedTablesCuda, SayWhereDocumentsBeginAndHowLongTheyAre) {
  for (const std::int64_t num_docs : {1, 5, 300, 1000}) {
    Guarded<std::int32_t> q(1, num_docs + 1), k(1, num_docs + 1);
    q.data()[0] = k.data()[0] = 0;
    for (std::int64_t d = 0; d < num_docs; ++d) {
      q.data()[d + 1] = q.data()[d] + static_cast<std::int32_t>(d * 7 % 5);  // some are empty
      k.data()[d + 1] = k.data()[d] + static_cast<std::int32_t>(d * 7 % 5 + 2);
    }
    const RaggedTables tables{3, {4608, 1'000'000'007, 1}, {false, true, false}};
    const std::int64_t row = (num_docs + 1 + 15) / 16 * 16, length_row = (num_docs + 31) / 32 * 32;
    Guarded<std::int64_t> begins(3, row);
    Guarded<std::int32_t> lengths(2, length_row);
    const auto launch = [&] {
      ragged_tables_cuda(q.data(), k.data(), num_docs, tables, begins.data(), row, lengths.data(), length_row, nullptr);
    };
    expect_guarded(launch, {&begins, &lengths}, {&q, &k});
    for (std::int64_t d = 0; d < row; ++d) {
      for (int i = 0; i < 3; ++i) {
        const std::int64_t tokens = (i == 1 ? k : q).data()[std::min(d, num_docs)];
        ASSERT_EQ(begins[i][d], tokens * tables.strides[i]) << d;
      }
    }
    for (std::int64_t d = 0; d < length_row; ++d) {
      const std::int64_t length = d < num_docs ? d * 7 % 5 : 0;
      ASSERT_EQ(lengths[0][d], length);
      ASSERT_EQ(lengths[1][d], d < num_docs ? length + 2 : 0);
    }
  }
}

/// [N, H] both ways round, and documents that are empty, of one token, and longer than a block.
TEST(LseCuda, IsPaddedPerDocumentAndBack) {
  const KernelArray<std::int32_t> cu_seqlens({0, 0, 5, 6, 6, 6, 306, 563, 563});
  constexpr std::int64_t kDocs = 8, H = 3, N = 563, kRow = 320;
  for (const auto& [token_stride, head_stride] : {std::pair<std::int64_t, std::int64_t>{H, 1}, {1, N}}) {
    const std::int64_t of_token = token_stride, of_head = head_stride;
    Guarded<float> lse(1, N * H), back(1, N * H), padded(kDocs * H, kRow);
    lse.fill([](auto, auto i) { return static_cast<float>(i); });
    expect_guarded(
        [&] {
          pad_lse_cuda(cu_seqlens.data(), kDocs, H, {lse.data(), of_token, of_head}, padded.data(), kRow, nullptr);
        },
        {&padded}, {&lse});
    for (std::int64_t d = 0; d < kDocs; ++d) {
      const std::int64_t begin = cu_seqlens[static_cast<std::size_t>(d)];
      const std::int64_t length = cu_seqlens[static_cast<std::size_t>(d) + 1] - begin;
      for (std::int64_t h = 0; h < H; ++h) {
        for (std::int64_t i = 0; i < kRow; ++i) {
          const float want =
              i < length ? lse.data()[(begin + i) * of_token + h * of_head] : std::numeric_limits<float>::infinity();
          ASSERT_EQ(padded[d * H + h][i], want) << d << " " << h << " " << i;
        }
      }
    }
    expect_guarded(
        [&] {
          unpad_lse_cuda(cu_seqlens.data(), kDocs, H, padded.data(), kRow, {back.data(), of_token, of_head}, nullptr);
        },
        {&back}, {&padded});
    EXPECT_TRUE(back.bytes() == lse.bytes());
  }
}

}  // namespace
}  // namespace lora_train::kernels
