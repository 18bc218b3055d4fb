// Kernels that take many matrices in one launch, by a table of segments, or many documents, by a table of where they begin. The
// latter with numbers too: only GPUs take these kernels elsewhere.
#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/attention/attention_parts.h"
#include "kernels/cast/cast_parts.h"
#include "kernels/quantized_weight/quantized_weight_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

/// A table of segments, which matrix i adds by add(i, its first block), and their blocks.
template <class Segment>
struct Table {
  Guarded<Segment> segments;
  std::vector<std::int32_t> owners;

  template <class Add>
  Table(std::size_t count, const Add& add) : segments(1, static_cast<std::int64_t>(count)) {
    for (std::size_t i = 0; i < count; ++i) {
      segments.data()[i] = add(i, std::ssize(owners));
      owners.insert(owners.end(), static_cast<std::size_t>(num_blocks(segments.data()[i])),
                    static_cast<std::int32_t>(i));
    }
  }
  /// launch(segments, owner of each block, number of blocks), which is one launch unless there are no blocks.
  template <class Launch>
  void expect_guarded_segments(const Launch& launch, const std::vector<GuardedBytes*>& outputs,
                               std::vector<GuardedBytes*> inputs) {
    const KernelArray<std::int32_t> segment_of_block(owners);
    inputs.push_back(&segments);
    const auto before = num_launches();
    expect_guarded([&] { launch(segments.data(), segment_of_block.data(), std::ssize(owners), nullptr); }, outputs,
                   inputs);
    EXPECT_EQ(num_launches() - before, before < 0 || owners.empty() ? 0 : 2);
  }
};

struct Copy {
  std::int64_t num_rows, width, from_gap = 0, to_gap = 0;
  bool is_aligned = true;
};

// Adapter columns (narrow, far apart), flat buffers that are one long row, odd widths, misaligned rows, nothing at all; blocks end
// inside of rows and between them.
const std::vector<Copy> kCopies = {{1, 1},    {5, 7, 1, 2},  {5, 16, 1, 8},  {33, 17, 0, 8},  {300, 16, 0, 48},
                                   {0, 8},    {3, 0, 8, 8},  {5, 16, 8, 1},  {700, 64, 0, 8}, {2, 1032, 8, 16},
                                   {1, 5000}, {3, 24, 8, 8}, {70, 4, 0, 12}, {700, 15, 0, 3}, {1, 4104, 0, 0, false}};

template <class To>
void expect_guarded_copies(const std::vector<Copy>& copies) {
  std::vector<std::unique_ptr<Guarded<float>>> from;
  std::vector<std::unique_ptr<Guarded<To>>> to;
  std::vector<GuardedBytes*> inputs, outputs;
  Table<CopySegment> table(copies.size(), [&](std::size_t i, std::int64_t first_block) {
    const Copy& c = copies[i];
    inputs.push_back(from.emplace_back(new Guarded<float>(c.num_rows, c.width, c.from_gap, c.is_aligned)).get());
    outputs.push_back(to.emplace_back(new Guarded<To>(c.num_rows, c.width, c.to_gap, c.is_aligned)).get());
    from[i]->fill_uniform(static_cast<unsigned>(i));
    return copy_segment<To>(from[i]->read(), 0.7F, to[i]->rows(), c.num_rows, c.width, first_block);
  });
  table.expect_guarded_segments(scaled_copies_cuda<To>, outputs, inputs);
}

TEST(ScaledCopiesCuda, StayInTheirRowsInOneLaunch) {
  expect_guarded_copies<float>(kCopies);
  expect_guarded_copies<Bf16>(kCopies);
}

TEST(ScaledCopiesCuda, OfNothingLaunchNothing) { expect_guarded_copies<float>({{0, 8}, {1, 0}}); }

enum class Kind { kNf4, kNested, kInt8, kFp8, kFloat, kBf16 };

struct Shape {
  Kind kind;
  std::int64_t num_rows, width, gap = 0;
  bool is_aligned = true;

  bool is_4_bits() const { return kind == Kind::kNf4 || kind == Kind::kNested; }
  RowShape rows(std::int64_t row_gap) const { return {num_rows, width, row_gap, is_aligned}; }
};

// Odd widths, misaligned rows, blocks that cross rows, more than one block of threads, matrices of nothing.
const std::vector<Shape> kShapes = {
    {Kind::kNested, 9, 64, 0, false}, {Kind::kNested, 5, 7, 1}, {Kind::kBf16, 9, 64, 0, false}, {Kind::kFp8, 33, 40, 8},
    {Kind::kInt8, 9, 64, 0, false},   {Kind::kBf16, 5, 7, 1},   {Kind::kFloat, 300, 16, 24},    {Kind::kFp8, 9, 17, 1},
    {Kind::kNested, 70, 136, 8},      {Kind::kInt8, 3, 5, 3},   {Kind::kFloat, 70, 136, 8},     {Kind::kFp8, 3, 0, 8},
    {Kind::kBf16, 70, 136, 8},        {Kind::kFloat, 0, 8},     {Kind::kInt8, 70, 136, 8},      {Kind::kFloat, 1, 1},
    {Kind::kNf4, 70, 136, 16},        {Kind::kNf4, 0, 8},       {Kind::kFp8, 70, 136, 1},       {Kind::kNf4, 1, 1}};

