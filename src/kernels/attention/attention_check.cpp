#include "lora_train/kernels/attention/attention_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lora_train::kernels {
namespace {

/// Sums over the rows of a document.
struct Squares {
  double error = 0, want = 0;
};

/// Sums of squares of each row, fp64 on the CPU. A part of the rows at a time, so that the copies in fp32 stay small.
std::vector<Squares> squares_of_rows(const at::Tensor& got, const at::Tensor& want, std::int64_t num_rows) {
  constexpr std::int64_t kRows = 2048;
  const at::ScalarType type = want.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Squares> squares;
  for (std::int64_t begin = 0; begin < num_rows; begin += kRows) {
    const std::int64_t count = std::min(kRows, num_rows - begin);
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, begin, count).reshape({count, -1}).to(type); };
    const at::Tensor expected = rows(want);
    const at::Tensor sums =
        at::stack({(rows(got) - expected).square().sum(1), expected.square().sum(1)}).to(at::kCPU, at::kDouble);
    const double* const values = sums.const_data_ptr<double>();
    for (std::int64_t i = 0; i < count; ++i) squares.push_back({values[i], values[count + i]});
  }
  return squares;
}

}  // namespace

DocumentError worst_document(const at::Tensor& got, const at::Tensor& want,
                             const std::vector<std::int64_t>& cu_seqlens) {
  const std::int64_t num_rows = cu_seqlens.back();
  const std::vector<Squares> rows = squares_of_rows(got, want, num_rows);
  double of_all = 0;
  for (const Squares& row : rows) of_all += row.want;
  DocumentError worst;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    Squares sum;
    for (std::int64_t i = cu_seqlens[d]; i < cu_seqlens[d + 1]; ++i) {
      sum.error += rows[static_cast<std::size_t>(i)].error;
      sum.want += rows[static_cast<std::size_t>(i)].want;
    }
    if (sum.error == 0) continue;
    const double share = static_cast<double>(cu_seqlens[d + 1] - cu_seqlens[d]) / static_cast<double>(num_rows);
    double error = std::sqrt(sum.error / std::max(sum.want, share * of_all));
    if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst.error) worst = {static_cast<std::int64_t>(d), error};
  }
  return worst;
}

}  // namespace lora_train::kernels
