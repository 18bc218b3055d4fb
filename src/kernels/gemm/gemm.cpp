#include "lora_train/kernels/gemm/gemm.h"

#include "dispatch/arguments.h"
#include "gemm_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/dispatch/tuning.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::kernels {
namespace {

void check_operands(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const GemmExtras& extras) {
  check_shape("gemm", "a", a, {-1, -1});
  check_floating("gemm", "a", a);
  check_shape("gemm", "b", b, {a.size(1), -1});
  if (!b.is_cpu() || !is_widened(b, a)) check_dtype("gemm", "b", b, a.scalar_type());
  check_rows("gemm", "y", y, {a.size(0), b.size(1)});
  if (a.scalar_type() != at::kBFloat16 || y.scalar_type() != at::kFloat) check_dtype("gemm", "y", y, a.scalar_type());
  if (extras.bias.defined()) check_vector("gemm", "bias", extras.bias, b.size(1), y.scalar_type());
  if (!extras.residual.defined()) return;
  check_rows("gemm", "residual", extras.residual, y.sizes(), y.scalar_type());
  if (extras.accumulate) throw ShapeError("gemm", "residual and accumulate together; expected at most one of them");
  if (extras.residual.is_same(y) ||
      (y.numel() > 0 && !y.is_meta() && extras.residual.const_data_ptr() == y.const_data_ptr())) {
    throw ShapeError("gemm", "residual is y itself; use accumulate instead");
  }
}

MatrixView view_of(const at::Tensor& t) { return {t.size(0), t.size(1), t.stride(0), t.stride(1)}; }

GemmType gemm_type(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 ? GemmType::kBFloat16 : GemmType::kFloat;
}

constexpr int kMaxAlgorithms = 12;
constexpr float kHardlyAnything = 1e-30F;

/// Like `gemm`, but leaves an accumulated output nearly unchanged, so runs may be repeated.
CudaGemm repeatable(CudaGemm gemm) {
  if (gemm.c == gemm.d) gemm.alpha = kHardlyAnything;
  return gemm;
}

std::vector<TuningCandidate> candidates(const CudaLibrary& cuda, const CudaGemm& gemm) {
  std::vector<TuningCandidate> found;
  for (const std::string& algorithm : cuda.gemm_algorithms(gemm, kMaxAlgorithms)) {
    found.push_back({algorithm, [&cuda, call = repeatable(gemm), algorithm] {
                       if (!cuda.gemm_by(call, algorithm)) throw DeviceError("gemm", "invalid algorithm text");
                     }});
  }
  return found;
}

Tuner* gemm_tuner = nullptr;

void tune_gemm(const CudaLibrary& cuda, const CudaGemm& gemm) {
  const auto use = [&](const std::string& algorithm) { return cuda.use_gemm_algorithm(gemm, algorithm); };
  const auto chosen =
      gemm_tuner->choose({gemm_key(gemm, cuda_settings().tf32), use, [&] { return candidates(cuda, gemm); }});
  if (chosen) use(*chosen);
}

/// False if cuBLASLt does not apply: fp64, an empty product, a view that it cannot describe.
bool gemm_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const GemmExtras& extras) {
  const CudaLibrary* const cuda = cuda_library();
  if (cuda == nullptr || a.scalar_type() == at::kDouble || y.numel() == 0 || a.size(1) == 0) return false;
  const at::Tensor& c = extras.residual.defined() ? extras.residual : y;
  const auto layout = column_major_gemm(view_of(a), view_of(b), view_of(c), view_of(y));
  if (!layout) return false;
  CudaGemm call;
  call.layout = *layout;
  call.operands = gemm_type(a);
  call.result = gemm_type(y);
  call.a = b.const_data_ptr();
  call.b = a.const_data_ptr();
  call.c = extras.residual.defined() || extras.accumulate ? c.const_data_ptr() : nullptr;
  call.d = y.mutable_data_ptr();
  call.bias = extras.bias.defined() ? extras.bias.const_data_ptr() : nullptr;
  call.alpha = static_cast<float>(extras.alpha);
  if (gemm_tuner != nullptr) tune_gemm(*cuda, call);
  return cuda->gemm(call);
}

// If the dtype of y differs from that of a and b, the product is rounded to the latter first.
void gemm_mixed(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  const at::Tensor product = at::mm(a, b);
  if (extras.accumulate) {
    y.add_(product, extras.alpha);
  } else if (extras.residual.defined()) {
    at::add_out(y, extras.residual, product, extras.alpha);
  } else {
    y.copy_(product);
    if (extras.alpha != 1) y.mul_(extras.alpha);
  }
  if (extras.bias.defined()) y.add_(extras.bias);
}

