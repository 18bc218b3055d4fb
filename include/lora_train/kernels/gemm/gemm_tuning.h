// Autotuning of cuBLASLt: chooses the fastest of the algorithms that it offers.
#pragma once

#include <string>

namespace lora_train::kernels {

struct CudaGemm;
struct CudaLibrary;
class Tuner;

/// While an instance exists, a CUDA product whose class has no algorithm yet gets one before it runs: from the tuner's tables, or
/// by timing the candidates on the given operands. Timing leaves y unchanged (if it accumulates: adds 1e-30 times the product);
/// then y is computed as requested. Use it before step 1, never inside a capture, one instance at a time.
class GemmTuning {
 public:
  explicit GemmTuning(Tuner& tuner);
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
};

/// The tuning key of a product: everything its algorithm depends on, with n (tokens, or rows of the loss head) as a class.
std::string gemm_key(const CudaGemm& gemm, bool tf32);

namespace detail {
extern Tuner* gemm_tuner;
void tune_gemm(const CudaLibrary& cuda, const CudaGemm& gemm);
}  // namespace detail

}  // namespace lora_train::kernels
