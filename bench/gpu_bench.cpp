// What bench/gpu_measure.py cannot ask PyTorch for: attention and matrix products on a GPU as the trainer calls them.
//   gpu_bench attention [--deterministic]   over packed documents: FA2 against cuDNN, forward and backward; what empty
//                                           documents cost; whether slots past the last document are written, and whether
//                                           dQ has the same bits each time
//   gpu_bench gemm [--deterministic]        products of a layer through cuBLASLt, plain and with 64 columns of adapters
// Without a GPU it says why and exits with 6.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/kernels/attention.h"
#include "lora_train/kernels/cuda_library.h"
#include "lora_train/kernels/gemm.h"
#include "support/cuda_device.h"

namespace lora_train::kernels {
namespace {

constexpr int kRepeats = 10;
constexpr int64_t kTokens = 16384, kSpare = 128;  // slots past the last document
constexpr double kUnwritten = 7;

struct Heads {
  const char* name;
  int64_t num_heads, num_kv_heads, head_size;
};

struct Documents {
  std::string name;
  int64_t count = 0, length = 0, num_empty = 0;
};

/// q, k, v out of one buffer, as the trainer has them, and what attention writes.
struct Tensors {
  at::Tensor q, k, v, dout, out, lse;
  AttentionGradients places;
};

Tensors make_tensors(const Heads& h) {
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  const int64_t slots = kTokens + kSpare, width = (h.num_heads + 2 * h.num_kv_heads) * h.head_size;
  const auto cut = [&](const at::Tensor& wide, int64_t from, int64_t heads) {
    return wide.slice(1, from * h.head_size, (from + heads) * h.head_size).unflatten(1, {heads, h.head_size});
  };
  const auto qkv = at::randn({slots, width}, options), dqkv = at::zeros({slots, width}, options);
  const auto dout = at::randn({slots, h.num_heads, h.head_size}, options);
  const int64_t k = h.num_heads, v = h.num_heads + h.num_kv_heads;
  return {cut(qkv, 0, h.num_heads),
          cut(qkv, k, h.num_kv_heads),
          cut(qkv, v, h.num_kv_heads),
          dout,
          at::full_like(dout, kUnwritten),
          at::empty({h.num_heads, slots}, options.dtype(at::kFloat)).t(),
          {cut(dqkv, 0, h.num_heads), cut(dqkv, k, h.num_kv_heads), cut(dqkv, v, h.num_kv_heads)}};
}

AttentionLayout make_layout(const Documents& documents, const Heads& h, AttentionBackend backend) {
  AttentionLayout layout;
  layout.cu_seqlens_q = {0};
  for (int64_t d = 0; d < documents.count; ++d) layout.cu_seqlens_q.push_back((d + 1) * documents.length);
  for (int64_t d = 0; d < documents.num_empty; ++d) layout.cu_seqlens_q.push_back(kTokens);
  layout.cu_seqlens_k = layout.cu_seqlens_q;
  layout.scale = 1 / std::sqrt(static_cast<double>(h.head_size));
  layout.backend = backend;
  layout.cu_seqlens_q_device = at::tensor(layout.cu_seqlens_q, at::kLong).to(at::kInt).to(at::kCUDA);
  layout.cu_seqlens_k_device = layout.cu_seqlens_q_device;
  layout.max_len_q = layout.max_len_k = documents.length;
  return layout;
}

void wait() { c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0); }

template <class Body>
double milliseconds(const Body& body) {
  for (int i = 0; i < 3; ++i) body();
  wait();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRepeats; ++i) body();
  wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / kRepeats;
}

bool is_finite(const at::Tensor& t) { return at::isfinite(t).all().item<bool>(); }

