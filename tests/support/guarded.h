// Matrices for kernels under test: every element starts as NaN (0xFF bytes), and what lies before, between and after the
// rows must stay as it is. No torch here.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
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

/// num_rows rows of `width` elements, `gap` elements between them. Rows begin at a multiple of 16 bytes when `is_aligned` and
/// gap and width allow it, else one element after one.
struct RowShape {
  std::int64_t num_rows, width, gap = 0;
  bool is_aligned = true;
};

/// A Guarded as bytes, whatever its elements are.
class GuardedBytes {
 public:
  using HasPoison = bool (*)(const unsigned char* begin, const unsigned char* end);

  /// has_poison: whether one of these elements was not written, or comes from one that was not.
  GuardedBytes(const RowShape& shape, std::size_t element_bytes, HasPoison has_poison)
      : shape_(shape),
        element_bytes_(element_bytes),
        has_poison_(has_poison),
        row_bytes_(bytes_of(shape.width)),
        stride_bytes_(bytes_of(shape.width + shape.gap)),
        first_(bytes_of((has_guard_zones ? kZone : 0) + (shape.is_aligned ? 0 : 1))),
        end_(first_ +
             (shape.num_rows == 0 ? 0 : static_cast<std::size_t>(shape.num_rows - 1) * stride_bytes_ + row_bytes_)),
        memory_(end_ + bytes_of(has_guard_zones ? kZone : 0)) {
    poison_zones(true);
  }
  ~GuardedBytes() { poison_zones(false); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::int64_t num_rows() const { return shape_.num_rows; }
  std::string text() const { return std::to_string(shape_.num_rows) + " x " + std::to_string(shape_.width); }

  void poison_values() {
    for (std::int64_t n = 0; n < shape_.num_rows; ++n) std::memset(row(n), 0xFF, row_bytes_);
  }
  /// Of the rows.
  std::vector<unsigned char> bytes() {
    std::vector<unsigned char> all;
    for (std::int64_t n = 0; n < shape_.num_rows; ++n) all.insert(all.end(), row(n), row(n) + row_bytes_);
    return all;
  }
  /// Whether every element of the rows was written, and none from what was not.
  bool is_whole() {
    for (std::int64_t n = 0; n < shape_.num_rows; ++n) {
      if (has_poison_(row(n), row(n) + row_bytes_)) return false;
    }
    return true;
  }
  /// Whether nothing around the rows was written.
  bool is_intact() {
    wait_for_kernels();
    poison_zones(false);
    bool intact = true;
    const unsigned char* from = memory_.data();  // what is between rows begins here
    for (std::int64_t n = 0; n < shape_.num_rows; ++n) {
      intact = intact && is_untouched(from, row(n));
      from = row(n) + row_bytes_;
    }
    intact = intact && is_untouched(from, memory_.data() + memory_.size());
    poison_zones(true);
    return intact;
  }

 protected:
  unsigned char* row(std::int64_t n) { return memory_.data() + first_ + static_cast<std::size_t>(n) * stride_bytes_; }

 private:
  static constexpr std::int64_t kZone = 64;  // elements, a multiple of 16 bytes

  static bool is_untouched(const unsigned char* begin, const unsigned char* end) {
    for (; begin < end; ++begin) {
      if (*begin != 0xFF) return false;
    }
    return true;
  }
  std::size_t bytes_of(std::int64_t elements) const { return static_cast<std::size_t>(elements) * element_bytes_; }

  void poison_zones([[maybe_unused]] bool on) {
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(memory_.data(), memory_.size());
    if (!on) return;
    ASAN_POISON_MEMORY_REGION(memory_.data(), first_);
    ASAN_POISON_MEMORY_REGION(memory_.data() + end_, memory_.size() - end_);
#endif
  }

  RowShape shape_;
  std::size_t element_bytes_;
  HasPoison has_poison_;
  std::size_t row_bytes_, stride_bytes_, first_, end_;
  KernelArray<unsigned char> memory_;
};

template <class T>
class Guarded : public GuardedBytes {
 public:
  explicit Guarded(const RowShape& shape)
      : GuardedBytes(shape, sizeof(T), has_poison), width_(shape.width), stride_(shape.width + shape.gap) {}
  Guarded(std::int64_t num_rows, std::int64_t width, std::int64_t gap = 0, bool is_aligned = true)
      : Guarded(RowShape{num_rows, width, gap, is_aligned}) {}

  T* operator[](std::int64_t n) { return reinterpret_cast<T*>(row(n)); }
  T* data() { return (*this)[0]; }
  kernels::Rows<T> rows() { return {data(), stride_}; }
  kernels::Rows<const T> read() { return {data(), stride_}; }

