// What the multipliers of a CPU can do: GFLOP/s of a loop of fused multiply-adds in fp32, and of dot products of bf16
// pairs, on N threads at once. One JSON line: {"fp32": 233.6, "bf16": 468.1}; 0 without the instructions.
// c++ -O2 -pthread bench/cpu_peak.cpp -o cpu_peak && ./cpu_peak 2
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

namespace {

constexpr int kSums = 12;  // independent sums, so that the latency of one is hidden
constexpr long kRounds = 20'000'000;

/// Keeps a value in a register that the compiler knows nothing about.
template <class V>
inline __attribute__((always_inline)) void hide(V& value) {
  asm volatile("" : "+v"(value));
}

__attribute__((target("avx2,fma"), noinline)) double fma_256() {
  __m256 sums[kSums] = {}, a = _mm256_set1_ps(0.5F), b = _mm256_set1_ps(0.25F);
  hide(a), hide(b);
  for (auto& sum : sums) hide(sum);  // else equal sums become one
  for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) hide(sum);
  return 2.0 * 8 * kSums * kRounds;
}

__attribute__((target("avx512f"), noinline)) double fma_512() {
  __m512 sums[kSums] = {}, a = _mm512_set1_ps(0.5F), b = _mm512_set1_ps(0.25F);
  hide(a), hide(b);
  for (auto& sum : sums) hide(sum);  // else equal sums become one
  for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) hide(sum);
  return 2.0 * 16 * kSums * kRounds;
}

__attribute__((target("avx512f,avx512bf16"), noinline)) double dot_512() {
  __m512 sums[kSums] = {}, a = _mm512_set1_ps(0.5F), b = _mm512_set1_ps(0.25F);
  hide(a), hide(b);
  for (auto& sum : sums) hide(sum);  // else equal sums become one
  for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  for (auto& sum : sums) hide(sum);
  return 2.0 * 32 * kSums * kRounds;
}

/// The best of five.
double gflops(int num_threads, double (*loop)()) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> rates(num_threads);
    std::vector<std::thread> threads;
    for (double& rate : rates) {
      threads.emplace_back([&rate, loop] {
        const auto start = Clock::now();
        const double flops = loop();
        rate = flops / std::chrono::duration<double>(Clock::now() - start).count() * 1e-9;
      });
    }
    for (auto& thread : threads) thread.join();
    double sum = 0;
    for (const double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  double fp32 = 0, bf16 = 0;
  if (__builtin_cpu_supports("avx512f")) {
    fp32 = gflops(num_threads, fma_512);
  } else if (__builtin_cpu_supports("fma")) {
    fp32 = gflops(num_threads, fma_256);
  }
  if (__builtin_cpu_supports("avx512bf16")) bf16 = gflops(num_threads, dot_512);
  std::printf("{\"fp32\": %.1f, \"bf16\": %.1f}\n", fp32, bf16);
}
#else
int main() { std::puts("{\"fp32\": 0, \"bf16\": 0}"); }
#endif