void measure(const Heads& h, const Documents& documents, AttentionBackend backend) {
  const char* const name = backend == AttentionBackend::kFa2 ? "fa2" : "cudnn";
  std::printf("%-5s %-10s %-26s ", h.name, name, documents.name.c_str());
  try {
    Tensors t = make_tensors(h);
    const AttentionLayout layout = make_layout(documents, h, backend);
    const double forward = milliseconds([&] { attention_forward(t.q, t.k, t.v, layout, t.out, t.lse); });
    const auto run_backward = [&] {
      AttentionGradients gradients = t.places;
      attention_backward(t.dout, t.q, t.k, t.v, t.out, t.lse, layout, gradients);
      return gradients;
    };
    const double backward = milliseconds(run_backward);
    const AttentionGradients gradients = run_backward();
    const at::Tensor dq = gradients.q.clone(), again = run_backward().q;
    const bool is_untouched = (t.out.slice(0, kTokens) == kUnwritten).all().item<bool>();
    const bool finite = is_finite(t.out.slice(0, 0, kTokens)) && is_finite(gradients.q) && is_finite(gradients.k) &&
                        is_finite(gradients.v);
    // Causal: half of the scores; 2 products forward, 5 backward.
    const double flops = 2.0 * static_cast<double>(kTokens * documents.length * h.num_heads * h.head_size);
    std::printf(
        "forward %8.3f ms %6.1f TFLOP/s, backward %8.3f ms %6.1f TFLOP/s; %s; past the last document: %s; dQ %s\n",
        forward, flops / forward * 1e-9, backward, 2.5 * flops / backward * 1e-9, finite ? "finite" : "NOT FINITE",
        is_untouched ? "untouched" : "written", at::equal(dq, again) ? "repeats" : "differs");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  std::fflush(stdout);
}

void measure_attention() {
  std::printf("attention, bf16, causal, %lld tokens\n", static_cast<long long>(kTokens));
  for (const Heads& h : {Heads{"0.5B", 14, 2, 64}, Heads{"7B", 28, 4, 128}}) {
    for (const Documents& documents :
         {Documents{"1 x 16384", 1, kTokens}, Documents{"4 x 4096", 4, 4096}, Documents{"64 x 256", 64, 256},
          Documents{"4 x 4096 and 256 empty", 4, 4096, 256}}) {
      for (const auto backend : {AttentionBackend::kFa2, AttentionBackend::kCudnn}) measure(h, documents, backend);
    }
  }
}

/// y = [x | S] [W | sB]^T and [dx | dS] = dy [W | sB]; `columns` of S and of sB, 0 = none.
void measure_linear(const char* name, int64_t M, int64_t N, int64_t K, int64_t columns) {
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  const auto x = at::randn({M, K + columns}, options), weight = at::randn({N, K + columns}, options);
  auto y = at::randn({M, N}, options), dx = at::empty({M, K + columns}, options);
  const double forward = milliseconds([&] { gemm(x, weight.t(), y); });
  const double backward = milliseconds([&] { gemm(y, weight, dx); });
  const double flops = 2.0 * static_cast<double>(M * N * K);  // those of the columns do not count
  std::printf(
      "%-13s M %5lld N %5lld K %5lld columns %2lld forward %8.3f ms %6.1f TFLOP/s, backward %8.3f ms %6.1f TFLOP/s\n",
      name, static_cast<long long>(M), static_cast<long long>(N), static_cast<long long>(K),
      static_cast<long long>(columns), forward, flops / forward * 1e-9, backward, flops / backward * 1e-9);
  std::fflush(stdout);
}

struct Linear {
  const char* name;
  int64_t num_out, num_in;
};

void measure_gemms() {
  std::printf("matrix products of a layer, bf16, cuBLASLt as the trainer calls it\n");
  for (const Linear& linear :
       {Linear{"0.5B qkv", 1152, 896}, Linear{"0.5B o", 896, 896}, Linear{"0.5B gate|up", 9728, 896},
        Linear{"0.5B down", 896, 4864}, Linear{"7B qkv", 4608, 3584}, Linear{"7B o", 3584, 3584},
        Linear{"7B gate|up", 37888, 3584}, Linear{"7B down", 3584, 18944}}) {
    for (const int64_t M : {4096, 8192, 16384}) {
      for (const int64_t columns : {0, 64}) measure_linear(linear.name, M, linear.num_out, linear.num_in, columns);
    }
  }
}

int run(bool is_gemm, bool is_deterministic) {
  if (!testing_support::why_no_cuda().empty()) {
    std::printf("%s: nothing was measured\n", testing_support::why_no_cuda().c_str());
    return static_cast<int>(ExitCode::kDevice);
  }
  if (is_deterministic) start_cuda({0, false, true});
  at::globalContext().setDeterministicAlgorithms(is_deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (is_deterministic) std::printf("deterministic: ");
  if (is_gemm) {
    measure_gemms();
  } else {
    measure_attention();
  }
  return 0;
}

}  // namespace
}  // namespace lora_train::kernels

int main(int argc, char** argv) {
  const auto has = [&](const char* word) {
    return std::any_of(argv + 1, argv + argc, [&](const char* argument) { return std::strcmp(argument, word) == 0; });
  };
  try {
    return lora_train::kernels::run(has("gemm"), has("--deterministic"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
