#include <cmath>
#include <limits>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "support/tensors.h"

namespace lora_train::kernels {
namespace {

AttentionCase ordinary() {
  return {.head_size = 128, .num_docs = 16, .num_heads = 28, .max_len_q = 4096, .max_len_k = 4096, .sm = 90};
}

/// A described GPU: compute capability, and what auto takes there in bf16, and with deterministic: true.
struct Described {
  const char* name;
  int sm;
  AttentionBackend by_rule, deterministic;
};

TEST(ChooseAttention, AutoTakesCudnnFirstOnHopperAndDatacenterBlackwell) {
  using enum AttentionBackend;
  const Described gpus[] = {{"A100", 80, kFa2, kFa2},   {"A10G", 86, kFa2, kFa2},     {"L40S", 89, kFa2, kFa2},
                            {"H200", 90, kCudnn, kFa2}, {"B200", 100, kCudnn, kFa2},  {"B300", 103, kCudnn, kFa2},
                            {"Thor", 110, kFa2, kFa2},  {"RTX 5090", 120, kFa2, kFa2}};
  for (const auto& gpu : gpus) {
    auto c = ordinary();
    c.max_len_q = c.max_len_k = 1024;  // short enough for cuDNN to be deterministic
    c.sm = gpu.sm;
    EXPECT_EQ(choose_attention(c).backend, gpu.by_rule) << gpu.name;
    c.deterministic = true;
    EXPECT_EQ(choose_attention(c).backend, gpu.deterministic) << gpu.name;
    c.deterministic = false;
    c.head_size = 256;  // more than cuDNN takes on Blackwell
    EXPECT_EQ(choose_attention(c).backend, gpu.sm == 90 ? kCudnn : kFa2) << gpu.name;
    c.dtype = at::kFloat;
    c.head_size = 128;
    EXPECT_EQ(choose_attention(c).backend, kEfficient) << gpu.name;
  }
}

TEST(AttentionCandidates, AreThoseThatAutoMayTakeAndItsChoiceFirst) {
  using enum AttentionBackend;
  using Backends = std::vector<AttentionBackend>;
  const auto expect = [](const AttentionCase& c, const Backends& want) {
    EXPECT_EQ(attention_candidates(c), want);
    EXPECT_EQ(choose_attention(c).backend, want[0]);
    EXPECT_EQ(choose_attention(c).refusal, "");
  };
  auto c = ordinary();
  expect(c, {kCudnn, kFa2});
  c.sm = 110;
  expect(c, {kFa2, kCudnn});
  c.sm = 86;
  expect(c, {kFa2});
  c.dtype = at::kFloat;
  expect(c, {kEfficient});
  c.head_size = 256;
  expect(c, {kReference});
  c.head_size = 128;
  c.dtype = at::kDouble;
  expect(c, {kReference});
  c = ordinary();
  c.requested = kCudnn;
  expect(c, {kCudnn});
  c.requested = kAuto;
  c.has_cuda_library = false;
  EXPECT_EQ(choose_attention(c).backend, kReference);
  EXPECT_EQ(choose_attention(c).refusal, "");
}

TEST(ChooseAttention, TakesWhatIsAskedForWhereItApplies) {
  for (const auto backend : {AttentionBackend::kFa2, AttentionBackend::kCudnn, AttentionBackend::kReference}) {
    auto c = ordinary();
    c.requested = backend;
    EXPECT_EQ(choose_attention(c).backend, backend);
    EXPECT_EQ(choose_attention(c).refusal, "");
    c.deterministic = true;
    c.max_len_q = c.max_len_k = 1024;
    EXPECT_EQ(choose_attention(c).refusal, "") << "cuDNN serves short documents";
  }
}

struct Refused {
  AttentionBackend requested;
  void (*change)(AttentionCase&);
  const char* part;
};

TEST(ChooseAttention, SaysWhyNot) {
  using enum AttentionBackend;
  const Refused refused[] = {
      {kFa2, [](auto& c) { c.dtype = at::kFloat; }, "bf16"},
      {kCudnn, [](auto& c) { c.dtype = at::kFloat; }, "bf16"},
      {kEfficient, [](auto&) {}, "fp32"},
      {kCudnn, [](auto& c) { c.sm = 86; }, "Hopper"},
      {kCudnn, [](auto& c) { c.sm = 120; }, "Hopper"},
      {kFa2, [](auto& c) { c.sm = 75; }, "8.0"},
      {kFa2, [](auto& c) { c.head_size = 100; }, "not 100"},
      {kFa2, [](auto& c) { c.head_size = 264; }, "not 264"},
      {kCudnn, [](auto& c) { c.head_size = 256, c.sm = 100; }, "up to 128"},
      {kCudnn, [](auto& c) { c.deterministic = true; }, "14336 MiB"},
      {kFa2, [](auto& c) { c.has_cuda_library = false; }, "not loaded"},
  };
  for (const auto& r : refused) {
    auto c = ordinary();
    c.requested = r.requested;
    r.change(c);
    const auto choice = choose_attention(c);
    EXPECT_EQ(choice.backend, r.requested) << r.part;
    EXPECT_NE(choice.refusal.find(r.part), std::string::npos) << r.part << ": " << choice.refusal;
  }
}

TEST(AttentionCallBytes, OfASevenBillionModelAt16kTokens) {
  const AttentionSizes sizes{16384, 8, 4096, 28, 4, 128, 132};
  const int64_t of_heads = int64_t{16384} * 28 * 128;
  // Two bf16 copies, dq, dk and dv of every head, and the fp32 sum of dq with 128 spare rows a document.
  const int64_t fa2 = attention_call_bytes(AttentionBackend::kFa2, sizes);
  EXPECT_GT(fa2, (2 * 2 + 2 + 2 * 2 + 4) * of_heads);
  EXPECT_LT(fa2, (2 * 2 + 2 + 2 * 2 + 4) * of_heads * 11 / 10);
  // 12.031 bytes a head element were named by cuDNN 9.19 (tests/unit/cuda), bf16 gradients come on top.
  const int64_t cudnn = attention_call_bytes(AttentionBackend::kCudnn, sizes);
  EXPECT_NEAR(static_cast<double>(cudnn_workspace_bytes(sizes)) / static_cast<double>(of_heads), 12.05, 0.02);
  EXPECT_EQ(cudnn - cudnn_workspace_bytes(sizes), 2 * of_heads * 36 / 28);
  EXPECT_EQ(attention_call_bytes(AttentionBackend::kReference, sizes), 0);
}

TEST(AttentionCallBytes, FewHeadsThatAreDeterministicSplitTheirSums) {
  AttentionSizes sizes{4096, 1, 4096, 14, 2, 64, 132};
  const int64_t plain = attention_call_bytes(AttentionBackend::kFa2, sizes);
  sizes.deterministic = true;
  const int64_t rows = 4096 + 128;
  EXPECT_EQ(attention_call_bytes(AttentionBackend::kFa2, sizes) - plain, (10 - 1) * rows * 14 * 64 * 4);
}

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
