// Work accounting: kernels report the bytes, FLOPs and launches of every call to a recorder, if one is set; otherwise a
// call costs one branch. On meta tensors, kernels compute nothing, so a step of any shape can be counted without
// memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace lora_train::kernels {

enum class WorkClass {
  kGemm,  ///< products of activations with a weight
  kLora,  ///< products with a skinny operand: S = x A^T, dA, dB, dx += dS A
  kAttention,
  kNorm,
  kRope,  ///< including the norm of q and k heads
  kGatedActivation,
  kGatedDelta,  ///< the gated delta net besides its linears: convolution, rule, gated norm
  kLoss,        ///< cross entropy, and gathering the rows of the loss head
  kEmbedding,
  kDropout,
  kOptimizer,  ///< gradient norm, update, and everything derived from the new masters
  kDecode,     ///< quantised weights into compute matrices
  kCopy
};
constexpr std::array<std::string_view, 13> kWorkClassNames = {
    "gemm", "lora",      "attention", "norm",      "rope",   "swiglu", "gated_delta",
    "loss", "embedding", "dropout",   "optimizer", "decode", "copy"};

/// One tensor of a call, and its memory traffic.
struct WorkOperand {
  std::string_view name;
  std::vector<std::int64_t> sizes;
  std::int64_t bytes_read = 0, bytes_written = 0;
  const void* storage = nullptr;  ///< identifies the buffer, on the meta device too; null: the kernel's own memory
  std::int64_t offset = 0;        ///< first element in it
};

/// One call. Counts the bytes that the native CUDA kernels move, for cuBLASLt one pass over every operand; ignores
/// caches. FLOPs are those of matrix products, 2 per multiply-add; element-wise arithmetic does not count.
struct Work {
  std::string_view name;
  WorkClass work_class = WorkClass::kCopy;
  std::vector<WorkOperand> operands;
  std::int64_t flops = 0;
  std::int64_t num_launches = 1;  ///< on a GPU, library calls included

  /// Count the elements of t as read (`times` times), written, or both. An undefined tensor adds nothing.
  Work& reads(std::string_view operand, const at::Tensor& t, std::int64_t times = 1) {
    return moves(operand, t, times, 0);
  }
  Work& writes(std::string_view operand, const at::Tensor& t) { return moves(operand, t, 0, 1); }
  Work& updates(std::string_view operand, const at::Tensor& t) { return moves(operand, t, 1, 1); }
  Work& moves(std::string_view operand, const at::Tensor& t, std::int64_t num_reads, std::int64_t num_writes);

  Work& reads_bytes(std::string_view operand, std::int64_t bytes) { return moves_bytes(operand, bytes, 0); }
  Work& writes_bytes(std::string_view operand, std::int64_t bytes) { return moves_bytes(operand, 0, bytes); }
  /// Scratch memory that the kernel writes and reads back.
  Work& passes_through(std::string_view operand, std::int64_t bytes) { return moves_bytes(operand, bytes, bytes); }
  Work& moves_bytes(std::string_view operand, std::int64_t num_read, std::int64_t num_written);

  Work& multiplies(std::int64_t num_flops) {
    flops += num_flops;
    return *this;
  }
  Work& launches(std::int64_t count) {
    num_launches = count;
    return *this;
  }

  std::int64_t bytes_read() const;
  std::int64_t bytes_written() const;
};

inline std::int64_t bytes_of(const at::Tensor& t) { return t.numel() * static_cast<std::int64_t>(t.element_size()); }

/// Notified before and after every outermost kernel call, in the calling thread.
class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  virtual void begin(const Work& work) = 0;
  virtual void end(const Work& work) = 0;
};

/// Sets the recorder; null removes it. While one is set, only one thread may call kernels.
void set_work_recorder(WorkRecorder* recorder);

namespace detail {
extern WorkRecorder* work_recorder;
extern bool is_inside_work;  ///< inside another call, which reports for both
}  // namespace detail

/// Reports a kernel call that lasts to the end of the scope. Calls describe(Work&) only when a recorder is set.
class WorkScope {
 public:
  template <class Describe>
  WorkScope(std::string_view name, WorkClass work_class, const Describe& describe) {
    if (detail::work_recorder == nullptr || std::exchange(detail::is_inside_work, true)) return;
    work_ = std::make_unique<Work>(Work{name, work_class, {}});
    describe(*work_);
    detail::work_recorder->begin(*work_);
  }
  ~WorkScope() {
    if (work_ != nullptr) finish();
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  void finish();
  std::unique_ptr<Work> work_;
};

}  // namespace lora_train::kernels
