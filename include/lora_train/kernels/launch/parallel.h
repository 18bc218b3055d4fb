// CPU kernels: a parallel loop over ATen's threads, clones of a function for each vector extension, and code for one of
// them. The template
// at::parallel_for runs serially in sources compiled without OpenMP, so kernels call this instead. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

// Function multi-versioning. The loader picks the clone through an ifunc, which address sanitizer does not support.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define LORA_TRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LORA_TRAIN_CLONES
#endif

// A function of the host and of the GPU.
#ifdef __CUDACC__
#define LORA_TRAIN_INLINE __host__ __device__ __forceinline__
#else
#define LORA_TRAIN_INLINE inline __attribute__((always_inline))
#endif

namespace lora_train::kernels {

/// Calls body(begin, end) on disjoint ranges that cover [0, count): one range per thread, none smaller than `grain`
/// unless count is. Ranges depend only on count, grain and the thread count. Rethrows an exception from `body`. Nested
/// calls run serially.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

/// The number of ranges that parallel_ranges uses at most.
int num_threads();

/// While it lives, threads that wait for the end of a parallel region sleep at once, as with OMP_WAIT_POLICY=passive.
class PassiveWaiting {
 public:
  /// `num_cpus`: logical cores that this process may run on.
  explicit PassiveWaiting(int num_cpus);

 private:
  std::jthread team_;
};

/// True if this CPU has AVX-512 (x86-64-v4) and no test has disabled the code for it.
bool has_avx512();
void allow_avx512(bool allowed);  ///< for tests of the code for older CPUs

}  // namespace lora_train::kernels
