#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/attention/attention_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using testing_support::KernelArray;

TEST(RaggedTablesCuda, SayWhereDocumentsBeginAndHowLongTheyAre) {
  for (const std::int64_t num_docs : {1, 5, 300, 1000}) {
    std::vector<std::int32_t> q{0}, k{0};
    for (std::int64_t d = 0; d < num_docs; ++d) {
      q.push_back(q.back() + static_cast<std::int32_t>(d * 7 % 5));  // some are empty
      k.push_back(k.back() + static_cast<std::int32_t>(d * 7 % 5 + 2));
    }
    RaggedTables tables;
    tables.count = 3;
    const std::vector<std::int64_t> strides = {4608, 1'000'000'007, 1};
    for (int i = 0; i < 3; ++i) {
      tables.strides[i] = strides[static_cast<std::size_t>(i)];
      tables.is_of_keys[i] = i == 1;
    }
    const std::int64_t row = (num_docs + 1 + 15) / 16 * 16, length_row = (num_docs + 31) / 32 * 32;
    KernelArray<std::int64_t> begins(static_cast<std::size_t>(3 * row + 1));  // -1 everywhere
    KernelArray<std::int32_t> lengths(static_cast<std::size_t>(2 * length_row + 1));
    const KernelArray<std::int32_t> to_q(q), to_k(k);
    ragged_tables_cuda(to_q.data(), to_k.data(), num_docs, tables, begins.data(), row, lengths.data(), length_row,
                       nullptr);
    testing_support::wait_for_kernels();
    for (std::int64_t d = 0; d < row; ++d) {
      const auto document = static_cast<std::size_t>(std::min(d, num_docs));
      for (std::int64_t i = 0; i < 3; ++i) {
        const std::int64_t tokens = i == 1 ? k[document] : q[document];
        ASSERT_EQ(begins[static_cast<std::size_t>(i * row + d)], tokens * strides[static_cast<std::size_t>(i)]) << d;
      }
    }
    for (std::int64_t d = 0; d < length_row; ++d) {
      const std::int32_t length = d < num_docs ? static_cast<std::int32_t>(d * 7 % 5) : 0;
      ASSERT_EQ(lengths[static_cast<std::size_t>(d)], length);
      ASSERT_EQ(lengths[static_cast<std::size_t>(length_row + d)], d < num_docs ? length + 2 : 0);
    }
    EXPECT_EQ(begins[begins.size() - 1], -1);
    EXPECT_EQ(lengths[lengths.size() - 1], -1);
  }
}

/// [N, H] both ways round, and documents that are empty, of one token, and longer than a block.
TEST(LseCuda, IsPaddedPerDocumentAndBack) {
  const KernelArray<std::int32_t> cu_seqlens({0, 0, 5, 6, 6, 6, 306, 563, 563});
  const std::int64_t num_docs = static_cast<std::int64_t>(cu_seqlens.size()) - 1, H = 3, row = 320;
  const std::int64_t N = cu_seqlens[cu_seqlens.size() - 1];
  for (const auto& [token_stride, head_stride] : {std::pair<std::int64_t, std::int64_t>{H, 1}, {1, N}}) {
    KernelArray<float> lse(static_cast<std::size_t>(N * H + 1)), back(std::vector<float>(lse.size(), -7));
    for (std::size_t i = 0; i < lse.size(); ++i) lse[i] = static_cast<float>(i);
    KernelArray<float> padded(std::vector<float>(static_cast<std::size_t>(num_docs * H * row + 1), -7));
    pad_lse_cuda(cu_seqlens.data(), num_docs, H, {lse.data(), token_stride, head_stride}, padded.data(), row, nullptr);
    for (std::int64_t d = 0; d < num_docs; ++d) {
      const std::int64_t begin = cu_seqlens[static_cast<std::size_t>(d)];
      const std::int64_t length = cu_seqlens[static_cast<std::size_t>(d) + 1] - begin;
      for (std::int64_t h = 0; h < H; ++h) {
        for (std::int64_t i = 0; i < row; ++i) {
          const auto from = static_cast<std::size_t>((begin + i) * token_stride + h * head_stride);
          const float want = i < length ? lse[from] : std::numeric_limits<float>::infinity();
          ASSERT_EQ(padded[static_cast<std::size_t>((d * H + h) * row + i)], want) << d << " " << h << " " << i;
        }
      }
    }
    EXPECT_EQ(padded[padded.size() - 1], -7);
    unpad_lse_cuda(cu_seqlens.data(), num_docs, H, padded.data(), row, {back.data(), token_stride, head_stride},
                   nullptr);
    EXPECT_EQ(back[back.size() - 1], -7);
    for (std::size_t i = 0; i + 1 < lse.size(); ++i) ASSERT_EQ(back[i], lse[i]) << i;
  }
}

}  // namespace
}  // namespace lora_train::kernels
