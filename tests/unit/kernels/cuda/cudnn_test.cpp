// cuDNN takes the attention graphs of our models: asked without a GPU, for described ones.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <set>
#include <stdexcept>
#include <vector>

#include "cuda/cudnn_plans.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::kernels {
namespace {

/// As cuDNN writes the properties of a device.
std::string gpu_json(int sm) {
  const bool is_large = sm == 80 || sm >= 90;  // A100, H100, B200; else A10G and L40S
  const int num_sms = sm == 100 ? 148 : sm == 90 ? 132 : sm == 80 ? 108 : sm == 86 ? 80 : 142;
  const int shared = sm >= 90 ? 232448 : sm == 80 ? 166912 : 101376;
  const auto field = [](const std::string& name, int value) { return ",\"" + name + "\":" + std::to_string(value); };
  return R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,)"
         R"("maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
         R"("maxThreadsPerBlock":1024,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85028765696,)"
         R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800,"cudaDeviceId":0,"driverVer":13000,)"
         R"("deviceName":"described")" +
         field("multiProcessorCount", num_sms) + field("maxSharedMemoryPerBlockOptin", shared) +
         field("maxCtasPerSM", is_large   ? 32
                               : sm == 86 ? 16
                                          : 24) +
         field("maxThreadsPerSM", is_large ? 2048 : 1536) + field("deviceVer", 10 * sm) + "}";
}

class CudnnPlans : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Without a driver cuDNN loads this one; glibc knows it by its soname.
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      ASSERT_NE(::dlopen(LORA_TRAIN_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    }
    const CudaFolders folders = default_cuda_folders();
    load_cuda_library(folders.library, folders.torch);
  }

  static CudnnPlan check(const CudnnShape& shape, int sm, bool with_compilation = false) {
    return cuda_library()->check_cudnn_plan(shape, gpu_json(sm), sm, with_compilation);
  }
};

struct Heads {
  std::int64_t num_heads, num_kv_heads, head_size;
};

/// 16,384 tokens in documents of up to 4,096, out of a buffer of q|k|v, into one with 64 adapter columns behind.
CudnnShape shape_of(const Heads& heads) {
  CudnnShape shape;
  shape.num_docs = 8;
  shape.max_len_q = shape.max_len_k = 4096;
  shape.total_q = shape.total_k = 16384;
  shape.num_heads = heads.num_heads;
  shape.num_kv_heads = heads.num_kv_heads;
  shape.head_size = heads.head_size;
  shape.q_stride = shape.k_stride = shape.v_stride = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_size;
  shape.out_stride = shape.dout_stride = heads.num_heads * heads.head_size + 64;
  shape.scale = 1 / std::sqrt(static_cast<double>(heads.head_size));
  return shape;
}

TEST_F(CudnnPlans, HopperTakesTheShapesOfOurModels) {
  // Qwen2.5 0.5B and 7B, Llama 3.2 1B, Llama 3.1 8B and Mistral 7B, Qwen3 0.6B; one head size beyond 128.
  for (const Heads& heads : {Heads{14, 2, 64}, Heads{28, 4, 128}, Heads{32, 8, 64}, Heads{32, 8, 128},
                             Heads{16, 8, 128}, Heads{8, 4, 256}}) {
    for (const std::int64_t window : {0, 1024, 4096}) {
      for (const bool deterministic : {false, true}) {
        CudnnShape shape = shape_of(heads);
        shape.window = window;
        shape.deterministic = deterministic;
        EXPECT_EQ(check(shape, 90).refusal, "")
            << heads.num_heads << "/" << heads.num_kv_heads << " x " << heads.head_size << ", window " << window
            << ", deterministic " << deterministic;
      }
    }
  }
}

// What choose_attention() takes by rule.
TEST_F(CudnnPlans, DatacenterBlackwellTakesTheShapesOfOurModels) {
  for (const Heads& heads : {Heads{14, 2, 64}, Heads{28, 4, 128}, Heads{32, 8, 128}}) {
    for (const std::int64_t window : {0, 4096}) {
      CudnnShape shape = shape_of(heads);
      shape.window = window;
      EXPECT_EQ(check(shape, 100).refusal, "") << heads.num_heads << ", window " << window;
    }
  }
}

