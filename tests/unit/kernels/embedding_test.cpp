#include "lora_train/kernels/embedding/embedding.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Embedding : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Embedding);

const at::Tensor& ids() {
  static const auto value = at::tensor({4, 0, 10, 4, 7, 4, 10, 3, 0}, at::kInt);
  return value;
}

/// Mostly id 4, so that its run is longer than what a thread of a GPU reads at once.
at::Tensor many_ids(int64_t count) {
  const auto n = at::arange(count, at::kInt);
  return at::where(n.remainder(3) == 0, n.remainder(11), at::full({}, 4, at::kInt));
}

at::Tensor order(const at::Tensor& of = ids()) {
  const auto sorted = order_by_id({of.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(of.numel())});
  return at::tensor(sorted, at::kInt);
}

TrainableRows trainable_rows(at::DeviceType device, int64_t D) {
  return {at::tensor({10, 2, 4}, at::kLong).to(device), uniform({3, D}, 5).to(device), at::ones({3, D}).to(device)};
}

TEST_P(Embedding, ForwardTakesFrozenRows) {
  const auto place = GetParam();
  const auto weight = place.put(uniform({11, 40}, 1));
  auto out = place.empty({9, 40});
  embedding_forward(ids().to(place.device), weight, {}, out);
  for (int64_t n = 0; n < 9; ++n) {
    EXPECT_TRUE(at::equal(out[n], weight[ids()[n].item<int64_t>()])) << n;
  }
  EXPECT_TRUE(gaps_are_untouched(out));
}

TEST_P(Embedding, ForwardTakesTrainableRowsInPlaceOfFrozenOnes) {
  const auto place = GetParam();
  const auto weight = place.put(uniform({11, 37}, 1));
  const auto rows = trainable_rows(place.device, 37);
  auto out = place.empty({9, 37});
  embedding_forward(ids().to(place.device), weight, rows, out);
  EXPECT_TRUE(at::equal(out[0], rows.values[2].to(place.dtype)));
  EXPECT_TRUE(at::equal(out[5], rows.values[2].to(place.dtype)));
  EXPECT_TRUE(at::equal(out[6], rows.values[0].to(place.dtype)));
  EXPECT_TRUE(at::equal(out[1], weight[0]));
  EXPECT_TRUE(at::equal(out[4], weight[7]));
}

TEST(EmbeddingOfMixedTypes, Bf16RowsAreWidenedAndTrainedOnesNotRounded) {
  const auto weight = uniform({7, 5}, 1, at::kBFloat16), ids = at::tensor({3, 0, 6, 3}, at::kInt);
  TrainableRows rows{at::tensor({6}, at::kLong), uniform({1, 5}, 2), {}};
  auto want = weight.to(at::kFloat).index_select(0, ids);
  want[2].copy_(rows.values[0]);
  auto out = at::empty({4, 5});
  embedding_forward(ids, weight, rows, out, 3);
  EXPECT_TRUE(at::equal(out, want * 3));
  embedding_forward(ids, weight, {}, out);
  EXPECT_TRUE(at::equal(out, weight.to(at::kFloat).index_select(0, ids)));
}

TEST_P(Embedding, BackwardAddsEveryTokenInFp32) {
  const auto place = GetParam();
  const auto dout = place.put(uniform({9, 40}, 2));
  auto dweight = at::ones({11, 40}, place.statistic({1}).options());
  TrainableRows none;
  embedding_backward(ids().to(place.device), dout, &dweight, none, order().to(place.device));
  const auto d = f64(dout);
  auto expected = at::ones({11, 40}, at::kDouble);
  for (int64_t n = 0; n < 9; ++n) {
    expected[ids()[n].item<int64_t>()] += d[n];
  }
  EXPECT_CLOSE(dweight, expected, std::min(1e-6, tolerance(place.dtype)));
}

TEST_P(Embedding, BackwardOfTrainableRowsTakesOnlyTheirTokens) {
  const auto place = GetParam();
  const auto dout = place.put(uniform({9, 37}, 2));
  auto rows = trainable_rows(place.device, 37);
  embedding_backward(ids().to(place.device), dout, nullptr, rows, order().to(place.device));
  const auto d = f64(dout);
  EXPECT_CLOSE(rows.grads[0], d[2] + d[6] + 1, 1e-6);
  EXPECT_TRUE(at::equal(rows.grads[1].cpu(), at::ones({37})));
  EXPECT_CLOSE(rows.grads[2], d[0] + d[3] + d[5] + 1, 1e-6);
}

/// What transformers multiplies by: Gemma's scale in the dtype of the weights.
double gemma_scale(const Place& place, int64_t D) {
  return at::scalar_tensor(std::sqrt(static_cast<double>(D))).to(place.dtype).item<double>();
}

