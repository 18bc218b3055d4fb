#include "gemm.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <map>

#include "check.h"

namespace lora_train::cuda {
namespace {

using kernels::CudaGemm;
using kernels::GemmType;

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMostPlans = 16384;  // each length of a micro-batch brings some, of about 1 KB

/// All that cuBLASLt's choice depends on.
struct Key {
  kernels::ColumnMajorGemm layout;
  GemmType operands, result;
  bool adds, in_place, has_bias;
  std::array<std::uint32_t, 4> alignments;  ///< of A, B, C, D

  auto operator<=>(const Key&) const = default;
};

struct Plan {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool exists = false;
};

/// Lives as long as the process: CUDA may be gone before static objects are.
struct State {
  kernels::CudaSettings settings;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;
};
State& state() {
  static State* const state = new State;
  return *state;
}

cudaDataType_t data_type(GemmType type) { return type == GemmType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

cublasLtMatrixLayout_t make_layout(GemmType type, bool transposed, std::int64_t rows, std::int64_t columns,
                                   std::int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  if (transposed) std::swap(rows, columns);
  LT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, data_type(type), static_cast<std::uint64_t>(rows),
                                             static_cast<std::uint64_t>(columns), ld));
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, T value) {
  LT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  LT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

void describe(const Key& key, Plan& plan) {
  const auto& g = key.layout;
  const bool uses_tf32 = key.operands == GemmType::kFloat && state().settings.tf32;
  LT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.description, uses_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                           CUDA_R_32F));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.has_bias) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(key.result)));
  }
  plan.a = make_layout(key.operands, g.transpose_a, g.m, g.k, g.lda);
  plan.b = make_layout(key.operands, g.transpose_b, g.k, g.n, g.ldb);
  plan.c = make_layout(key.result, false, g.m, g.n, g.ldc);
  plan.d = make_layout(key.result, false, g.m, g.n, g.ldd);
}

Plan make_plan(const Key& key, const void* bias) {
  Plan plan;
  describe(key, plan);
  if (key.has_bias) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  cublasLtMatmulPreference_t preference = nullptr;
  LT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
  // Parts of a split sum are added in fp32 and in a fixed order, or there are none: the same bits each time, and no
  // rounding to bf16 between parts.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[0]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[1]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[2]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[3]);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(state().handle, plan.description, plan.a, plan.b, plan.c,
                                                               plan.d, preference, 1, &result, &count);
  LT_CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) LT_CUBLAS_CHECK(status);
  plan.exists = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = result.algo;
  return plan;
}

void forget_plans() {
  for (auto& [key, plan] : state().plans) {
    cublasLtMatmulDescDestroy(plan.description);
    for (cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.c, plan.d}) cublasLtMatrixLayoutDestroy(layout);
  }
  state().plans.clear();
}

Key key_of(const CudaGemm& call, const void* c) {
  const auto alignment = [](const void* p) { return kernels::alignment_of(reinterpret_cast<std::uintptr_t>(p)); };
  return {call.layout,     call.operands,         call.result, call.c != nullptr, c == call.d, call.bias != nullptr,
          {alignment(call.a), alignment(call.b), alignment(c), alignment(call.d)}};
}

}  // namespace

void start_gemm(const kernels::CudaSettings& settings) {
  State& s = state();
  s.settings = settings;
  forget_plans();
  if (s.handle == nullptr) LT_CUBLAS_CHECK(cublasLtCreate(&s.handle));
  if (s.workspace == nullptr) s.workspace = c10::cuda::CUDACachingAllocator::raw_alloc(kWorkspaceBytes);
}

bool gemm(const CudaGemm& call) {
  State& s = state();
  if (s.handle == nullptr) throw DeviceError("gemm", "the CUDA library is loaded but not started (start_cuda)");
  const void* const c = call.c != nullptr ? call.c : call.d;
  const Key key = key_of(call, c);
  auto found = s.plans.find(key);
  if (found == s.plans.end() && s.plans.size() >= kMostPlans) forget_plans();
  if (found == s.plans.end()) found = s.plans.emplace(key, make_plan(key, call.bias)).first;
  const Plan& plan = found->second;
  if (!plan.exists) return false;
  if (key.has_bias) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  const float beta = key.adds ? 1.0f : 0.0f;
  LT_CUBLAS_CHECK(cublasLtMatmul(s.handle, plan.description, &call.alpha, call.a, plan.a, call.b, plan.b, &beta, c, plan.c,
                                 call.d, plan.d, &plan.algorithm, s.workspace, kWorkspaceBytes,
                                 c10::cuda::getCurrentCUDAStream()));
  return true;
}

}  // namespace lora_train::cuda
