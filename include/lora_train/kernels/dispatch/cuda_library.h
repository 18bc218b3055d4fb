// liblora_train_cuda.so: all code that needs the CUDA half of LibTorch, cuBLASLt, cuDNN or NCCL. Loaded only by runs on
// CUDA; elsewhere, program and engine run without these libraries.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::kernels {

// GPUs of several processes, connected by NCCL.

/// One rank's end of the connection. One thread makes the calls; any thread may call abort() and asynchronous_error(),
/// even while a call waits. Calls throw DeviceError with NCCL's text, and always do after abort() or end().
class NcclGroup {
 public:
  /// Unless end() was called, aborts work in flight without asking other ranks.
  virtual ~NcclGroup() = default;

  /// Replaces contiguous CUDA tensors (fp32 or fp64) with their sums over all ranks, the same bits on every rank. One
  /// NCCL group, enqueued on torch's current stream. Throws DeviceError inside a graph capture.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// Overwrites contiguous CUDA tensors of any dtype with those of rank 0. Enqueued like all_reduce().
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;

  /// The fp64 scalar in device memory that abort() sets to 1: the sticky kNonFinite of the step
  /// (kernels/adamw/adamw.h).
  virtual void set_abort_flag(const at::Tensor& flag) = 0;
  /// Sets the abort flag from its own stream, waits for that, and only then ends work in flight: an update enqueued
  /// behind it sees the flag and writes nothing.
  virtual void abort() noexcept = 0;
  /// The last call of a successful run: waits until every rank has called it, at most 5 s, and frees the connection.
  virtual void end() noexcept = 0;
  /// The error of enqueued work, as text; empty if there is none, and after abort() or end().
  virtual std::string asynchronous_error() = 0;
};

constexpr std::int64_t kNcclIdBytes = 128;

/// Both require start_cuda() and throw DeviceError.
struct Nccl {
  std::string (*unique_id)();  ///< kNcclIdBytes for one group: rank 0 makes it and passes it to the others
  /// Returns once all ranks have called it with the same id. Calls `while_waiting` several times per millisecond; an
  /// exception from it ends the wait. CudaSettings::deterministic fixes NCCL's algorithm and protocol, unless the
  /// environment does.
  std::unique_ptr<NcclGroup> (*connect)(const std::string& id, int rank, int world_size,
                                        const std::function<void()>& while_waiting);
};

struct NativeKernels;

/// Process-wide settings, passed once to start_cuda().
struct CudaSettings {
  int device = 0;
  bool tf32 = false;           ///< fp32 products may round their operands to TF32
  bool deterministic = false;  ///< the same bits in every run: algorithms by heuristics, no atomics
};

/// 13000 is CUDA 13.0, 91900 cuDNN 9.19.0; driver 0: none is installed.
struct CudaVersions {
  int runtime = 0, driver = 0, cublas_lt = 0, cudnn = 0;
};

/// A GPU as seen by torch.
struct CudaDevice {
  std::string name;
  int major = 0, minor = 0, num_multiprocessors = 0;
  std::int64_t total_bytes = 0;
};

enum class GemmType { kFloat, kBFloat16 };

/// One GEMM in the terms of gemm.h. C may be D (accumulate) or null (no addend).
struct CudaGemm {
  ColumnMajorGemm layout;
  GemmType operands = GemmType::kFloat, result = GemmType::kFloat;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;  ///< bias [m], type of the result
  void* d = nullptr;
  float alpha = 1;
};

/// The shape of a cuDNN attention graph. Documents, lengths and totals are capacities: documents past the last one have
/// length 0. Strides are from token to token, in elements.
struct CudnnShape {
  std::int64_t num_docs = 0, max_len_q = 0, max_len_k = 0, total_q = 0, total_k = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_size = 0, window = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0, dout_stride = 0;
  double scale = 0;
  bool deterministic = false;

  auto operator<=>(const CudnnShape&) const = default;
};

/// cuDNN's verdict on the forward and the backward graph of a shape.
struct CudnnPlan {
  std::string refusal;                                 ///< empty: both are supported
  std::string engines;                                 ///< "eng2_k24=7 eng6_k24=26"
  std::int64_t forward_bytes = 0, backward_bytes = 0;  ///< workspaces
};

/// One attention backend. Contracts in kernels/attention/attention.h. The caller has checked the arguments, and has set
/// the device copies of cu_seqlens and the maximum lengths. At least one document is not empty; every such document has
/// queries, and at least as many keys.
struct CudaAttention {
  void (*forward)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                  at::Tensor& out, at::Tensor& lse);
  void (*backward)(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                   AttentionGradients& gradients);
};

/// The function table of the library. All functions except versions(), num_devices() and check_cudnn_plan() need a
/// device, and a call of start() first. They throw DeviceError with statement and location, run on torch's current
/// stream, and are not thread-safe.
struct CudaLibrary {
  CudaVersions (*versions)();
  int (*num_devices)();  ///< 0 without a driver
  CudaDevice (*device)(int index);
  void (*start)(const CudaSettings& settings);  ///< allocates the fixed workspaces; call once
  void* (*stream)();                            ///< torch's current cudaStream_t
  bool (*gemm)(const CudaGemm& gemm);           ///< false: cuBLASLt has no algorithm, and D is unchanged
  /// At most `most` algorithms for a product, as opaque text, cuBLASLt's first choice first.
  std::vector<std::string> (*gemm_algorithms)(const CudaGemm& gemm, int most);
  bool (*gemm_by)(const CudaGemm& gemm, const std::string& algorithm);  ///< like gemm(); also false for an invalid text
  /// Selects an algorithm for the class of this product (gemm_class). False: it does not support this product.
  bool (*use_gemm_algorithm)(const CudaGemm& gemm, const std::string& algorithm);
  CudaAttention fa2, efficient, cudnn;
  /// Checks the graphs of a shape without a device: `gpu_json` describes one as cuDNN serialises it. Needs a
  /// libcuda.so.1; a stub will do. Reports workspaces only with compilation, which takes seconds.
  CudnnPlan (*check_cudnn_plan)(const CudnnShape& shape, const std::string& gpu_json, int sm_version,
                                bool with_compilation);
  const NativeKernels* native_kernels;
  std::unique_ptr<Graph> (*capture)(const std::function<void()>& body);  ///< kernels/launch/graph.h
  Nccl nccl;
};

/// Loads <torch>/lib/libc10_cuda.so and libtorch_cuda.so, then <folder>/liblora_train_cuda.so. Needs no driver. Call it
/// before any code checks whether torch has CUDA, because torch caches the answer. Later calls return the loaded
/// library. Throws a DeviceError that names the missing file and the fix.
const CudaLibrary& load_cuda_library(const std::filesystem::path& folder, const std::filesystem::path& torch_folder);

/// Default folders for load_cuda_library(): that of the calling code (or lib/ in it), and that of the loaded LibTorch.
struct CudaFolders {
  std::filesystem::path library, torch;
};
CudaFolders default_cuda_folders();

/// Null until load_cuda_library().
const CudaLibrary* cuda_library();

/// Calls start() of the loaded library and stores the settings for cuda_settings().
void start_cuda(const CudaSettings& settings);
const CudaSettings& cuda_settings();

/// Compute capability of the device in cuda_settings(), 90 for 9.0. Cached.
int cuda_compute_capability();

}  // namespace lora_train::kernels