TEST_P(Embedding, ForwardScalesWithTheBitsOfAProductInTheDtype) {
  const auto place = GetParam();
  const auto weight = place.put(uniform({11, 37}, 1));
  for (const bool has_rows : {false, true}) {
    const auto rows = has_rows ? trainable_rows(place.device, 37) : TrainableRows{};
    auto plain = place.empty({9, 37}), out = place.empty({9, 37});
    embedding_forward(ids().to(place.device), weight, rows, plain);
    const double scale = gemma_scale(place, 37);
    embedding_forward(ids().to(place.device), weight, rows, out, scale);
    EXPECT_TRUE(at::equal(out, plain * at::scalar_tensor(scale, plain.options()))) << has_rows;
    EXPECT_TRUE(gaps_are_untouched(out));
    embedding_forward(ids().to(place.device), weight, rows, out, 12.3);
    EXPECT_TRUE(at::equal(out, plain * 12.3)) << has_rows;
  }
}

TEST(EmbeddingReference, GradientOfAScaledEmbeddingMatchesCentralDifferences) {
  const auto weight = uniform({11, 5}, 1, at::kDouble), dout = uniform({9, 5}, 2, at::kDouble);
  auto out = at::empty({9, 5}, at::kDouble), dweight = at::zeros({11, 5}, at::kDouble);
  const auto loss = [&](const at::Tensor& values) {
    embedding_forward_reference(ids(), values, {}, out, 2.5);
    return (out * dout).sum().item<double>();
  };
  TrainableRows none;
  embedding_backward_reference(ids(), dout, &dweight, none, 2.5);
  EXPECT_CLOSE(dweight, central_differences(loss, weight), kDifferenceTolerance);
}

TEST_P(Embedding, BackwardScalesBothGradients) {
  const auto place = GetParam();
  const auto dout = place.put(uniform({9, 37}, 2));
  const auto sorted = order().to(place.device), tokens = ids().to(place.device);
  auto plain = at::zeros({11, 37}, place.statistic({1}).options()), scaled = plain.clone();
  auto plain_rows = trainable_rows(place.device, 37), scaled_rows = trainable_rows(place.device, 37);
  embedding_backward(tokens, dout, &plain, plain_rows, sorted);
  embedding_backward(tokens, dout, &scaled, scaled_rows, sorted, 2.5);
  EXPECT_CLOSE(scaled, plain * 2.5, 1e-6);
  EXPECT_CLOSE(scaled_rows.grads - 1, (plain_rows.grads - 1) * 2.5, 1e-6);
}

TEST_P(Embedding, TheReferenceDoesTheSame) {
  const auto place = GetParam();
  for (const auto& [tokens, D] : std::vector<std::pair<at::Tensor, int64_t>>{
           {ids(), 37}, {many_ids(0), 8}, {many_ids(150), 64}, {many_ids(33), 300}, {many_ids(5), 2568}}) {
    const auto weight = place.put(uniform({11, D}, 1)), dout = place.put(uniform({tokens.numel(), D}, 2));
    const auto on_device = tokens.to(place.device);
    auto rows = trainable_rows(place.device, D), reference_rows = trainable_rows(place.device, D);
    auto out = place.empty({tokens.numel(), D}), reference_out = place.empty({tokens.numel(), D});
    embedding_forward(on_device, weight, rows, out);
    embedding_forward_reference(on_device, weight, rows, reference_out);
    EXPECT_TRUE(at::equal(out, reference_out)) << D;
    auto dweight = at::ones({11, D}, place.statistic({1}).options()), reference_dweight = dweight.clone();
    embedding_backward(on_device, dout, &dweight, rows, order(tokens).to(place.device));
    embedding_backward_reference(on_device, dout, &reference_dweight, reference_rows);
    EXPECT_CLOSE(dweight, reference_dweight, 1e-6) << D;
    EXPECT_CLOSE(rows.grads, reference_rows.grads, 1e-6) << D;
  }
}

TEST(OrderById, SortsStably) {
  EXPECT_EQ(order_by_id({}), (std::vector<std::int32_t>{}));
  const std::vector<std::int32_t> some = {4, 0, 10, 4, 7, 4, 10, 3, 0, 2147483647};
  EXPECT_EQ(order_by_id(some), (std::vector<std::int32_t>{1, 8, 7, 0, 3, 5, 4, 2, 6, 9}));
}

class EmbeddingOfNativeKernels : public Embedding {};
INSTANTIATE_TEST_SUITE_P(CudaOnCpu, EmbeddingOfNativeKernels, ::testing::Values(Place{at::kCPU, at::kFloat, true}),
                         place_name);

TEST_P(EmbeddingOfNativeKernels, BackwardAsksForTheOrder) {
  auto dweight = at::zeros({11, 37});
  TrainableRows none;
  EXPECT_THROW(embedding_backward(ids(), at::ones({9, 37}), &dweight, none), ShapeError);
}

TEST(Embedding, RefusesIdsOfAnotherDtype) {
  auto out = at::empty({2, 4});
  EXPECT_THROW(embedding_forward(at::zeros({2}, at::kLong), at::ones({3, 4}), {}, out), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
