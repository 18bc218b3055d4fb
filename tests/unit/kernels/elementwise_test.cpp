#include <cmath>

#include "lora_train/base/philox.h"
#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/dropout/dropout.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

using Sizes = std::vector<std::pair<int64_t, int64_t>>;

class Cast : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Cast);

TEST_P(Cast, MultipliesAndRoundsAsAtenDoes) {
  const auto flat = uniform({1003}, 1).to(place.device);
  auto to_flat = at::zeros({1003}, place.options());
  scaled_copy(flat, 1.0, to_flat);
  EXPECT_TRUE(at::equal(to_flat, flat.to(place.dtype)));
  for (const auto& [rows, width] : Sizes{{1, 1}, {5, 7}, {33, 16}, {3, 2048}}) {
    const auto from = with_row_gaps(uniform({rows, width}, 1).to(place.device));
    for (const double scale : {1.0, 0.7, 16.0 / 3.0}) {
      auto to = place.empty({rows, width});
      scaled_copy(from, scale, to);
      EXPECT_TRUE(rows_are_equal(to, (from * scale).to(place.dtype))) << rows << " x " << width;
      auto back = with_row_gaps(at::zeros({rows, width}, from.options()));
      scaled_copy(to, scale, back);
      EXPECT_CLOSE(back, f64(to) * scale, tolerance(at::kFloat));
    }
  }
}

TEST_P(Cast, ManyCopiesTakeTheNewValuesOfTheirSources) {
  std::vector<at::Tensor> from, to;
  ScaledCopies copies;
  for (const auto& [rows, width] : Sizes{{300, 16}, {16, 300}, {7, 1}, {40, 15}, {700, 64}}) {
    from.push_back(uniform({rows, width}, static_cast<unsigned>(rows)).to(place.device));
    to.push_back(place.empty({rows, width}));
    copies.add(from.back(), 0.25 * static_cast<double>(from.size()), to.back());
  }
  for (int run = 0; run < 2; ++run) {
    copies.run();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double scale = 0.25 * static_cast<double>(i + 1);
      EXPECT_TRUE(rows_are_equal(to[i], (from[i] * scale).to(place.dtype))) << i;
      from[i].mul_(-3);
    }
  }
}

TEST_P(Cast, CarriesInfinityAndNaN) {
  for (const int64_t width : {8, 7}) {
    auto from = at::ones({1, width}, at::device(place.device)), to = place.empty({1, width});
    from[0][2] = HUGE_VAL;
    from[0][5] = std::nan("");
    scaled_copy(from, 0.7, to);
    EXPECT_TRUE(at::allclose(to, (from * 0.7).to(place.dtype), 0, 0, /*equal_nan=*/true)) << to;
  }
}

constexpr PhiloxKey kKey{0xa4093822u, 0x299f31d0u};

/// x with its mask, drawn for these tokens.
void drop(const at::Tensor& x, const std::vector<int>& documents, const std::vector<int>& positions, double p,
          at::Tensor& y) {
  const auto ints = [&](const std::vector<int>& values) { return at::tensor(values, at::kInt).to(x.device()); };
  dropout_forward(x, ints(documents), ints(positions), ints({static_cast<int>(kKey.k0), static_cast<int>(kKey.k1)}), p,
                  y);
}

class Dropout : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Dropout);

/// What every element draws, in [0, 1).
at::Tensor draws(const std::vector<int>& documents, const std::vector<int>& positions, int64_t D) {
  at::Tensor u = at::empty({std::ssize(documents), D}, at::kDouble);
  auto* to = u.mutable_data_ptr<double>();
  for (std::size_t n = 0; n < documents.size(); ++n) {
    for (int64_t d = 0; d < D; ++d) {
      const auto drawn = philox4x32({static_cast<std::uint32_t>(documents[n]), static_cast<std::uint32_t>(positions[n]),
                                     static_cast<std::uint32_t>(d / 4), 0},
                                    kKey);
      *to++ = static_cast<double>(drawn[static_cast<std::size_t>(d % 4)] >> 8) * std::exp2(-24);
    }
  }
  return u;
}

TEST_P(Dropout, DrawsItsMaskFromPhiloxOfDocumentPositionAndFeature) {
  const std::vector<int> documents = {0, 0, 3, 70000}, positions = {0, 1, 5, 2047};
  for (const int64_t D : {1, 6, 67, 64, 4168}) {
    const at::Tensor u = draws(documents, positions, D);
    for (const double p : {0.0, 0.05, 0.5, 0.99}) {
      const auto x = place.put(uniform({4, D}, 1) + 2);
      auto y = place.empty({4, D}), in_place = place.put(x);
      drop(x, documents, positions, p, y);
      EXPECT_TRUE(at::allclose(f64(y), at::where(u >= p, f64(x) / (1 - p), 0.0), tolerance(place.dtype), 0)) << D;
      EXPECT_TRUE(gaps_are_untouched(y));
      drop(in_place, documents, positions, p, in_place);
      EXPECT_TRUE(at::equal(in_place, y)) << D;
    }
  }
}

TEST_P(Dropout, KeepsWhatDrawsTheProbability) {
  const double u = draws({3}, {5}, 4)[0][2].item<double>();
  for (const bool is_above : {false, true}) {
    auto x = at::ones({1, 4}, place.options());
    drop(x, {3}, {5}, is_above ? u + std::exp2(-24) : u, x);
    EXPECT_EQ(x[0][2].item<double>() == 0, is_above);
  }
}