constexpr std::int32_t kBlockShift = 4, kNestedShift = 3, kRowShift = 2, kColumnShift = 3;
std::int64_t blocks_of(std::int64_t count, std::int32_t shift) { return ((count - 1) >> shift) + 1; }

std::int64_t num_scales(const Shape& s) {
  if (s.kind == Kind::kInt8) return s.num_rows;
  if (s.kind == Kind::kFp8) return blocks_of(s.num_rows, kRowShift) * blocks_of(s.width, kColumnShift);
  return blocks_of(s.num_rows * s.width, kBlockShift);
}

/// Codes (or plain elements), scales and maps that end where the format ends.
template <class To>
struct Matrix {
  explicit Matrix(const Shape& shape)
      : s(shape),
        codes(1, s.is_4_bits() ? (s.num_rows * s.width + 1) / 2 : s.num_rows * s.width, 0, s.is_aligned),
        scale_codes(1, num_scales(s)),
        scales(1, s.kind == Kind::kNested ? blocks_of(num_scales(s), kNestedShift) : num_scales(s)),
        map(1, 16),
        nested_map(1, 256),
        floats(s.rows(8)),
        bf16s(s.rows(8)),
        to(s.rows(s.gap)) {
    for (auto* bytes : {&codes, &scale_codes})
      bytes->fill([](auto, auto i) { return static_cast<float>(i * 37 % 127); });
    for (auto* values : {&scales, &map, &nested_map, &floats}) values->fill_uniform(1);
    bf16s.fill_uniform(2);
  }
  std::vector<GuardedBytes*> inputs() { return {&codes, &scale_codes, &scales, &map, &nested_map, &floats, &bf16s}; }

  DequantSegment segment(std::int64_t first_block) {
    const auto plain = [&](auto from) {
      return plain_segment(from, 0.7F, to.rows(), s.num_rows, s.width, first_block);
    };
    if (s.kind == Kind::kFloat) return plain(floats.read());
    if (s.kind == Kind::kBf16) return plain(bf16s.read());
    const bool is_fp8 = s.kind == Kind::kFp8, is_nested = s.kind == Kind::kNested;
    WeightView view{};
    view.code = s.is_4_bits() ? WeightCode::k4Bit : is_fp8 ? WeightCode::kFp8 : WeightCode::kInt8;
    view.num_rows = s.num_rows;
    view.width = s.width;
    view.codes = codes.data();
    view.map = map.data();
    view.scales = is_nested ? static_cast<const void*>(scale_codes.data()) : scales.data();
    view.nested_scales = is_nested ? scales.data() : nullptr;
    view.nested_map = nested_map.data();
    view.tiles_per_row = blocks_of(s.width, kColumnShift);
    view.block_shift = is_fp8 ? kRowShift : kBlockShift;
    view.nested_shift = is_fp8 ? kColumnShift : kNestedShift;
    return dequant_segment(view, to.rows(), first_block);
  }

  Shape s;
  Guarded<std::uint8_t> codes, scale_codes;
  Guarded<float> scales, map, nested_map, floats;
  Guarded<Bf16> bf16s;
  Guarded<To> to;
};

template <class To>
void expect_guarded_matrices(const std::vector<Shape>& shapes) {
  std::vector<std::unique_ptr<Matrix<To>>> matrices;
  std::vector<GuardedBytes*> inputs, outputs;
  Table<DequantSegment> table(shapes.size(), [&](std::size_t i, std::int64_t first_block) {
    Matrix<To>& m = *matrices.emplace_back(std::make_unique<Matrix<To>>(shapes[i]));
    outputs.push_back(&m.to);
    for (GuardedBytes* input : m.inputs()) inputs.push_back(input);
    return m.segment(first_block);
  });
  table.expect_guarded_segments(dequantize_cuda<To>, outputs, inputs);
}

TEST(DequantizeCuda, StaysInItsRowsInOneLaunch) {
  expect_guarded_matrices<float>(kShapes);
  expect_guarded_matrices<Bf16>(kShapes);
}

TEST(DequantizeCuda, OfNothingLaunchesNothing) {
  expect_guarded_matrices<float>({{Kind::kNf4, 0, 8}, {Kind::kInt8, 1, 0}});
}

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
    const auto pad = [&] {
      pad_lse_cuda(cu_seqlens.data(), kDocs, H, {lse.data(), of_token, of_head}, padded.data(), kRow, nullptr);
    };
    expect_guarded(pad, {&padded}, {&lse});
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
    const auto unpad = [&] {
      unpad_lse_cuda(cu_seqlens.data(), kDocs, H, padded.data(), kRow, {back.data(), of_token, of_head}, nullptr);
    };
    expect_guarded(unpad, {&back}, {&padded});
    EXPECT_TRUE(back.bytes() == lse.bytes());
  }
}

}  // namespace
}  // namespace lora_train::kernels
