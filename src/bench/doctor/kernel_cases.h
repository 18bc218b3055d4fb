// The checks of `doctor`: every kernel against its reference, with inputs on one device, and NCCL over all GPUs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/bench/doctor/doctor.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::bench {

/// The device and dtype of a check.
struct Place {
  at::Device device;
  at::ScalarType dtype;

  /// Draws on the device: the sizes of a 7 B model take minutes on a CPU.
  at::Tensor uniform(at::IntArrayRef sizes) const { return at::rand(sizes, device).mul_(2).sub_(1).to(dtype); }
  at::Tensor empty(at::IntArrayRef sizes) const { return at::full(sizes, 7.0, at::device(device).dtype(dtype)); }
  at::Tensor fp32(at::IntArrayRef sizes) const { return at::full(sizes, 0.5, at::device(device).dtype(at::kFloat)); }
  at::Tensor ids(std::int64_t count, std::int64_t below) const {
    return at::randint(below, {count}, at::device(device).dtype(at::kInt));
  }
  at::Tensor positions(std::int64_t count) const { return at::arange(count, at::kInt).to(device); }
};

/// A kernel and its reference. Each call fills its own copies of `outputs`.
using Outputs = std::vector<at::Tensor>;
using Call = std::function<void(Outputs&)>;
struct Case {
  std::string name, shape;
  Outputs outputs;
  Call own, reference;
  std::vector<std::int64_t> cu_seqlens = {};  ///< if set, rows belong to documents, which are compared one by one too
};

/// Receives each case as it is made. Keeping a case keeps its inputs in device memory.
using CaseSink = std::function<void(const Case&)>;

/// Makes a case: run(kernel, outputs) and run(reference, outputs).
template <class Run, class Kernel, class Reference>
void add_case(const CaseSink& sink, const std::string& name, const std::string& shape, const Outputs& outputs,
              const Run& run, Kernel* kernel, Reference* reference, const std::vector<std::int64_t>& cu_seqlens = {}) {
  sink({name, shape, outputs, [=](Outputs& o) { run(kernel, o); }, [=](Outputs& o) { run(reference, o); }, cu_seqlens});
}

/// "N=37 D=896"
std::string sizes_text(const std::vector<std::pair<const char*, std::int64_t>>& sizes);

struct AttentionCaseSizes {
  std::int64_t N, H, K, E, window;
};

/// Forward and backward of a backend, or its stand-in, over documents of odd lengths, one with a single token, with
/// empty ones before, between and after them. N must be at least 37.
void add_attention(const Place& place, const AttentionCaseSizes& sizes, kernels::AttentionBackend backend,
                   const kernels::CudaAttention& calls, const CaseSink& sink);

/// Runs a kernel and its reference. A single document's error may be 4 times the limit: its rounding errors average
/// over fewer values.
KernelCheck run_case(const Place& place, const Case& c);

/// Kernels of a layer and of the loss head, with odd sizes to reach the edges of kernels, the sizes of a 0.5 B model
/// and, on a GPU, those of a 7 B model. There, every backend that supports a case runs attention.
void make_layer_cases(const Place& place, const CaseSink& sink);

/// Kernels around the layers: casts, gathers, loss sums, gradient norm, AdamW. Masters and moments are fp32, so some
/// cases exist only for fp32.
void make_step_cases(const Place& place, const CaseSink& sink);

/// Compares an NCCL all-reduce over all GPUs that this process sees, one thread per GPU, with the sum on the host.
/// `shape` has the number of GPUs, the size, and the bandwidth of each GPU in a ring. Fails if a GPU does not answer
/// within `patience`. On one GPU, which trains without NCCL, an NCCL failure is only a note.
KernelCheck check_nccl(std::chrono::seconds patience);

}  // namespace lora_train::bench
