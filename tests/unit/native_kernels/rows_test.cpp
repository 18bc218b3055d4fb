// Kernels that take their rows one by one. Numbers: kernels_test.
#include <algorithm>
#include <numeric>

#include "kernels/cross_entropy/cross_entropy_parts.h"
#include "kernels/dropout/dropout_parts.h"
#include "kernels/embedding/embedding_parts.h"
#include "kernels/gated_activation/gated_activation_parts.h"
#include "kernels/gated_norm/gated_norm_parts.h"
#include "kernels/rms_norm/rms_norm_parts.h"
#include "kernels/sampling/sampling_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

// Nothing; odd widths; ends inside a pack, a thread's second pack and a warp; several blocks or turns a row; rows longer than a
// block keeps in registers (16384 bf16, 8192 floats); gaps; misaligned rows, and rows that all begin somewhere else.
const std::vector<RowShape> kShapes = {
    {0, 8},        {1, 1},        {9, 33},           {3, 2, 1},          {3, 7, 1},           {2, 4160},
    {5, 64, 8},    {2, 16384},    {37, 45, 3},       {3, 264, 8},        {2, 4104, 3},        {2, 3584, 48},
    {2, 4864, 16}, {1, 17000, 8}, {4, 64, 0, false}, {2, 520, 0, false}, {2, 1031, 5, false}, {1, 20011, 3, false}};

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
    Guarded<T> gate(s), up(s), dy(s), y(s), d_gate(s), d_up(s);
    for (auto* input : {&gate, &up, &dy}) input->fill_uniform(1);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kSigmoid}) {
      const auto forward = [&] {
        gated_activation_forward_cuda(gate.read(), up.read(), y.rows(), s.num_rows, s.width, activation, nullptr);
      };
      const auto backward = [&](Guarded<T>& to_gate, Guarded<T>& to_up) {
        gated_activation_backward_cuda(dy.read(), gate.read(), up.read(), to_gate.rows(), to_up.rows(), s.num_rows,
                                       s.width, activation, nullptr);
      };
      expect_guarded(forward, {&y}, {&gate, &up});
      expect_guarded([&] { backward(d_gate, d_up); }, {&d_gate, &d_up}, {&dy, &gate, &up});
      const auto in_place = [&] {
        for (auto* input : {&gate, &dy}) input->fill_uniform(1);
        backward(gate, dy);
      };
      expect_guarded(in_place, {&gate, &dy}, {&up});
    }
  });
}

TEST(GatedActivationCuda, NothingToDoLaunchesNothing) {
  Guarded<float> x(1, 4), y(1, 4);
  const auto before = num_launches();
  gated_activation_forward_cuda(x.read(), x.read(), y.rows(), 0, 4, Activation::kSilu, nullptr);
  gated_activation_forward_cuda(x.read(), x.read(), y.rows(), 1, 0, Activation::kSilu, nullptr);
  gated_activation_backward_cuda(y.read(), x.read(), x.read(), x.rows(), y.rows(), 1, 0, Activation::kSilu, nullptr);
  EXPECT_EQ(num_launches(), before);
}

// Heads that take one lane and a whole warp, leave lanes idle (80), or have several packs a lane (580); more of them than
// a block has groups; odd ones, gaps, misaligned rows; many tokens, none.
struct HeadRows {
  GatedNormShape shape;
  std::int64_t gap = 0;
  bool is_aligned = true;
};
const std::vector<HeadRows> kHeadRows = {
    {{0, 1, 8}},      {{1, 1, 1}},    {{9, 3, 7}, 1}, {{4, 32, 128}, 8},       {{3, 3, 80}, 8},
    {{2, 2, 580}, 3}, {{2, 2, 1056}}, {{2, 40, 16}},  {{700, 2, 8}, 3, false}, {{1100, 3, 5}}};

template <class T>
void expect_guarded_heads(const HeadRows& rows) {
  const auto [N, H, E] = rows.shape;
  const RowShape s = {N, H * E, rows.gap, rows.is_aligned};
  Guarded<T> x(s), gate(s), dy(s), y(s), dx(s), d_gate(s), weight(1, E, 0, rows.is_aligned);
  Guarded<float> dweight(1, E), workspace(1, gated_norm_workspace(E));
  for (auto* input : {&x, &gate, &dy, &weight}) input->fill_uniform(1);
  const auto forward = [&] {
    gated_norm_forward_cuda(x.read(), gate.read(), weight.data(), 1e-6F, y.rows(), rows.shape, nullptr);
  };
  const auto backward = [&](Guarded<T>& to) {
    gated_norm_backward_cuda(dy.read(), x.read(), gate.read(), weight.data(), 1e-6F, to.rows(), d_gate.rows(),
                             rows.shape, nullptr);
  };
  expect_guarded(forward, {&y}, {&x, &gate, &weight});
  expect_guarded([&] { backward(dx); }, {&dx, &d_gate}, {&dy, &x, &gate, &weight});
  const auto weight_gradient = [&] {
    workspace.poison_values();
    dweight.fill_uniform(2);
    gated_norm_weight_gradient_cuda(dy.read(), x.read(), gate.read(), 1e-6F, dweight.data(), workspace.data(),
                                    rows.shape, nullptr);
  };
  expect_guarded(weight_gradient, {&dweight}, {&dy, &x, &gate});
  EXPECT_TRUE(workspace.is_intact());
  const auto in_place = [&] {
    for (auto* input : {&x, &dy}) input->fill_uniform(1);
    backward(dy);
    gated_norm_forward_cuda(x.read(), gate.read(), weight.data(), 1e-6F, x.rows(), rows.shape, nullptr);
  };
  expect_guarded(in_place, {&dy, &x, &d_gate}, {&gate, &weight});
}

