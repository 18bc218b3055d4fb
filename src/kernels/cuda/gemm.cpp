#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/core.h>

#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "check.h"
#include "library.h"

namespace lora_train::cuda {
namespace {

using kernels::CudaGemm;
using kernels::GemmType;

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMaxPlans = 16384;  // each micro-batch length adds some, about 1 KB each

/// Everything cuBLASLt's choice depends on.
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

/// Never destroyed: CUDA may shut down before static objects do.
struct State {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;
  std::map<Key, cublasLtMatmulAlgo_t> chosen;  ///< by autotuning; keys are class_of()
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
  LT_CUDA_CHECK(cublasLtMatrixLayoutCreate(&layout, data_type(type), static_cast<std::uint64_t>(rows),
                                           static_cast<std::uint64_t>(columns), ld));
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, T value) {
  LT_CUDA_CHECK(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  LT_CUDA_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

void describe(const Key& key, Plan& plan) {
  const auto& g = key.layout;
  const bool uses_tf32 = key.operands == GemmType::kFloat && settings().tf32;
  LT_CUDA_CHECK(cublasLtMatmulDescCreate(&plan.description,
                                         uses_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
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

/// Split-K parts are added in fp32 and in a fixed order: the same bits each time, and no rounding to bf16 in between.
constexpr std::uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

/// The most promising algorithms first.
std::vector<cublasLtMatmulAlgo_t> heuristics(const Key& key, const Plan& plan, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  LT_CUDA_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[0]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[1]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[2]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[3]);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(state().handle, plan.description, plan.a, plan.b, plan.c,
                                                               plan.d, preference, most, results.data(), &count);
  LT_CUDA_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) LT_CUDA_CHECK(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

/// True when a stored algorithm supports this product, within the workspace and the allowed reduction schemes.
bool serves(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(state().handle, plan.description, plan.a, plan.b, plan.c, plan.d, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return false;
  std::uint32_t scheme = 0;
  std::size_t size = 0;
  const cublasStatus_t answer = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                                     &scheme, sizeof scheme, &size);
  return answer == CUBLAS_STATUS_SUCCESS && (scheme & ~kReductionSchemes) == 0;
}

Key class_of(Key key) {
  key.layout.n = kernels::gemm_class(key.layout.n);
  return key;
}

Plan make_plan(const Key& key, const void* bias) {
  Plan plan;
  describe(key, plan);
  if (key.has_bias) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const auto chosen = state().chosen.find(class_of(key));
  plan.exists = chosen != state().chosen.end() && serves(plan, chosen->second);
  if (plan.exists) {
    plan.algorithm = chosen->second;
    return plan;
  }
  const std::vector<cublasLtMatmulAlgo_t> algorithms = heuristics(key, plan, 1);
  plan.exists = !algorithms.empty();
  if (plan.exists) plan.algorithm = algorithms.front();
  return plan;
}

void destroy(const Plan& plan) {
  cublasLtMatmulDescDestroy(plan.description);
  for (cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.c, plan.d}) cublasLtMatrixLayoutDestroy(layout);
}

void forget_plans() {
  for (const auto& [key, plan] : state().plans) destroy(plan);
  state().plans.clear();
}

Key key_of(const CudaGemm& call, const void* c) {
  const auto alignment = [](const void* p) { return kernels::alignment_of(reinterpret_cast<std::uintptr_t>(p)); };
  return {call.layout,
          call.operands,
          call.result,
          call.c != nullptr,
          c == call.d,
          call.bias != nullptr,
          {alignment(call.a), alignment(call.b), alignment(c), alignment(call.d)}};
}

struct Call {
  const void* c;
  Key key;
  const Plan* plan;
};

/// The call with its plan, created at first use.
Call prepared(const CudaGemm& call) {
  State& s = state();
  if (s.handle == nullptr) throw DeviceError("gemm", "the CUDA library is loaded but not started (start_cuda)");
  const void* const c = call.c != nullptr ? call.c : call.d;
  const Key key = key_of(call, c);
  auto found = s.plans.find(key);
  if (found == s.plans.end() && s.plans.size() >= kMaxPlans) forget_plans();
  if (found == s.plans.end()) found = s.plans.emplace(key, make_plan(key, call.bias)).first;
  return {c, key, &found->second};
}

void run(const CudaGemm& call, const Call& how, const cublasLtMatmulAlgo_t& algorithm) {
  const Plan& plan = *how.plan;
  if (how.key.has_bias) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  const float beta = how.key.adds ? 1.0f : 0.0f;
  LT_CUDA_CHECK(cublasLtMatmul(state().handle, plan.description, &call.alpha, call.a, plan.a, call.b, plan.b, &beta,
                               how.c, plan.c, call.d, plan.d, &algorithm, state().workspace, kWorkspaceBytes,
                               c10::cuda::getCurrentCUDAStream()));
}

constexpr std::size_t kWordDigits = 16;

std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> parse(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != kWordDigits * std::size(algorithm.data)) return {};
  const char* from = text.data();
  for (std::uint64_t& word : algorithm.data) {
    const auto [end, error] = std::from_chars(from, from + kWordDigits, word, 16);
    if (error != std::errc() || end != from + kWordDigits) return {};
    from = end;
  }
  return algorithm;
}

}  // namespace

void start_gemm() {
  State& s = state();
  s.chosen.clear();
  forget_plans();
  if (s.handle == nullptr) LT_CUDA_CHECK(cublasLtCreate(&s.handle));
  if (s.workspace == nullptr) s.workspace = c10::cuda::CUDACachingAllocator::raw_alloc(kWorkspaceBytes);
}

bool gemm(const CudaGemm& call) {
  const Call how = prepared(call);
  if (how.plan->exists) run(call, how, how.plan->algorithm);
  return how.plan->exists;
}

std::vector<std::string> gemm_algorithms(const CudaGemm& call, int most) {
  const Call how = prepared(call);
  std::vector<std::string> texts;
  for (const auto& algorithm : heuristics(how.key, *how.plan, most)) texts.push_back(to_text(algorithm));
  return texts;
}

bool gemm_by(const CudaGemm& call, const std::string& text) {
  const auto algorithm = parse(text);
  if (algorithm) run(call, prepared(call), *algorithm);
  return algorithm.has_value();
}

bool use_gemm_algorithm(const CudaGemm& call, const std::string& text) {
  const auto algorithm = parse(text);
  const Call how = prepared(call);
  if (!algorithm || !serves(*how.plan, *algorithm)) return false;
  State& s = state();
  const Key chosen = class_of(how.key);
  s.chosen[chosen] = *algorithm;
  std::erase_if(s.plans, [&](const auto& entry) {
    const bool is_of_class = class_of(entry.first) == chosen;
    if (is_of_class) destroy(entry.second);
    return is_of_class;
  });
  return true;
}

}  // namespace lora_train::cuda
