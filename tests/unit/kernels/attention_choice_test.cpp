#include <gtest/gtest.h>

#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {
namespace {

AttentionCase ordinary() {
  AttentionCase c;
  c.head_size = 128;
  c.num_docs = 16;
  c.num_heads = 28;
  c.max_len_q = c.max_len_k = 4096;
  c.sm = 90;
  return c;
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

TEST(ChooseAttention, AutoTakesTheFirstThatApplies) {
  auto c = ordinary();
  c.dtype = at::kFloat;
  EXPECT_EQ(choose_attention(c).backend, AttentionBackend::kEfficient);
  c.head_size = 256;
  EXPECT_EQ(choose_attention(c).backend, AttentionBackend::kReference);
  c.dtype = at::kDouble;
  EXPECT_EQ(choose_attention(c).backend, AttentionBackend::kReference);
  c = ordinary();
  c.has_cuda_library = false;
  EXPECT_EQ(choose_attention(c).backend, AttentionBackend::kReference);
  EXPECT_EQ(choose_attention(c).refusal, "");
}

TEST(AttentionCandidates, AreThoseThatAutoMayTakeAndItsChoiceFirst) {
  using Backends = std::vector<AttentionBackend>;
  auto c = ordinary();
  EXPECT_EQ(attention_candidates(c), (Backends{AttentionBackend::kCudnn, AttentionBackend::kFa2}));
  c.sm = 110;
  EXPECT_EQ(attention_candidates(c), (Backends{AttentionBackend::kFa2, AttentionBackend::kCudnn}));
  c.sm = 86;
  EXPECT_EQ(attention_candidates(c), Backends{AttentionBackend::kFa2});
  c.dtype = at::kFloat;
  EXPECT_EQ(attention_candidates(c), Backends{AttentionBackend::kEfficient});
  c.dtype = at::kDouble;
  EXPECT_EQ(attention_candidates(c), Backends{AttentionBackend::kReference});
  c.requested = AttentionBackend::kCudnn;
  EXPECT_EQ(attention_candidates(c), Backends{AttentionBackend::kCudnn});
}

TEST(ChooseAttention, TakesWhatIsAskedForWhereItApplies) {
  for (const auto backend : {AttentionBackend::kFa2, AttentionBackend::kCudnn, AttentionBackend::kReference}) {
    auto c = ordinary();
    c.requested = backend;
    EXPECT_EQ(choose_attention(c).backend, backend);
    EXPECT_EQ(choose_attention(c).refusal, "");
  }
}

struct Refused {
  const char* what;
  AttentionBackend requested;
  void (*change)(AttentionCase&);
  const char* part;
};

TEST(ChooseAttention, SaysWhyNot) {
  const Refused refused[] = {
      {"fp32", AttentionBackend::kFa2, [](AttentionCase& c) { c.dtype = at::kFloat; }, "bf16"},
      {"fp32", AttentionBackend::kCudnn, [](AttentionCase& c) { c.dtype = at::kFloat; }, "bf16"},
      {"bf16", AttentionBackend::kEfficient, [](AttentionCase&) {}, "fp32"},
      {"A10G", AttentionBackend::kCudnn, [](AttentionCase& c) { c.sm = 86; }, "Hopper"},
      {"RTX 5090", AttentionBackend::kCudnn, [](AttentionCase& c) { c.sm = 120; }, "Hopper"},
      {"T4", AttentionBackend::kFa2, [](AttentionCase& c) { c.sm = 75; }, "8.0"},
      {"odd head", AttentionBackend::kFa2, [](AttentionCase& c) { c.head_size = 100; }, "not 100"},
      {"wide head", AttentionBackend::kFa2, [](AttentionCase& c) { c.head_size = 264; }, "not 264"},
      {"wide head on Blackwell", AttentionBackend::kCudnn, [](AttentionCase& c) { c.head_size = 256, c.sm = 100; },
       "up to 128"},
      {"all scores", AttentionBackend::kCudnn, [](AttentionCase& c) { c.deterministic = true; }, "14336 MiB"},
      {"no library", AttentionBackend::kFa2, [](AttentionCase& c) { c.has_cuda_library = false; }, "not loaded"},
  };
  for (const auto& r : refused) {
    auto c = ordinary();
    c.requested = r.requested;
    r.change(c);
    const auto choice = choose_attention(c);
    EXPECT_EQ(choice.backend, r.requested) << r.what;
    EXPECT_NE(choice.refusal.find(r.part), std::string::npos) << r.what << ": " << choice.refusal;
  }
}

TEST(ChooseAttention, DeterministicCudnnServesShortDocuments) {
  auto c = ordinary();
  c.requested = AttentionBackend::kCudnn;
  c.deterministic = true;
  c.max_len_q = c.max_len_k = 1024;
  EXPECT_EQ(choose_attention(c).refusal, "");
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

}  // namespace
}  // namespace lora_train::kernels
