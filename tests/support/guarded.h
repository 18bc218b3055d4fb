// Matrices for kernels under test: every element starts as NaN (0xFF bytes), and what lies before, between and after the
// rows must stay as it is. No torch here.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/launch/elements.h"
#include "support/kernel_executor.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace lora_train::testing_support {

/// Whether there is memory of its own before and after the rows of a Guarded. Without it, what lies there is not ours, which
/// compute-sanitizer and AddressSanitizer notice when it is read, too.
inline bool has_guard_zones = true;

/// num_rows rows of `width` elements, `gap` elements between them. Rows begin at a multiple of 16 bytes when
/// `is_aligned` and gap and width allow it, else one element after one.
template <class T>
class Guarded {
 public:
  Guarded(std::int64_t num_rows, std::int64_t width, std::int64_t gap = 0, bool is_aligned = true)
      : num_rows_(num_rows),
        width_(width),
        stride_(width + gap),
        first_((has_guard_zones ? kZone : 0) + (is_aligned ? 0 : 1)),
        memory_(static_cast<std::size_t>(end() + (has_guard_zones ? kZone : 0))) {
    poison(true);
  }
  ~Guarded() { poison(false); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::int64_t num_rows() const { return num_rows_; }
  T* data() { return memory_.data() + first_; }
  T* operator[](std::int64_t row) { return data() + row * stride_; }
  kernels::Rows<T> rows() { return {data(), stride_}; }
  kernels::Rows<const T> read() { return {data(), stride_}; }

  /// Values of f(row, column), rounded to T.
  void fill(const std::function<float(std::int64_t, std::int64_t)>& f) {
    for (std::int64_t n = 0; n < num_rows_; ++n) {
      for (std::int64_t d = 0; d < width_; ++d) {
        if constexpr (std::is_integral_v<T>) {
          (*this)[n][d] = static_cast<T>(f(n, d));
        } else {
          kernels::store(&(*this)[n][d], f(n, d));
        }
      }
    }
  }
  void fill_uniform(unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    fill([&](std::int64_t, std::int64_t) { return uniform(generator); });
  }
  void poison_values() {
    for (std::int64_t n = 0; n < num_rows_; ++n) {
      std::memset(static_cast<void*>((*this)[n]), 0xFF, static_cast<std::size_t>(width_) * sizeof(T));
    }
  }

  double at(std::int64_t row, std::int64_t column) { return static_cast<double>(kernels::load(&(*this)[row][column])); }
  std::vector<T> values() {
    std::vector<T> all;
    for (std::int64_t n = 0; n < num_rows_; ++n) all.insert(all.end(), (*this)[n], (*this)[n] + width_);
    return all;
  }

  /// Whether nothing around the rows was written.
  bool is_intact() {
    wait_for_kernels();
    poison(false);
    bool intact = true;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i) {
      const std::int64_t at = i - first_;
      if (at >= 0 && at < num_rows_ * stride_ && at % stride_ < width_) continue;
      const auto* bytes = reinterpret_cast<const unsigned char*>(&memory_[static_cast<std::size_t>(i)]);
      for (std::size_t b = 0; b < sizeof(T); ++b) intact = intact && bytes[b] == 0xFF;
    }
    poison(true);
    return intact;
  }

 private:
  static constexpr std::int64_t kZone = 64;  // elements, a multiple of 16 bytes

  /// Where the last row ends, in elements from the beginning of the memory.
  std::int64_t end() const { return first_ + (num_rows_ == 0 ? 0 : (num_rows_ - 1) * stride_ + width_); }

  void poison([[maybe_unused]] bool on) {
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(memory_.data(), memory_.size() * sizeof(T));
    if (!on) return;
    ASAN_POISON_MEMORY_REGION(memory_.data(), static_cast<std::size_t>(first_) * sizeof(T));
    ASAN_POISON_MEMORY_REGION(memory_.data() + end(), (memory_.size() - static_cast<std::size_t>(end())) * sizeof(T));
#endif
  }

  std::int64_t num_rows_, width_, stride_, first_;
  KernelArray<T> memory_;
};

/// |got - want| within `tolerance` of the largest |want|, for every element.
template <class T>
::testing::AssertionResult is_near(Guarded<T>& got, std::int64_t num_rows, std::int64_t width,
                                   const std::function<double(std::int64_t, std::int64_t)>& want, double tolerance) {
  double largest = 0, worst = 0;
  for (std::int64_t n = 0; n < num_rows; ++n) {
    for (std::int64_t d = 0; d < width; ++d) {
      const double difference = std::abs(got.at(n, d) - want(n, d));
      largest = std::max(largest, std::abs(want(n, d)));
      worst = std::isnan(difference) ? difference : std::max(worst, difference);
      if (std::isnan(difference)) {
        return ::testing::AssertionFailure() << "NaN at row " << n << ", column " << d;
      }
    }
  }
  if (largest > 0 && worst <= tolerance * largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "off by " << worst << ", largest value " << largest << ", tolerance "
                                       << tolerance;
}

template <class T>
constexpr double element_tolerance() {
  return sizeof(T) == sizeof(float) ? 1e-5 : 1e-2;
}

/// Runs `launch` twice, on the CPU with threads and blocks in descending and in ascending order; `output` must hold the same
/// bits.
template <class T>
void run_in_both_orders(Guarded<T>& output, const std::function<void()>& launch) {
  set_descending_order(true);
  launch();
  wait_for_kernels();
  const std::vector<T> first = output.values();
  output.poison_values();
  set_descending_order(false);
  launch();
  wait_for_kernels();
  const std::vector<T> second = output.values();
  EXPECT_TRUE(first.empty() || std::memcmp(first.data(), second.data(), first.size() * sizeof(T)) == 0)
      << "other numbers when threads run in another order: a barrier is missing";
}

}  // namespace lora_train::testing_support