TEST(GatedNormCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const HeadRows& rows : kHeadRows) {
      SCOPED_TRACE(testing::Message() << rows.shape.num_tokens << " x " << rows.shape.num_heads << " x "
                                      << rows.shape.head_size);
      expect_guarded_heads<T>(rows);
    }
  });
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

// Odd widths, rows of several parts, one token and none, runs longer than what a thread reads at once, gaps, misaligned rows.
const std::vector<RowShape> kTokenShapes = {{0, 8},       {1, 1},       {9, 7, 1},    {4, 64, 3},        {60, 33, 3},
                                            {150, 64, 8}, {5, 2568, 8}, {33, 300, 4}, {3, 520, 0, false}};

constexpr std::int64_t kVocabulary = 13;

/// Mostly id 4, so that its run is long; 0 and 12 are the ends of the vocabulary.
std::int32_t id_of(std::int64_t n) {
  const std::int32_t ids[] = {4, 12, 4, 0, 7, 4, 4, 3};
  return n == 0 ? 12 : ids[(n * n + n / 5) % 8];
}

template <class T>
void expect_guarded_rows(const RowShape& s) {
  const std::int64_t N = s.num_rows, D = s.width;
  Guarded<std::int32_t> ids(1, N), order(1, N);
  Guarded<std::int64_t> trained(1, 3);  // id 11 has no token
  Guarded<T> weight(kVocabulary, D, s.gap, s.is_aligned), out(s), dout(s);
  Guarded<float> values(3, D, 1, s.is_aligned), dweight(kVocabulary, D, 1, s.is_aligned), grads(3, D, 1, s.is_aligned);
  ids.fill([](auto, auto n) { return static_cast<float>(id_of(n)); });
  std::iota(order.data(), order.data() + N, 0);
  std::stable_sort(order.data(), order.data() + N, [](auto a, auto b) { return id_of(a) < id_of(b); });
  trained.fill([](auto, auto i) { return i == 2 ? 4.0F : static_cast<float>(12 - i); });
  weight.fill_uniform(1);
  values.fill_uniform(2);
  dout.fill_uniform(3);
  for (const std::int64_t num_trained : {0, 3}) {
    const auto forward = [&] {
      embedding_forward_cuda(ids.data(), weight.read(), trained.data(), num_trained, values.read(), 6.1F, out.rows(), N,
                             D, nullptr);
    };
    expect_guarded(forward, {&out}, {&ids, &weight, &trained, &values});
  }
  const auto backward = [&] {
    dweight.fill_uniform(4);
    embedding_backward_cuda(ids.data(), order.data(), dout.read(), 1.5F, dweight.rows(), N, D, nullptr);
  };
  expect_guarded(backward, {&dweight}, {&ids, &order, &dout});
  const auto backward_of_trained = [&] {
    grads.fill_uniform(5);
    trainable_rows_backward_cuda(ids.data(), order.data(), dout.read(), 2.5F, trained.data(), 3, grads.rows(), N, D,
                                 nullptr);
  };
  expect_guarded(backward_of_trained, {&grads}, {&ids, &order, &dout, &trained});
}

TEST(EmbeddingCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const RowShape& s : kTokenShapes) expect_guarded_rows<T>(s);
  });
}

/// Rows past the last one are not read and not written.
std::vector<std::vector<std::int64_t>> choices(std::int64_t num_rows) {
  std::vector<std::int64_t> some = {num_rows, 1000000}, all(static_cast<std::size_t>(num_rows));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t n = num_rows - 1; n >= 0; n -= 2) some.push_back(n);
  return {{}, some, all};
}

TEST(GatherCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const RowShape& s : kTokenShapes) {
      for (const auto& rows : choices(s.num_rows)) {
        const auto count = std::ssize(rows);
        Guarded<T> all(s), picked(count, s.width, 8, s.is_aligned);
        Guarded<std::int64_t> which(1, count);
        std::copy(rows.begin(), rows.end(), which.data());
        all.fill_uniform(1);
        const auto gather = [&] {
          gather_rows_cuda(all.read(), which.data(), picked.rows(), count, s.num_rows, s.width, nullptr);
        };
        expect_guarded(gather, {&picked}, {&all, &which});
        const auto scatter = [&] {
          all.fill_uniform(2);
          scatter_rows_cuda(picked.read(), which.data(), all.rows(), count, s.num_rows, s.width, nullptr);
        };
        expect_guarded(scatter, {&all}, {&picked, &which});
      }
    }
  });
}

TEST(TakeNextCuda, StaysInItsLists) {
  for (const std::int64_t count : {1, 70, 3000}) {
    Guarded<std::int64_t> rows(1, 2 * count), next(1, 1), picked_rows(1, count);
    Guarded<std::int32_t> targets(1, 2 * count), picked_targets(1, count);
    Guarded<float> weights(1, 2 * count), picked_weights(1, count);
    rows.fill([](auto, auto i) { return static_cast<float>(7 * i); });
    targets.fill([](auto, auto i) { return static_cast<float>(i); });
    weights.fill_uniform(1);
    const auto take = [&](const float* from, float* to) {
      next.data()[0] = count;
      take_next_cuda(rows.data(), targets.data(), from, next.data(), picked_rows.data(), picked_targets.data(), to,
                     count, nullptr);
    };
    expect_guarded([&] { take(weights.data(), picked_weights.data()); },
                   {&picked_rows, &picked_targets, &picked_weights, &next}, {&rows, &targets, &weights});
    expect_guarded([&] { take(nullptr, nullptr); }, {&picked_rows, &picked_targets, &next}, {&rows, &targets});
  }
}

}  // namespace
}  // namespace lora_train::kernels
