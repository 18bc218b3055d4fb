// The kernels that the profile key `kernels` can set, and their settings.
#pragma once

#include <array>
#include <string_view>

namespace lora_train {

enum class KernelName {
  kRmsNorm,
  kRope,             ///< with the norm of q and k heads
  kGatedActivation,  ///< gated activations, GeGLU and the gate of attention's output too
  kGatedDelta,       ///< the gated delta net: convolution, rule, gated norm
  kEmbedding,
  kCrossEntropy,
  kLora,
  kDropout,
  kAdamw,  ///< with the gradient norm
  kCast,
  kGemm,  ///< matrix products: cuBLASLt on a GPU; the reference is ATen's
};

constexpr std::array<std::string_view, 11> kKernelNames = {"rms_norm",  "rope",          "swiglu", "gated_delta",
                                                           "embedding", "cross_entropy", "lora",   "dropout",
                                                           "adamw",     "cast",          "gemm"};

enum class KernelSetting {
  kAuto,       ///< native if device and dtype have one, else the reference
  kReference,  ///< the reference, on every device
  kNative      ///< native; DeviceError if there is none. "own" in a profile
};

}  // namespace lora_train
