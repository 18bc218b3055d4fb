// Which of cuBLASLt's algorithms computes a product: its own first choice, or the fastest of those that it offers.
#pragma once

#include <string>

namespace lora_train::kernels {

struct CudaGemm;
struct CudaLibrary;
class Tuner;

/// While it lives, each product on CUDA whose class has no algorithm yet is given one before it is computed: the tuner's, or
/// by measuring on the operands at hand. y is what it was, but for 1e-30 of the product where it accumulates, and is then
/// computed as asked. For the time before step 1, never while a graph is captured. One at a time.
class GemmTuning {
 public:
  explicit GemmTuning(Tuner& tuner);
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
};

/// All that the algorithm of a product depends on, its n (tokens, or rows of the loss head) as gemm_class() has it.
std::string gemm_key(const CudaGemm& gemm, bool tf32);

namespace detail {
extern Tuner* gemm_tuner;
void tune_gemm(const CudaLibrary& cuda, const CudaGemm& gemm);
}  // namespace detail

}  // namespace lora_train::kernels
