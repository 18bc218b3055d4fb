#include "lora_train/kernels/embedding/embedding.h"

#include "support/kernel_test.h"

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

TEST_P(Embedding, ForwardTakesTrainableRowsInPlaceOfFrozenOnes) {
  const auto weight = place.put(uniform({11, 37}, 1));
  const auto rows = trainable_rows(place.device, 37);
  const auto index = ids().to(place.device, at::kLong);
  const auto frozen = weight.index_select(0, index);
  const auto trained = weight.index_copy(0, rows.indices, rows.values.to(place.dtype)).index_select(0, index);
  auto out = place.empty({9, 37});
  embedding_forward(ids().to(place.device), weight, {}, out);
  EXPECT_TRUE(rows_are_equal(out, frozen));
  embedding_forward(ids().to(place.device), weight, rows, out);
  EXPECT_TRUE(rows_are_equal(out, trained));
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

TEST_P(Embedding, ForwardScalesWithTheBitsOfAProductInTheDtype) {
  const auto weight = place.put(uniform({11, 37}, 1));
  for (const bool has_rows : {false, true}) {
    const auto rows = has_rows ? trainable_rows(place.device, 37) : TrainableRows{};
    auto plain = place.empty({9, 37}), out = place.empty({9, 37});
    embedding_forward(ids().to(place.device), weight, rows, plain);
    const double scale = at::scalar_tensor(std::sqrt(37.0)).to(place.dtype).item<double>();  // as Gemma's
    embedding_forward(ids().to(place.device), weight, rows, out, scale);
    EXPECT_TRUE(rows_are_equal(out, plain * at::scalar_tensor(scale, plain.options()))) << has_rows;
    embedding_forward(ids().to(place.device), weight, rows, out, 12.3);
    EXPECT_TRUE(at::equal(out, plain * 12.3)) << has_rows;
  }
}

TEST(EmbeddingReference, GradientsOfAScaledEmbeddingMatchCentralDifferences) {
  const auto weight = uniform({11, 5}, 1, at::kDouble), dout = uniform({9, 5}, 2, at::kDouble);
  auto out = at::empty({9, 5}, at::kDouble), dweight = at::zeros({11, 5}, at::kDouble);
  const auto loss = [&](const at::Tensor& values, const TrainableRows& rows) {
    embedding_forward_reference(ids(), values, rows, out, 2.5);
    return (out * dout).sum().item<double>();
  };
  TrainableRows none, rows = trainable_rows(at::kCPU, 5);
  embedding_backward_reference(ids(), dout, &dweight, none, 2.5);
  EXPECT_CLOSE(dweight, central_differences([&](const auto& w) { return loss(w, {}); }, weight), kDifferenceTolerance);
  embedding_backward_reference(ids(), dout, nullptr, rows, 2.5);
  const auto of_rows = [&](const at::Tensor& values) {
    return loss(weight, {rows.indices, values.to(at::kFloat), {}});
  };
  // Values in fp32: a larger step.
  EXPECT_CLOSE(rows.grads - 1, central_differences(of_rows, f64(rows.values), 0.25), kTightFloatTolerance);
}

TEST_P(Embedding, TheReferenceDoesTheSame) {
  using Case = std::tuple<at::Tensor, int64_t, double>;
  for (const auto& [tokens, D, scale] : {Case{ids(), 37, 2.5},
                                         {many_ids(0), 8, 1},
                                         {many_ids(150), 64, 1},
                                         {many_ids(33), 300, 2.5},
                                         {many_ids(5), 2568, 1}}) {
    const auto weight = place.put(uniform({11, D}, 1)), dout = place.put(uniform({tokens.numel(), D}, 2));
    const auto on_device = tokens.to(place.device), sorted = order(tokens).to(place.device);
    auto rows = trainable_rows(place.device, D), reference_rows = trainable_rows(place.device, D);
    auto out = place.empty({tokens.numel(), D}), reference_out = place.empty({tokens.numel(), D});
    embedding_forward(on_device, weight, rows, out);
    embedding_forward_reference(on_device, weight, rows, reference_out);
    EXPECT_TRUE(at::equal(out, reference_out)) << D;
    auto dweight = at::ones({11, D}, place.statistic({1}).options()), reference_dweight = dweight.clone();
    embedding_backward(on_device, dout, &dweight, rows, sorted, scale);
    embedding_backward_reference(on_device, dout, &reference_dweight, reference_rows, scale);
    EXPECT_CLOSE(dweight, reference_dweight, 1e-6) << D;
    EXPECT_CLOSE(rows.grads, reference_rows.grads, 1e-6) << D;
  }
}

TEST(OrderById, SortsStably) {
  EXPECT_EQ(order_by_id({}), (std::vector<std::int32_t>{}));
  const std::vector<std::int32_t> some = {4, 0, 10, 4, 7, 4, 10, 3, 0, 2147483647};
  EXPECT_EQ(order_by_id(some), (std::vector<std::int32_t>{1, 8, 7, 0, 3, 5, 4, 2, 6, 9}));
}

class Gather : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Gather);

