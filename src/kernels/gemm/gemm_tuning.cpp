#include "lora_train/kernels/gemm/gemm_tuning.h"

#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/tuning.h"

namespace lora_train::kernels {
namespace {

constexpr int kMaxAlgorithms = 12;
constexpr float kHardlyAnything = 1e-30F;

/// As `gemm`, but what it accumulates to stays as it is: runs of it may be repeated.
CudaGemm repeatable(CudaGemm gemm) {
  if (gemm.c == gemm.d) gemm.alpha = kHardlyAnything;
  return gemm;
}

std::vector<TuningCandidate> candidates(const CudaLibrary& cuda, const CudaGemm& gemm) {
  std::vector<TuningCandidate> found;
  for (const std::string& algorithm : cuda.gemm_algorithms(gemm, kMaxAlgorithms)) {
    found.push_back({algorithm, [&cuda, call = repeatable(gemm), algorithm] {
                       if (!cuda.gemm_by(call, algorithm)) throw DeviceError("gemm", "no text of an algorithm");
                     }});
  }
  return found;
}

}  // namespace

namespace detail {

Tuner* gemm_tuner = nullptr;

void tune_gemm(const CudaLibrary& cuda, const CudaGemm& gemm) {
  const auto use = [&](const std::string& algorithm) { return cuda.use_gemm_algorithm(gemm, algorithm); };
  const auto chosen =
      gemm_tuner->choose({gemm_key(gemm, cuda_settings().tf32), use, [&] { return candidates(cuda, gemm); }});
  if (chosen) use(*chosen);
}

}  // namespace detail

GemmTuning::GemmTuning(Tuner& tuner) { detail::gemm_tuner = &tuner; }
GemmTuning::~GemmTuning() { detail::gemm_tuner = nullptr; }

std::string gemm_key(const CudaGemm& gemm, bool tf32) {
  const ColumnMajorGemm& g = gemm.layout;
  const auto number = [](const char* name, std::int64_t value) { return std::string(name) + std::to_string(value); };
  const auto type = [](GemmType t) { return t == GemmType::kBFloat16 ? "bf16" : "fp32"; };
  const auto alignment = [](const void* p) {
    return std::to_string(alignment_of(reinterpret_cast<std::uintptr_t>(p)));
  };
  const void* const c = gemm.c != nullptr ? gemm.c : gemm.d;
  std::string key = std::string("gemm ") + type(gemm.operands) +
                    (tf32 && gemm.operands == GemmType::kFloat ? " tf32" : "") + " -> " + type(gemm.result) +
                    number(" m", g.m) + number(" n", gemm_class(g.n)) + number(" k", g.k) +
                    (g.transpose_a ? " T" : " N") + (g.transpose_b ? "T" : "N");
  key += number(" ld ", g.lda) + number(",", g.ldb) + number(",", g.ldc) + number(",", g.ldd);
  key += gemm.c == nullptr ? "" : gemm.c == gemm.d ? " accumulates" : " adds";
  key += gemm.bias != nullptr ? " bias" : "";
  return key + " aligned " + alignment(gemm.a) + "," + alignment(gemm.b) + "," + alignment(c) + "," + alignment(gemm.d);
}

}  // namespace lora_train::kernels