// Of rows and of K, and of columns: a part of b is 4 MiB.
constexpr std::int64_t kWidenedPanel = 2048, kWidenedColumns = 512;

struct Stored {
  bool is_row_major = true;
  std::int64_t ld = 0;
};

// Strides of a dimension of size 1 have no meaning, so they may equal any required ld.
std::optional<Stored> stored(const MatrixView& view) {
  if ((view.column_stride == 1 || view.columns == 1) && (view.row_stride >= view.columns || view.rows == 1)) {
    return Stored{true, view.rows == 1 ? view.columns : view.row_stride};
  }
  if ((view.row_stride == 1 || view.rows == 1) && (view.column_stride >= view.rows || view.columns == 1)) {
    return Stored{false, view.columns == 1 ? view.rows : view.column_stride};
  }
  return std::nullopt;
}

template <class X, class W, class Y>
void run_on_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                at::Tensor& y, double alpha) {
  skinny_gemm_cpu(SkinnyGemm<X, W, Y>{read_rows<X>(x), read_rows<W>(weight), read<Y>(bias), read_rows<Y>(residual),
                                      write_rows<Y>(y), static_cast<float>(alpha), x.size(0), weight.size(0),
                                      x.size(1)});
}

template <class X, class W, class Y>
void run_packed(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  const bool is_transposed = b.stride(1) != 1;
  packed_gemm_cpu(PackedGemm<X, W, Y>{read_rows<X>(a), read<W>(b), b.stride(is_transposed ? 1 : 0), is_transposed,
                                      read<Y>(extras.bias), read_rows<Y>(extras.accumulate ? y : extras.residual),
                                      write_rows<Y>(y), static_cast<float>(extras.alpha), y.size(0), y.size(1),
                                      a.size(1), a.size(1)});
}

/// False if packed_gemm_cpu does not apply: an older CPU, fp64, an a that is transposed, an odd K in bf16.
bool gemm_packed(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  const bool is_bf16 = a.scalar_type() == at::kBFloat16;
  const bool applies = has_avx512() && a.scalar_type() != at::kDouble && y.numel() > 0 && a.size(1) > 0 &&
                       a.stride(1) == 1 && (b.stride(0) == 1 || b.stride(1) == 1) && !(is_bf16 && a.size(1) % 2 != 0);
  if (!applies) return false;
  if (is_widened(b, a)) {
    run_packed<float, Bf16, float>(a, b, y, extras);
  } else if (!is_bf16) {
    run_packed<float, float, float>(a, b, y, extras);
  } else if (y.scalar_type() == at::kFloat) {
    run_packed<Bf16, Bf16, float>(a, b, y, extras);
  } else {
    run_packed<Bf16, Bf16, Bf16>(a, b, y, extras);
  }
  return true;
}

void check_arguments(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& y) {
  constexpr auto kName = "skinny_gemm";
  check_floating(kName, "x", x, {-1, -1});
  check_rows(kName, "weight", weight, {-1, x.size(1)});
  if (!is_widened(weight, x)) check_dtype(kName, "weight", weight, x.scalar_type());
  check_rows(kName, "y", y, {x.size(0), weight.size(0)});
  if (x.scalar_type() != at::kBFloat16 || y.scalar_type() != at::kFloat) check_dtype(kName, "y", y, x.scalar_type());
  if (bias.defined()) check_vector(kName, "bias", bias, weight.size(0), y.scalar_type());
  if (residual.defined()) check_rows(kName, "residual", residual, y.sizes(), y.scalar_type());
}

}  // namespace

void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  check_operands(a, b, y, extras);
  const WorkScope recorded("gemm", extras.work_class, [&](Work& work) {
    work.reads("a", a).reads("b", b).reads("bias", extras.bias).reads("residual", extras.residual);
    extras.accumulate ? work.updates("y", y) : work.writes("y", y);
    work.multiplies(2 * a.size(0) * a.size(1) * b.size(1));
  });
  if (y.is_meta()) return;
  const bool may_use_cuda = y.is_cuda() && kernel_setting(KernelName::kGemm) != KernelSetting::kReference;
  if (may_use_cuda && gemm_cuda(a, b, y, extras)) return;
  const bool is_ours = y.is_cpu() && kernel_setting(KernelName::kGemm) != KernelSetting::kReference;
  const bool in_fp32 = is_widened(b, a) || (is_ours && a.scalar_type() == at::kBFloat16 && !has_bf16_gemm());
  run_or_capture([a, b, y, extras, is_ours, in_fp32]() mutable {
    if (is_ours && gemm_packed(a, b, y, extras)) return;
    in_fp32 ? gemm_widened(a, b, y, extras) : gemm_reference(a, b, y, extras);
  });
}

