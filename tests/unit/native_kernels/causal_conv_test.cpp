// Numbers: causal_conv_test.cpp of kernels_test.
#include <algorithm>

#include "kernels/causal_conv/causal_conv_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct ConvShape {
  std::vector<std::int32_t> cu;
  std::int64_t num_tokens, channels;
  int taps = 4;
  std::int64_t gap = 0;
  bool is_aligned = true;

  RowShape rows() const { return {num_tokens, channels, gap, is_aligned}; }
};

// No tokens, no sequences, empty ones, tokens past them, runs of one token and of many; several blocks of channels, odd
// numbers of them, short and long filters, gaps, misaligned rows.
const std::vector<ConvShape> kConvShapes = {{{0}, 0, 8},
                                            {{0}, 3, 8},
                                            {{0, 0}, 0, 8},
                                            {{0, 1}, 1, 1},
                                            {{0, 1, 1, 3, 4}, 4, 64},
                                            {{0, 2, 5, 9}, 11, 7, 4, 3},
                                            {{0, 2, 5, 9}, 11, 64, 4, 8},
                                            {{0, 70, 71, 150}, 152, 33, 4, 1},
                                            {{0, 70, 71, 150}, 152, 16, 4, 0, false},
                                            {{0, 70, 71, 150}, 152, 8, 3},
                                            {{0, 6, 20}, 21, 9, 8},
                                            {{0, 6, 20}, 21, 9, 1},
                                            {{0, 3, 6}, 6, 1100, 4, 3},
                                            {{0, 3, 6}, 6, 1104},
                                            {{0, 33, 2082, 2082}, 2100, 8}};

template <class T>
struct ConvBuffers {
  explicit ConvBuffers(const ConvShape& shape)
      : s(shape),
        count(std::ssize(s.cu) - 1),
        cu(1, count + 1),
        state_rows(1, count),
        x(s.rows()),
        dy(s.rows()),
        y(s.rows()),
        dx(s.rows()),
        weight(1, s.channels * s.taps, 0, s.is_aligned),
        state(count, s.channels * (s.taps - 1), s.gap),
        dweight(1, s.channels * s.taps),
        workspace(1, causal_conv_workspace(s.channels)) {
    std::copy(s.cu.begin(), s.cu.end(), cu.data());
    state_rows.fill([&](auto, auto i) { return static_cast<float>(count - 1 - i); });
    for (auto* input : {&x, &dy, &weight}) input->fill_uniform(1);
  }
  ConvFilter<T> filter() { return {weight.data(), s.channels, s.taps}; }
  DeviceRanges sequences(bool has_states) {
    return {cu.data(), count, s.num_tokens, has_states ? state_rows.data() : nullptr};
  }

  void expect_forward() {
    const auto forward = [&](bool has_states) {
      if (has_states) state.fill_uniform(2);
      causal_conv_forward_cuda(x.read(), filter(), sequences(has_states), has_states ? state.rows() : Rows<T>{},
                               y.rows(), nullptr);
    };
    expect_guarded([&] { forward(false); }, {&y}, {&x, &weight, &cu});
    expect_guarded([&] { forward(true); }, {&y, &state}, {&x, &weight, &cu, &state_rows});
  }
  void expect_backward() {
    const auto backward = [&] {
      causal_conv_backward_cuda(dy.read(), x.read(), filter(), sequences(false), dx.rows(), nullptr);
    };
    expect_guarded(backward, {&dx}, {&dy, &x, &weight, &cu});
    const auto weight_gradient = [&] {
      workspace.poison_values();
      dweight.fill_uniform(3);
      causal_conv_weight_gradient_cuda(dy.read(), x.read(), filter(), sequences(false), dweight.data(),
                                       workspace.data(), nullptr);
    };
    expect_guarded(weight_gradient, {&dweight}, {&dy, &x, &weight, &cu});
    EXPECT_TRUE(workspace.is_intact());
  }

  ConvShape s;
  std::int64_t count;
  Guarded<std::int32_t> cu;
  Guarded<std::int64_t> state_rows;
  Guarded<T> x, dy, y, dx, weight, state;
  Guarded<float> dweight, workspace;
};

TEST(CausalConvCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const ConvShape& s : kConvShapes) {
      SCOPED_TRACE(testing::Message() << s.num_tokens << " x " << s.channels << ", " << s.taps << " taps");
      ConvBuffers<T> buffers(s);
      buffers.expect_forward();
      buffers.expect_backward();
    }
  });
}

TEST(CausalConvCuda, NothingToDoLaunchesNothing) {
  ConvBuffers<float> buffers({{0, 0}, 0, 8});
  const auto before = num_launches();
  buffers.expect_forward();
  buffers.expect_backward();
  EXPECT_EQ(num_launches(), before);
}

}  // namespace
}  // namespace lora_train::kernels
