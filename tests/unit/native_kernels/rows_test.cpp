// Kernels that take their rows one by one.
#include "kernels/cross_entropy/cross_entropy_parts.h"
#include "kernels/dropout/dropout_parts.h"
#include "kernels/gated_activation/gated_activation_parts.h"
#include "kernels/rms_norm/rms_norm_parts.h"
#include "kernels/sampling/sampling_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

// Nothing; odd widths; ends inside a pack, a thread's second pack and a warp; several blocks or turns a row; rows longer than a
// block keeps in registers (16384 bf16, 8192 floats); gaps; misaligned rows, and rows that all begin somewhere else.
const std::vector<RowShape> kShapes = {{0, 8},
                                       {1, 1},
                                       {3, 2, 1},
                                       {3, 7, 1},
                                       {9, 33},
                                       {37, 45, 3},
                                       {5, 64, 8},
                                       {4, 64, 0, false},
                                       {3, 264, 8},
                                       {2, 520, 0, false},
                                       {2, 1031, 5, false},
                                       {2, 3584, 48},
                                       {2, 4104, 3},
                                       {2, 4160},
                                       {2, 4864, 16},
                                       {2, 16384},
                                       {1, 17000, 8},
                                       {1, 20011, 3, false}};

template <class Check>
void for_each_shape_and_type(const Check& check) {
  for (const RowShape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.num_rows << " x " << s.width << " + " << s.gap << ", " << s.is_aligned);
    check(s, float{});
    check(s, Bf16{});
  }
}

/// x may be misaligned where y is not.
template <class T>
void expect_guarded_dropout(const RowShape& s, bool is_y_aligned) {
  const KernelArray<PhiloxKey> key = {{0xa4093822u, 0x299f31d0u}};
  Guarded<T> x(s), y(s.num_rows, s.width, s.gap, is_y_aligned);
  Guarded<std::int32_t> documents(1, s.num_rows), positions(1, s.num_rows);
  for (auto* of_tokens : {&documents, &positions}) of_tokens->fill([](auto, auto n) { return static_cast<float>(n); });
  const auto drop = [&](Guarded<T>& to) {
    dropout_forward_cuda(x.read(), documents.data(), positions.data(), key.data(), 8388608u, 2.0F, to.rows(),
                         s.num_rows, s.width, nullptr);
  };
  x.fill_uniform(1);
  expect_guarded([&] { drop(y); }, {&y}, {&x, &documents, &positions});
  const auto in_place = [&] {
    x.fill_uniform(1);
    drop(x);
  };
  expect_guarded(in_place, {&x}, {&documents, &positions});
}

TEST(DropoutCuda, StaysInItsRows) {
  for_each_shape_and_type([]<class T>(const RowShape& s, T) {
    for (const bool is_y_aligned : {true, false}) expect_guarded_dropout<T>(s, is_y_aligned);
  });
}

TEST(GatedActivationCuda, StaysInItsRows) {
  for_each_shape_and_type([]<class T>(const RowShape& s, T) {
    const RowShape wide = {s.num_rows, 2 * s.width, s.gap, s.is_aligned};
    Guarded<T> gate_up(wide), d(wide), y(s), dy(s);
    gate_up.fill_uniform(1);
    dy.fill_uniform(2);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const auto forward = [&] {
        gated_activation_forward_cuda(gate_up.read(), y.rows(), s.num_rows, s.width, activation, nullptr);
      };
      const auto backward = [&](Guarded<T>& to) {
        gated_activation_backward_cuda(dy.read(), gate_up.read(), to.rows(), s.num_rows, s.width, activation, nullptr);
      };
      expect_guarded(forward, {&y}, {&gate_up});
      expect_guarded([&] { backward(d); }, {&d}, {&gate_up, &dy});
      const auto in_place = [&] {
        gate_up.fill_uniform(1);
        backward(gate_up);
      };
      expect_guarded(in_place, {&gate_up}, {&dy});
    }
  });
}

TEST(GatedActivationCuda, NothingToDoLaunchesNothing) {
  Guarded<float> gate_up(1, 8), y(1, 4);
  const auto before = num_launches();
  gated_activation_forward_cuda(gate_up.read(), y.rows(), 0, 4, Activation::kSilu, nullptr);
  gated_activation_forward_cuda(gate_up.read(), y.rows(), 1, 0, Activation::kSilu, nullptr);
  gated_activation_backward_cuda(y.read(), gate_up.read(), gate_up.rows(), 1, 0, Activation::kSilu, nullptr);
  EXPECT_EQ(num_launches(), before);
}