GemmTuning::GemmTuning(Tuner& tuner) { gemm_tuner = &tuner; }
GemmTuning::~GemmTuning() { gemm_tuner = nullptr; }

std::string gemm_key(const CudaGemm& gemm, bool tf32) {
  const ColumnMajorGemm& g = gemm.layout;
  const auto type = [](GemmType t) { return t == GemmType::kBFloat16 ? "bf16" : "fp32"; };
  const auto alignment = [](const void* p) { return alignment_of(reinterpret_cast<std::uintptr_t>(p)); };
  const void* const c = gemm.c != nullptr ? gemm.c : gemm.d;
  return fmt::format("gemm {}{} -> {} m{} n{} k{} {}{} ld {},{},{},{}{}{} aligned {},{},{},{}", type(gemm.operands),
                     tf32 && gemm.operands == GemmType::kFloat ? " tf32" : "", type(gemm.result), g.m, gemm_class(g.n),
                     g.k, g.transpose_a ? "T" : "N", g.transpose_b ? "T" : "N", g.lda, g.ldb, g.ldc, g.ldd,
                     gemm.c == nullptr  ? ""
                     : gemm.c == gemm.d ? " accumulates"
                                        : " adds",
                     gemm.bias != nullptr ? " bias" : "", alignment(gemm.a), alignment(gemm.b), alignment(c),
                     alignment(gemm.d));
}

void gemm_reference(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  if (a.scalar_type() != y.scalar_type()) return gemm_mixed(a, b, y, extras);
  if (extras.accumulate || extras.residual.defined()) {
    at::addmm_out(y, extras.accumulate ? y : extras.residual, a, b, 1, extras.alpha);
    if (extras.bias.defined()) y.add_(extras.bias);
  } else if (extras.bias.defined()) {
    at::addmm_out(y, extras.bias, a, b, 1, extras.alpha);
  } else if (extras.alpha != 1) {
    at::addmm_out(y, y, a, b, 0, extras.alpha);
  } else {
    at::mm_out(y, a, b);
  }
}

void gemm_widened(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras) {
  const auto panel = [](const at::Tensor& t, std::int64_t dim, std::int64_t begin, std::int64_t size = kWidenedPanel) {
    return t.narrow(dim, begin, std::min(size, t.size(dim) - begin));
  };
  for (std::int64_t m = 0; m < a.size(0); m += kWidenedPanel) {
    const at::Tensor rows = panel(a, 0, m);
    for (std::int64_t n = 0; n < b.size(1); n += kWidenedColumns) {
      const auto part = [&](const at::Tensor& t) { return panel(panel(t, 0, m), 1, n, kWidenedColumns); };
      at::Tensor sum = at::zeros(part(y).sizes(), rows.options().dtype(at::kFloat));
      for (std::int64_t k = 0; k < a.size(1); k += kWidenedPanel) {
        sum.addmm_(panel(rows, 1, k).to(at::kFloat), panel(panel(b, 0, k), 1, n, kWidenedColumns).to(at::kFloat));
      }
      if (extras.alpha != 1) sum.mul_(extras.alpha);
      if (extras.accumulate) sum.add_(part(y));
      if (extras.residual.defined()) sum.add_(part(extras.residual));
      if (extras.bias.defined()) sum.add_(panel(extras.bias, 0, n, kWidenedColumns));
      part(y).copy_(sum);
    }
  }
}

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

void skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                 at::Tensor& y, double alpha) {
  check_arguments(x, weight, bias, residual, y);
  const bool is_ours =
      x.is_cpu() && x.scalar_type() != at::kDouble && kernel_setting(KernelName::kGemm) != KernelSetting::kReference;
  if (!is_ours) {
    const bool adds = residual.defined() && residual.is_same(y);
    return gemm(x, weight.to(x.scalar_type()).t(), y,
                {.bias = bias, .residual = adds ? at::Tensor() : residual, .accumulate = adds, .alpha = alpha});
  }
  if (is_widened(weight, x)) return run_on_cpu<float, Bf16, float>(x, weight, bias, residual, y, alpha);
  if (x.scalar_type() == at::kFloat) return run_on_cpu<float, float, float>(x, weight, bias, residual, y, alpha);
  if (y.scalar_type() == at::kFloat) return run_on_cpu<Bf16, Bf16, float>(x, weight, bias, residual, y, alpha);
  run_on_cpu<Bf16, Bf16, Bf16>(x, weight, bias, residual, y, alpha);
}

}  // namespace lora_train::kernels
