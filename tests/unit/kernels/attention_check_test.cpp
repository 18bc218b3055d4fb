#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lora_train/kernels/attention/attention.h"
#include "support/tensors.h"

namespace lora_train::kernels {
namespace {

using testing_support::uniform;

/// 4,200 rows, more than are compared at a time; empty documents at the begin, in the middle and at the end.
const std::vector<std::int64_t> kDocuments = {0, 0, 13, 13, 14, 2050, 2050, 4097, 4200, 4200};

TEST(WorstDocument, FindsTheOneThatDiffers) {
  const at::Tensor want = uniform({4300, 3, 4}, 1);
  for (const std::int64_t wrong : {1, 3, 4, 6, 7}) {
    const std::int64_t begin = kDocuments[static_cast<std::size_t>(wrong)];
    at::Tensor got = want.clone();
    got.slice(0, begin, kDocuments[static_cast<std::size_t>(wrong) + 1]).mul_(1.25);
    const DocumentError error = worst_document(got, want, kDocuments);
    EXPECT_EQ(error.document, wrong);
    EXPECT_GT(error.error, 0.15);  // few rows may have a smaller norm than the others
    EXPECT_LT(error.error, 0.25001);
  }
}

TEST(WorstDocument, RowsPastTheLastDocumentDoNotCount) {
  const at::Tensor want = uniform({4300, 5}, 1);
  at::Tensor got = want.clone();
  got.slice(0, 4200).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(worst_document(got, want, kDocuments).document, -1);
  EXPECT_EQ(worst_document(got, want, kDocuments).error, 0);
}

TEST(WorstDocument, ADocumentOfZerosIsHeldAgainstTheOthers) {
  at::Tensor want = uniform({4300, 5}, 1);
  want.slice(0, 13, 14).zero_();
  at::Tensor got = want.clone();
  got.slice(0, 13, 14).fill_(1e-7);
  EXPECT_LT(worst_document(got, want, kDocuments).error, 1e-6);
  got.slice(0, 13, 14).fill_(1);
  EXPECT_EQ(worst_document(got, want, kDocuments).document, 3);
  EXPECT_GT(worst_document(got, want, kDocuments).error, 1);
}

TEST(WorstDocument, WhatIsNotFiniteIsInfinitelyWrong) {
  const at::Tensor want = uniform({4300, 5}, 1).to(at::kBFloat16);
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor got = want.clone();
    got[4199][2] = value;
    const DocumentError error = worst_document(got, want, kDocuments);
    EXPECT_EQ(error.document, 7);
    EXPECT_TRUE(std::isinf(error.error));
    EXPECT_TRUE(std::isinf(worst_document(got, got, kDocuments).error));
  }
}

}  // namespace
}  // namespace lora_train::kernels