  /// Values of f(row, column), rounded to T.
  void fill(const std::function<float(std::int64_t, std::int64_t)>& f) {
    for (std::int64_t n = 0; n < num_rows(); ++n) {
      for (std::int64_t d = 0; d < width_; ++d) {
        if constexpr (std::is_arithmetic_v<T>) {
          (*this)[n][d] = static_cast<T>(f(n, d));
        } else {
          kernels::store(&(*this)[n][d], f(n, d));
        }
      }
    }
  }
  /// Of [-1, 1), by a linear congruence: tests fill more than they compute, without optimisation.
  void fill_uniform(std::uint32_t seed) {
    std::uint32_t state = seed * 2654435761U;
    for (std::int64_t n = 0; n < num_rows(); ++n) {
      T* const to = (*this)[n];
      for (std::int64_t d = 0; d < width_; ++d) {
        state = state * 1664525U + 1013904223U;
        kernels::store(to + d, static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
      }
    }
  }
  double at(std::int64_t n, std::int64_t d) { return static_cast<double>(kernels::load(&(*this)[n][d])); }

 private:
  /// Of a code every byte is a value; in a table nothing is said about one.
  static bool has_poison([[maybe_unused]] const unsigned char* begin, [[maybe_unused]] const unsigned char* end) {
    if constexpr (std::is_same_v<T, std::uint8_t> || !(std::is_arithmetic_v<T> || std::is_same_v<T, kernels::Bf16>)) {
      return false;
    } else {
      for (; begin < end; begin += sizeof(T)) {
        if constexpr (std::is_integral_v<T>) {
          if (std::all_of(begin, begin + sizeof(T), [](unsigned char byte) { return byte == 0xFF; })) return true;
        } else {
          T value;
          std::memcpy(&value, begin, sizeof value);
          if (is_nan(value)) return true;
        }
      }
      return false;
    }
  }
  static bool is_nan(double value) { return std::isnan(value); }
  static bool is_nan(kernels::Bf16 value) { return std::isnan(kernels::to_float(value)); }

  std::int64_t width_, stride_;
};

/// Calls run(T{}) for the element types of our kernels.
template <class Run>
void for_each_element_type(const Run& run) {
  run(float{});
  run(kernels::Bf16{});
}

/// Runs `launch` twice, on the CPU with threads and blocks in descending and in ascending order. It must write every element
/// of the outputs, the same bits each time, nothing around them, and nothing of the inputs.
inline void expect_guarded(const std::function<void()>& launch, const std::vector<GuardedBytes*>& outputs,
                           const std::vector<GuardedBytes*>& inputs) {
  std::vector<std::vector<unsigned char>> given, first;
  for (GuardedBytes* input : inputs) given.push_back(input->bytes());
  for (const bool is_descending : {true, false}) {
    for (GuardedBytes* output : outputs) output->poison_values();
    set_descending_order(is_descending);
    launch();
    wait_for_kernels();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::string which = "output " + std::to_string(i) + ", " + outputs[i]->text();
      EXPECT_TRUE(outputs[i]->is_whole()) << which << ": an element that nothing wrote, or NaN";
      if (is_descending) first.push_back(outputs[i]->bytes());
      EXPECT_TRUE(first[i] == outputs[i]->bytes())
          << which << ": other bits when threads run in another order: a barrier is missing";
      EXPECT_TRUE(outputs[i]->is_intact()) << which << ": written beside its rows";
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(inputs[i]->bytes() == given[i] && inputs[i]->is_intact())
        << "input " << i << ", " << inputs[i]->text() << ": written";
  }
}

/// |got - want| within `tolerance` of the largest |want|, for every element.
template <class T>
::testing::AssertionResult is_near(Guarded<T>& got, std::int64_t num_rows, std::int64_t width,
                                   const std::function<double(std::int64_t, std::int64_t)>& want, double tolerance) {
  double largest = 0, worst = 0;
  for (std::int64_t n = 0; n < num_rows; ++n) {
    for (std::int64_t d = 0; d < width; ++d) {
      const double difference = std::abs(got.at(n, d) - want(n, d));
      largest = std::max(largest, std::abs(want(n, d)));
      worst = std::max(worst, difference);
      if (std::isnan(difference)) {
        return ::testing::AssertionFailure() << "NaN at row " << n << ", column " << d;
      }
    }
  }
  if (largest > 0 && worst <= tolerance * largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "off by " << worst << ", largest value " << largest << ", tolerance "
                                       << tolerance;
}

}  // namespace lora_train::testing_support
