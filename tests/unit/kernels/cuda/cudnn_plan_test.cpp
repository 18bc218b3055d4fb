// cuDNN takes the attention graphs of our models: asked without a GPU, for described ones.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::kernels {
namespace {

/// As cuDNN writes the properties of a device.
std::string gpu_json(int sm) {
  const bool is_large = sm == 80 || sm >= 90;  // A100, H100, B200; else A10G and L40S
  const int num_sms = sm == 100 ? 148 : sm == 90 ? 132 : sm == 80 ? 108 : sm == 86 ? 80 : 142;
  const int shared = sm >= 90 ? 232448 : sm == 80 ? 166912 : 101376;
  return R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
         R"("multiProcessorCount":)" +
         std::to_string(num_sms) +
         R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
         R"("maxSharedMemoryPerBlockOptin":)" +
         std::to_string(shared) +
         R"(,"reservedSharedMemoryPerBlock":1024,)"
         R"("maxRegistersPerSM":65536,"maxCtasPerSM":)" +
         (is_large   ? "32"
          : sm == 86 ? "16"
                     : "24") +
         R"(,"maxThreadsPerBlock":1024,"maxThreadsPerSM":)" + (is_large ? "2048" : "1536") +
         R"(,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85028765696,)"
         R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800,"cudaDeviceId":0,)"
         R"("deviceVer":)" +
         std::to_string(10 * sm) + R"(,"driverVer":13000,"deviceName":"described"})";
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

TEST_F(CudnnPlans, HopperTakesSmallHeads) {
  for (const std::int64_t head_size : {8, 16, 32, 72, 96, 192}) {
    EXPECT_EQ(check(shape_of({4, 2, head_size}), 90).refusal, "") << head_size;
  }
}

TEST_F(CudnnPlans, HopperTakesFewAndShortDocuments) {
  for (const auto& [num_docs, longest] :
       {std::pair<std::int64_t, std::int64_t>{1, 128}, {1, 16384}, {256, 512}, {3, 100}}) {
    CudnnShape shape = shape_of({28, 4, 128});
    shape.num_docs = num_docs;
    shape.max_len_q = shape.max_len_k = longest;
    EXPECT_EQ(check(shape, 90).refusal, "") << num_docs << " documents of up to " << longest;
  }
}

TEST_F(CudnnPlans, QueriesMayBeFewerThanKeys) {
  CudnnShape shape = shape_of({28, 4, 128});
  shape.max_len_q = 1024;
  shape.total_q = 4096;
  EXPECT_EQ(check(shape, 90).refusal, "");
}

// What choose_attention() refuses, cuDNN refuses.
TEST_F(CudnnPlans, AmpereAndAdaHaveNoBackwardOverPackedDocuments) {
  for (const int sm : {80, 86, 89}) {
    const CudnnPlan plan = check(shape_of({28, 4, 128}), sm);
    EXPECT_NE(plan.refusal.find("backward: validate: Packed/ragged LSE is not supported"), std::string::npos)
        << plan.refusal;
  }
}

TEST_F(CudnnPlans, RefusesRowsThatAreNotAligned) {
  CudnnShape shape = shape_of({28, 4, 128});
  shape.out_stride += 4;
  EXPECT_NE(check(shape, 90).refusal.find("alignment"), std::string::npos);
}

TEST_F(CudnnPlans, RefusesADescriptionThatItCannotRead) {
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

}  // namespace
}  // namespace lora_train::kernels
