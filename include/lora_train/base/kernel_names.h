// The kernels that profile key `kernels` chooses for.
#pragma once

#include <array>
#include <string_view>

namespace lora_train {

enum class KernelName {
  kRmsNorm,
  kRope,    ///< with the norm of q and k heads
  kSwiglu,  ///< gated activations, GeGLU too
  kEmbedding,
  kCrossEntropy,
  kLora,
  kDropout,
  kAdamw,  ///< with the gradient norm
  kCast,
  kGemm,  ///< matrix products: cuBLASLt on a GPU; the reference is ATen's
};

constexpr std::array<std::string_view, 10> kKernelNames = {
    "rms_norm", "rope", "swiglu", "embedding", "cross_entropy", "lora", "dropout", "adamw", "cast", "gemm"};

}  // namespace lora_train