TEST_P(Dropout, ADroppedNaNIsZero) {
  const at::Tensor is_kept = draws({3}, {5}, 64) >= 0.5;
  auto x = at::full({1, 64}, std::nan(""), place.options());
  drop(x, {3}, {5}, 0.5, x);
  EXPECT_TRUE(at::equal(x.isnan().cpu(), is_kept));
  EXPECT_TRUE(at::equal(x.ne(0).cpu(), is_kept));
}

const Sizes kActivationSizes = {{1, 1}, {3, 7}, {5, 33}, {65, 129}, {1, 4101}, {2, 9728}, {0, 8}};

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kSigmoid};

class GatedActivation : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(GatedActivation);

// In fp64 this is the reference.
TEST_P(GatedActivation, MatchesAtensAutogradInFp64AndMayWriteInPlace) {
  const double limit = place.dtype == at::kFloat ? kTightFloatTolerance : tolerance(place.dtype);
  for (const auto& [rows, F] : kActivationSizes) {
    for (const auto activation : kActivations) {
      SCOPED_TRACE(::testing::Message() << rows << "x" << F << " " << static_cast<int>(activation));
      const auto gate_up = place.put(uniform({rows, 2 * F}, 6) * 9), dy = place.put(uniform({rows, F}, 2));
      const auto gate = gate_up.narrow(1, 0, F), up = gate_up.narrow(1, F, F);
      auto y = place.empty({rows, F}), d_gate = place.empty({rows, F}), d_up = place.empty({rows, F});
      gated_activation_forward(gate, up, y, activation);
      gated_activation_backward(dy, gate, up, d_gate, d_up, activation);
      const auto in_place = place.put(gate_up);
      auto parts = in_place.chunk(2, 1);
      gated_activation_backward(dy, parts[0], parts[1], parts[0], parts[1], activation);
      EXPECT_TRUE(rows_are_equal(in_place, at::cat({d_gate, d_up}, 1)));
      auto to_gate = place.put(gate), to_up = place.put(up), to_dy = place.put(dy);
      gated_activation_forward(to_gate, to_up, to_up, activation);
      gated_activation_backward(to_dy, to_gate, up, to_gate, to_dy, activation);
      EXPECT_TRUE(rows_are_equal(to_up, y) && rows_are_equal(to_gate, d_gate) && rows_are_equal(to_dy, d_up));
      if (rows == 0) continue;
      const auto exact_gate = f64(gate).requires_grad_(), exact_up = f64(up).requires_grad_();
      const auto expected = (activation == Activation::kSilu       ? at::silu(exact_gate)
                             : activation == Activation::kGeluTanh ? at::gelu(exact_gate, "tanh")
                                                                   : at::sigmoid(exact_gate)) *
                            exact_up;
      expected.backward(f64(dy));
      EXPECT_TRUE(rows_are_close(y, expected.detach(), limit));
      EXPECT_TRUE(rows_are_close(d_gate, exact_gate.grad(), limit));
      EXPECT_TRUE(rows_are_close(d_up, exact_up.grad(), limit));
    }
  }
}

TEST_P(GatedActivation, SaturatesAndCarriesNaN) {
  for (const auto activation : kActivations) {
    const auto values = at::tensor({-1e4, -200.0, -120.0, -0.0, 88.5, 200.0, 1e4, std::nan("")}, at::kDouble);
    const auto gate = values.unsqueeze(0).to(place.options()), up = at::ones_like(gate);
    auto y = at::empty_like(gate), expected = at::empty({1, 8}, at::kDouble);
    auto d_gate = at::empty_like(gate), d_up = at::empty_like(gate);
    gated_activation_forward(gate, up, y, activation);
    gated_activation_forward_reference(f64(gate), f64(up), expected, activation);
    EXPECT_CLOSE(y.narrow(1, 0, 7), expected.narrow(1, 0, 7), tolerance(place.dtype));
    EXPECT_TRUE(y[0][7].isnan().item<bool>());
    gated_activation_backward(up, gate, up, d_gate, d_up, activation);
    for (const auto& d : {d_gate, d_up}) EXPECT_EQ(d.isfinite().sum().item<int64_t>(), 7) << "all but that of the NaN";
  }
}

TEST(OutputGateInBf16, RoundsTheSigmoidAsTransformersDoes) {
  const auto x = uniform({7, 65}, 1, at::kBFloat16), gate = (uniform({7, 65}, 2) * 6).to(at::kBFloat16);
  auto y = at::empty_like(x), dx = at::empty_like(x), d_gate = at::empty_like(x);
  gated_activation_forward(gate, x, y, Activation::kSigmoid);
  EXPECT_TRUE(at::equal(y, x * at::sigmoid(gate)));
  gated_activation_backward(x, gate, x, d_gate, dx, Activation::kSigmoid);
  EXPECT_TRUE(at::equal(dx, y));
}

TEST(Elementwise, RefusesWhatDoesNotFit) {
  auto y = at::empty({2, 5}), strided = at::empty({8}).as_strided({4}, {2}), x = at::ones({1, 4});
  EXPECT_THROW(scaled_copy(at::ones({2, 4}), 1.0, y), ShapeError);
  EXPECT_THROW(scaled_copy(at::ones({4}), 1.0, strided), ShapeError);
  EXPECT_THROW(drop(x, {0}, {0}, 1.0, x), ShapeError);
  EXPECT_THROW(gated_activation_forward(at::ones({2, 4}), at::ones({2, 4}), y), ShapeError);
  EXPECT_THROW(gated_activation_forward(at::ones({2, 5}), at::ones({2, 4}), y), ShapeError);
  EXPECT_THROW(gated_activation_forward(at::ones({2, 5}), at::ones({2, 5}, at::kBFloat16), y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