TEST_P(Gather, PicksRowsAndPutsThemBackButThosePastTheEnd) {
  for (const auto& list : std::vector<std::vector<int64_t>>{{5, 2, 1, 10}, {2, 11, 0, 1000}, {}}) {
    for (const int64_t D : {1, 37, 128, 2568}) {
      const auto rows = at::tensor(list, at::kLong).to(place.device), inside = (rows < 11).nonzero().squeeze(1);
      const auto there = rows.index_select(0, inside);
      const auto from = place.put(uniform({11, D}, 1));
      auto picked = at::full({rows.numel(), D}, 7.0, from.options()), whole = place.empty({11, D});
      gather_rows(from, rows, picked);
      EXPECT_TRUE(at::equal(picked, at::zeros_like(picked).index_copy_(0, inside, from.index_select(0, there))));
      scatter_rows(picked, rows, whole);
      EXPECT_TRUE(rows_are_equal(whole, at::full_like(whole, 7).index_copy_(0, there, from.index_select(0, there))));
    }
  }
}

TEST_P(Gather, TakesAListPartByPart) {
  for (const int64_t count : {1, 70, 3000}) {
    const auto rows = (at::arange(3 * count, at::kLong) * 7).to(place.device);
    const auto targets = (at::arange(3 * count, at::kInt) + 5).to(place.device);
    for (const auto& weights : {at::Tensor(), uniform({3 * count}, 1).to(place.device)}) {
      auto next = at::full({}, count, rows.options());
      RowLists picked{at::zeros({count}, rows.options()), at::zeros({count}, targets.options()), {}};
      if (weights.defined()) picked.weights = at::zeros({count}, weights.options());
      for (const int64_t begin : {count, 2 * count}) {
        take_next({rows, targets, weights}, next, picked);
        EXPECT_TRUE(at::equal(picked.rows, rows.narrow(0, begin, count))) << count;
        EXPECT_TRUE(at::equal(picked.targets, targets.narrow(0, begin, count))) << count;
        if (weights.defined()) {
          EXPECT_TRUE(at::equal(picked.weights, weights.narrow(0, begin, count))) << count;
        }
        EXPECT_EQ(next.item<int64_t>(), begin + count);
      }
    }
  }
}

class EmbeddingOfNativeKernels : public Embedding {};
INSTANTIATE_TEST_SUITE_P(CudaOnCpu, EmbeddingOfNativeKernels, ::testing::Values(Place{at::kCPU, at::kFloat, true}),
                         place_name);

TEST_P(EmbeddingOfNativeKernels, BackwardAsksForTheOrder) {
  auto dweight = at::zeros({11, 37});
  TrainableRows none;
  EXPECT_THROW(embedding_backward(ids(), at::ones({9, 37}), &dweight, none), ShapeError);
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  auto out = at::empty({2, 4});
  EXPECT_THROW(embedding_forward(at::zeros({2}, at::kLong), at::ones({3, 4}), {}, out), ShapeError);
  EXPECT_THROW(gather_rows(at::ones({5, 4}), at::tensor({1, 2, 3}, at::kLong), out), ShapeError);
  EXPECT_THROW(scatter_rows(at::ones({3, 4}), at::tensor({0, 1}, at::kLong), out), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