TEST_F(CudnnPlans, HopperTakesSmallHeadsFewAndShortDocumentsAndFewerQueriesThanKeys) {
  std::vector<CudnnShape> shapes = {shape_of({28, 4, 128})};
  shapes[0].max_len_q = 1024;
  shapes[0].total_q = 4096;
  for (const std::int64_t head_size : {8, 16, 32, 72, 96, 192}) shapes.push_back(shape_of({4, 2, head_size}));
  using Documents = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [num_docs, longest] : {Documents{1, 128}, {1, 16384}, {256, 512}, {3, 100}}) {
    CudnnShape& shape = shapes.emplace_back(shape_of({28, 4, 128}));
    shape.num_docs = num_docs;
    shape.max_len_q = shape.max_len_k = longest;
  }
  for (const CudnnShape& shape : shapes) {
    EXPECT_EQ(check(shape, 90).refusal, "")
        << shape.num_docs << " documents of up to " << shape.max_len_k << ", heads of " << shape.head_size;
  }
}

// What choose_attention() refuses, cuDNN refuses.
TEST_F(CudnnPlans, AmpereAndAdaHaveNoBackwardOverPackedDocuments) {
  for (const int sm : {80, 86, 89}) {
    const CudnnPlan plan = check(shape_of({28, 4, 128}), sm);
    EXPECT_NE(plan.refusal.find("backward: validate: Packed/ragged LSE is not supported"), std::string::npos)
        << plan.refusal;
  }
}

TEST_F(CudnnPlans, RefusesRowsThatAreNotAlignedAndADescriptionThatItCannotRead) {
  CudnnShape shape = shape_of({28, 4, 128});
  shape.out_stride += 4;
  EXPECT_NE(check(shape, 90).refusal.find("alignment"), std::string::npos);
  EXPECT_THROW(cuda_library()->check_cudnn_plan(shape_of({28, 4, 128}), "{}", 90, false), DeviceError);
}

TEST_F(CudnnPlans, CompilesAndNamesItsWorkspaces) {
  for (const std::int64_t num_tokens : {16384, 5000}) {
    CudnnShape shape = shape_of({28, 4, 128});
    shape.total_q = shape.total_k = num_tokens;
    const CudnnPlan plan = check(shape, 90, /*with_compilation=*/true);
    ASSERT_EQ(plan.refusal, "");
    EXPECT_NE(plan.engines.find("forward eng"), std::string::npos) << plan.engines;
    EXPECT_NE(plan.engines.find("backward eng"), std::string::npos) << plan.engines;
    EXPECT_LT(plan.forward_bytes, 1 << 20);
    const AttentionSizes sizes{num_tokens, 8, 4096, 28, 4, 128};
    EXPECT_LE(plan.backward_bytes, cudnn_workspace_bytes(sizes));
    EXPECT_GT(plan.backward_bytes, cudnn_workspace_bytes(sizes) / 100 * 98);
  }
}

TEST_F(CudnnPlans, ThreadsCompileAtTheSameTime) {
  std::vector<std::future<CudnnPlan>> plans;
  for (const std::int64_t longest : {512, 1024, 2048}) {
    CudnnShape shape = shape_of({14, 2, 64});
    shape.max_len_q = shape.max_len_k = longest;
    plans.push_back(std::async(std::launch::async, [shape] { return check(shape, 90, /*with_compilation=*/true); }));
  }
  for (auto& plan : plans) EXPECT_GT(plan.get().backward_bytes, 0);
}

using cuda::backward_key, cuda::forward_key;

CudnnShape shape_of(std::int64_t num_docs, std::int64_t longest, std::int64_t num_tokens) {
  CudnnShape shape;
  shape.num_docs = num_docs;
  shape.max_len_q = shape.max_len_k = longest;
  shape.total_q = shape.total_k = num_tokens;
  shape.num_heads = 28;
  shape.num_kv_heads = 4;
  shape.head_size = 128;
  return shape;
}