TEST(RmsNormCuda, StaysInItsRows) {
  for_each_shape_and_type([]<class T>(const RowShape& s, T) {
    Guarded<T> x(s), y(s), residual(s), dy(s), dx(s), weight(1, s.width, 0, s.is_aligned);
    Guarded<float> rstd(1, s.num_rows), dweight(1, s.width);
    for (auto* input : {&x, &residual, &dy, &weight}) input->fill_uniform(1);
    for (const bool adds : {false, true}) {
      const auto forward = [&] {
        rms_norm_forward_cuda(x.read(), {weight.data()}, 1e-6F, adds ? residual.read() : Rows<const T>{}, y.rows(),
                              rstd.data(), s.num_rows, s.width, nullptr);
      };
      expect_guarded(forward, {&y, &rstd}, {&x, &weight, &residual});
      const auto backward = [&] {
        if (adds) dx.fill_uniform(2);
        rms_norm_backward_cuda(dy.read(), x.read(), {weight.data()}, rstd.data(), dx.rows(), adds, s.num_rows, s.width,
                               nullptr);
      };
      expect_guarded(backward, {&dx}, {&dy, &x, &weight, &rstd});
    }
    if (s.width > 1100) return;  // a block takes 32 columns whatever the width
    const auto weight_gradient = [&] {
      dweight.fill_uniform(3);
      rms_norm_weight_gradient_cuda(dy.read(), x.read(), rstd.data(), dweight.data(), s.num_rows, s.width, nullptr);
    };
    expect_guarded(weight_gradient, {&dweight}, {&dy, &x, &rstd});
  });
}

TEST(CrossEntropyCuda, StaysInItsRows) {
  for_each_shape_and_type([]<class T>(const RowShape& s, T) {
    Guarded<T> logits(s);
    Guarded<std::int32_t> targets(1, s.num_rows);
    Guarded<float> weights(1, s.num_rows), losses(1, s.num_rows), confidence(1, s.num_rows);
    Guarded<bool> correct(1, s.num_rows);
    const KernelArray<double> denominator = {8};
    targets.fill([&](auto, auto m) { return static_cast<float>(m == 4 ? -1 : m * 7919 % s.width); });
    for (auto* values : {&weights, &confidence}) values->fill_uniform(2);
    logits.fill_uniform(1);
    const auto losses_alone = [&] {
      cross_entropy_in_place_cuda(logits.rows(), targets.data(), nullptr, nullptr, losses.data(), nullptr, nullptr,
                                  s.num_rows, s.width, nullptr);
    };
    expect_guarded(losses_alone, {&losses}, {&logits, &targets});
    const auto everything = [&] {
      logits.fill_uniform(1);
      cross_entropy_in_place_cuda(logits.rows(), targets.data(), weights.data(), denominator.data(), losses.data(),
                                  correct.data(), confidence.data(), s.num_rows, s.width, nullptr);
    };
    expect_guarded(everything, {&logits, &losses, &correct, &confidence}, {&targets, &weights});
  });
}

TEST(AddLossesCuda, StaysInItsRows) {
  for (const std::int64_t rows : {0, 1, 33, 1024, 5003}) {
    Guarded<float> losses(1, rows), weights(1, rows);
    Guarded<double> sum(1, 1);
    losses.fill_uniform(3);
    weights.fill_uniform(4);
    for (const bool is_weighted : {false, true}) {
      const auto launch = [&] {
        sum.data()[0] = 1e6;
        add_losses_cuda(losses.data(), is_weighted ? weights.data() : nullptr, rows, sum.data(), nullptr);
      };
      expect_guarded(launch, {&sum}, {&losses, &weights});
    }
  }
}

TEST(SamplingCuda, StaysInItsRows) {
  for (const RowShape& s : kShapes) {
    Guarded<float> logits(s);
    Guarded<std::int64_t> keys(1, s.num_rows), positions(1, s.num_rows);
    Guarded<std::int32_t> chosen(1, s.num_rows);
    logits.fill_uniform(1);
    for (auto* numbers : {&keys, &positions}) numbers->fill([](auto, auto b) { return static_cast<float>(7 * b + 1); });
    for (const auto& filter : {SamplingFilter{}, {1}, {0.8, 50, 0.9, 0.01}}) {
      const auto launch = [&] {
        sample_tokens_cuda(logits.read(), s.num_rows, s.width, filter, keys.data(), positions.data(), chosen.data(),
                           nullptr);
      };
      expect_guarded(launch, {&chosen}, {&logits, &keys, &positions});
    }
  }
}

}  // namespace
}  // namespace lora_train::kernels
