#include "lora_train/kernels/gemm/gemm_layout.h"

namespace lora_train::kernels {
namespace {

struct Stored {
  bool is_row_major = true;
  std::int64_t ld = 0;
};

// Strides of a dimension of size 1 mean nothing, so they may be whatever ld is wanted.
std::optional<Stored> stored(const MatrixView& view) {
  if ((view.column_stride == 1 || view.columns == 1) && (view.row_stride >= view.columns || view.rows == 1)) {
    return Stored{true, view.rows == 1 ? view.columns : view.row_stride};
  }
  if ((view.row_stride == 1 || view.rows == 1) && (view.column_stride >= view.rows || view.columns == 1)) {
    return Stored{false, view.columns == 1 ? view.rows : view.column_stride};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ColumnMajorGemm> column_major_gemm(const MatrixView& a, const MatrixView& b, const MatrixView& c,
                                                 const MatrixView& y) {
  const auto stored_a = stored(a), stored_b = stored(b), stored_c = stored(c), stored_y = stored(y);
  if (!stored_a || !stored_b || !stored_c || !stored_y) return std::nullopt;
  if (!stored_c->is_row_major || !stored_y->is_row_major) return std::nullopt;
  ColumnMajorGemm gemm;
  gemm.m = y.columns;
  gemm.n = y.rows;
  gemm.k = a.columns;
  gemm.transpose_a = !stored_b->is_row_major;
  gemm.transpose_b = !stored_a->is_row_major;
  gemm.lda = stored_b->ld;
  gemm.ldb = stored_a->ld;
  gemm.ldc = stored_c->ld;
  gemm.ldd = stored_y->ld;
  return gemm;
}

}  // namespace lora_train::kernels