TEST(CudnnKeys, AForwardPlanServesAnyTotalAndMode) {
  CudnnShape backward = shape_of(5, 3000, 9000);
  backward.dout_stride = 3584;
  backward.deterministic = true;
  EXPECT_EQ(forward_key(backward), forward_key(shape_of(7, 2500, 16000)));
  EXPECT_NE(forward_key(shape_of(9, 3000, 9000)), forward_key(shape_of(5, 3000, 9000)));
  EXPECT_NE(forward_key(shape_of(5, 5000, 9000)), forward_key(shape_of(5, 3000, 9000)));
  CudnnShape strided = shape_of(5, 3000, 9000);
  strided.out_stride = 3648;
  EXPECT_NE(forward_key(strided), forward_key(shape_of(5, 3000, 9000)));
}

TEST(CudnnKeys, ABackwardPlanDependsOnItsGradientAndModeAndARunHasOneTotal) {
  CudnnShape strided = shape_of(8, 4096, 16384), deterministic = strided;
  strided.dout_stride = 3648;
  deterministic.deterministic = true;
  for (const CudnnShape& other : {strided, deterministic})
    EXPECT_NE(backward_key(other, 0), backward_key(shape_of(8, 4096, 16384), 0));
  std::set<CudnnShape> known, unknown;
  for (std::int64_t num_tokens = 8192; num_tokens <= 16384; num_tokens += 128) {
    known.insert(backward_key(shape_of(8, 4096, num_tokens), 16000));
    unknown.insert(backward_key(shape_of(8, 4096, num_tokens), 0));
  }
  EXPECT_EQ(known.begin()->total_q, 16000) << "what the planner counts";
  EXPECT_EQ(known.size(), 4U) << "the run's, and those beyond it";
  EXPECT_EQ(unknown.size(), 5U);
}

struct Plans {
  int num_started = 0, num_waits = 0;
  std::atomic<int> num_built = 0;
  cuda::PlanCache<std::int64_t> cache{3,
                                      [this](const CudnnShape& key) {
                                        ++num_started;
                                        if (key.num_docs == 13) throw std::runtime_error("refused");
                                        return [this, key] {
                                          ++num_built;
                                          if (key.num_docs == 14) throw std::runtime_error("not built");
                                          return key.num_docs;
                                        };
                                      },
                                      [this] { ++num_waits; }};
  std::int64_t get(std::int64_t num_docs, bool is_capturing = false) {
    return cache.get(shape_of(num_docs, 1, 1), is_capturing);
  }
  bool has(std::int64_t num_docs) const { return cache.has(shape_of(num_docs, 1, 1)); }
};

TEST(PlanCache, BuildsAPlanOnceAheadOfItsUse) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2}) plans.cache.begin(shape_of(num_docs, 1, 1));
  plans.cache.wait_for_builds();
  EXPECT_EQ(plans.num_built, 2);
  EXPECT_EQ(plans.get(2), 2);
  EXPECT_EQ(plans.get(1), 1);
  EXPECT_EQ(plans.num_started, 2);
}

TEST(PlanCache, CarriesAFailureToTheOneWhoNeedsThePlan) {
  Plans plans;
  for (const std::int64_t num_docs : {13, 14, 1}) plans.cache.begin(shape_of(num_docs, 1, 1));
  plans.cache.wait_for_builds();
  EXPECT_EQ(plans.get(1), 1);
  for (const std::int64_t num_docs : {13, 14, 13}) EXPECT_THROW(plans.get(num_docs), std::runtime_error) << num_docs;
}

TEST(PlanCache, DropsThePlanThatWasNotUsedForLongest) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2, 3, 1, 4}) plans.get(num_docs);
  EXPECT_EQ(plans.cache.size(), 3U);
  EXPECT_TRUE(plans.has(1) && !plans.has(2) && plans.has(3) && plans.has(4));
  EXPECT_EQ(plans.num_waits, 1) << "the device may still use it";
}

TEST(PlanCache, KeepsWhatACapturedGraphUses) {
  Plans plans;
  for (const std::int64_t num_docs : {1, 2, 3, 4}) plans.get(num_docs, /*is_capturing=*/true);
  EXPECT_EQ(plans.num_waits, 0) << "a capture must not wait";
  for (const std::int64_t num_docs : {5, 6}) EXPECT_EQ(plans.get(num_docs), num_docs);
  for (const std::int64_t num_docs : {1, 2, 3, 4, 6}) EXPECT_TRUE(plans.has(num_docs)) << num_docs;
  EXPECT_FALSE(plans.has(5));
}

}  // namespace
}  // namespace lora_train::kernels
