#include "lora_train/kernels/embedding.h"

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

TrainableRows trainable_rows(at::DeviceType device, int64_t D) {
  return {at::tensor({10, 2, 4}, at::kLong).to(device), uniform({3, D}, 5).to(device), at::ones({3, D}).to(device)};
}

TEST_P(Embedding, ForwardTakesFrozenRows) {
  const auto place = GetParam();
  const auto weight = place.put(uniform({11, 37}, 1));
  auto out = place.empty({9, 37});
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

TEST_P(Embedding, BackwardAddsEveryTokenInFp32) {
  const auto place = GetParam();
  const auto dout = place.put(uniform({9, 37}, 2));
  auto dweight = at::ones({11, 37}, place.statistic({1}).options());
  TrainableRows none;
  embedding_backward(ids().to(place.device), dout, &dweight, none);
  const auto d = f64(dout);
  auto expected = at::ones({11, 37}, at::kDouble);
  for (int64_t n = 0; n < 9; ++n) {
    expected[ids()[n].item<int64_t>()] += d[n];
  }
  EXPECT_CLOSE(dweight, expected, std::min(1e-6, tolerance(place.dtype)));
}

TEST_P(Embedding, BackwardOfTrainableRowsTakesOnlyTheirTokens) {
  const auto place = GetParam();
  const auto dout = place.put(uniform({9, 37}, 2));
  auto rows = trainable_rows(place.device, 37);
  embedding_backward(ids().to(place.device), dout, nullptr, rows);
  const auto d = f64(dout);
  EXPECT_CLOSE(rows.grads[0], d[2] + d[6] + 1, 1e-6);
  EXPECT_TRUE(at::equal(rows.grads[1].cpu(), at::ones({37})));
  EXPECT_CLOSE(rows.grads[2], d[0] + d[3] + d[5] + 1, 1e-6);
}

TEST(Embedding, RefusesIdsOfAnotherDtype) {
  auto out = at::empty({2, 4});
  EXPECT_THROW(embedding_forward(at::zeros({2}, at::kLong), at::ones({3, 4}), {}, out), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
