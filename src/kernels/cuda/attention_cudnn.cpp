// cuDNN's fused attention over ragged documents: a document is a batch entry whose rows start at an offset from a
// table. b documents, s longest one, H heads, K kv heads, E head size.
// The only source that includes cudnn_frontend.h, which takes half a minute to compile.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cudnn_frontend.h>
#include <fmt/core.h>

#include <map>
#include <vector>

#include "attention/attention_parts.h"
#include "check.h"
#include "cudnn_plans.h"
#include "library.h"

namespace lora_train::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using kernels::AttentionGradients;
using kernels::AttentionLayout;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

/// Tensor ids that map pointers to a graph's tensors.
enum Id : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kQBegin,
  kKBegin,
  kVBegin,
  kOutBegin,
  kDoutBegin,
  kLseBegin,
  kDqBegin,
  kDkBegin,
  kLengthQ,
  kLengthK
};
constexpr std::int64_t kNumBegins = kDkBegin - kQBegin + 1;

void check(fe::error_t error, const char* what) {
  if (error.is_good()) return;
  throw DeviceError("src/kernels/cuda/attention_cudnn.cpp", "{} failed: {}", what, error.get_message());
}

TensorPointer index_tensor(Graph& graph, Id id, std::int64_t count, fe::DataType_t type) {
  Tensor_attributes attributes;
  attributes.set_uid(id).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type);
  return graph.tensor(attributes);
}

TensorPointer begins(Graph& graph, const CudnnShape& shape, Id id) {
  return index_tensor(graph, id, shape.num_docs + 1, fe::DataType_t::INT64);
}

/// [b, heads, s, E] whose tokens are `stride` apart, as in views into [N, heads, E].
Tensor_attributes rows(Id id, const CudnnShape& shape, std::int64_t heads, std::int64_t s, std::int64_t stride,
                       const TensorPointer& begin) {
  return Tensor_attributes()
      .set_uid(id)
      .set_dim({shape.num_docs, heads, s, shape.head_size})
      .set_stride({s * stride, shape.head_size, stride, 1})
      .set_ragged_offset(begin);
}

/// lse [N, H] fp32.
Tensor_attributes statistics(const CudnnShape& shape, const TensorPointer& begin) {
  const std::int64_t H = shape.num_heads, s = shape.max_len_q;
  return Tensor_attributes()
      .set_uid(kLse)
      .set_dim({shape.num_docs, H, s, 1})
      .set_stride({s * H, 1, H, 1})
      .set_ragged_offset(begin)
      .set_data_type(fe::DataType_t::FLOAT);
}

/// The part shared by forward and backward.
template <class Attributes>
Attributes attributes_of(Graph& graph, const CudnnShape& shape) {
  Attributes attributes;
  attributes.set_attn_scale(static_cast<float>(shape.scale))
      .set_padding_mask(true)
      .set_seq_len_q(index_tensor(graph, kLengthQ, shape.num_docs, fe::DataType_t::INT32))
      .set_seq_len_kv(index_tensor(graph, kLengthK, shape.num_docs, fe::DataType_t::INT32))
      .set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
  // The frontend counts a query's own key: a bound of W lets it see W keys.
  if (shape.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(shape.window));
  return attributes;
}

using GraphPointer = std::shared_ptr<Graph>;

GraphPointer new_graph() {
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

void make_forward(const GraphPointer& graph, const CudnnShape& shape) {
  const std::int64_t H = shape.num_heads, K = shape.num_kv_heads, sq = shape.max_len_q, sk = shape.max_len_k;
  const auto q = graph->tensor(rows(kQ, shape, H, sq, shape.q_stride, begins(*graph, shape, kQBegin)));
  const auto k = graph->tensor(rows(kK, shape, K, sk, shape.k_stride, begins(*graph, shape, kKBegin)));
  const auto v = graph->tensor(rows(kV, shape, K, sk, shape.v_stride, begins(*graph, shape, kVBegin)));
  auto attributes = attributes_of<fe::graph::SDPA_attributes>(*graph, shape);
  attributes.set_generate_stats(true);
  const auto [out, lse] = graph->sdpa(q, k, v, attributes);
  *out = rows(kOut, shape, H, sq, shape.out_stride, begins(*graph, shape, kOutBegin));
  out->set_output(true);
  *lse = statistics(shape, begins(*graph, shape, kLseBegin));
  lse->set_output(true);
}

/// dq, dk and dv are contiguous: cuDNN's fp32 sums of them use the same strides; with the strides of views into a wide
/// buffer, its workspace would be many times larger.
void make_backward(const GraphPointer& graph, const CudnnShape& shape) {
  const std::int64_t H = shape.num_heads, K = shape.num_kv_heads, sq = shape.max_len_q, sk = shape.max_len_k;
  const auto q = graph->tensor(rows(kQ, shape, H, sq, shape.q_stride, begins(*graph, shape, kQBegin)));
  const auto k = graph->tensor(rows(kK, shape, K, sk, shape.k_stride, begins(*graph, shape, kKBegin)));
  const auto v = graph->tensor(rows(kV, shape, K, sk, shape.v_stride, begins(*graph, shape, kVBegin)));
  const auto out = graph->tensor(rows(kOut, shape, H, sq, shape.out_stride, begins(*graph, shape, kOutBegin)));
  const auto dout = graph->tensor(rows(kDout, shape, H, sq, shape.dout_stride, begins(*graph, shape, kDoutBegin)));
  const auto lse = graph->tensor(statistics(shape, begins(*graph, shape, kLseBegin)));
  auto attributes = attributes_of<fe::graph::SDPA_backward_attributes>(*graph, shape);
  attributes.set_max_total_seq_len_q(shape.total_q)
      .set_max_total_seq_len_kv(shape.total_k)
      .set_deterministic_algorithm(shape.deterministic);
  const auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dout, lse, attributes);
  const auto dk_begin = begins(*graph, shape, kDkBegin);
  *dq = rows(kDq, shape, H, sq, H * shape.head_size, begins(*graph, shape, kDqBegin));
  *dk = rows(kDk, shape, K, sk, K * shape.head_size, dk_begin);
  *dv = rows(kDv, shape, K, sk, K * shape.head_size, dk_begin);
  for (const auto& gradient : {dq, dk, dv}) gradient->set_output(true);
}

/// Prepares a graph for the device of a handle; null: for the one described to it. Returns cuDNN's refusal, or nothing.
std::string refusal_of(Graph& graph, cudnnHandle_t handle) {
  const auto step = [](const char* name, fe::error_t error) {
    return error.is_good() ? std::string() : fmt::format("{}: {}", name, error.get_message());
  };
  std::string refusal = step("validate", graph.validate());
  if (refusal.empty()) refusal = step("build_operation_graph", graph.build_operation_graph(handle));
  if (refusal.empty()) refusal = step("create_execution_plans", graph.create_execution_plans({fe::HeurMode_t::A}));
  if (refusal.empty()) refusal = step("check_support", graph.check_support());
  return refusal;
}

struct Plan {
  GraphPointer graph;
  std::int64_t workspace_bytes = 0;
};

Plan compile(const GraphPointer& graph) {
  check(graph->build_plans(), "cuDNN attention: build_plans");
  return {graph, graph->get_workspace_size()};
}

cudnnHandle_t handle();

/// Compiles a plan, which takes a second; without the handle, so that threads can do it.
template <void (*make)(const GraphPointer&, const CudnnShape&)>
std::function<Plan()> start_plan(const CudnnShape& key) {
  const GraphPointer graph = new_graph();
  make(graph, key);
  const std::string refusal = refusal_of(*graph, handle());
  if (!refusal.empty()) throw DeviceError("src/kernels/cuda/attention_cudnn.cpp", "cuDNN attention: " + refusal);
  return [graph, device = c10::cuda::current_device()] {
    c10::cuda::set_device(device);
    return compile(graph);
  };
}

void wait_for_stream() { c10::cuda::getCurrentCUDAStream().synchronize(); }

/// Never destroyed: CUDA may shut down before static objects do.
struct State {
  static constexpr std::size_t kMostPlans = 64;  // more than the batch classes of a run need
  cudnnHandle_t handle = nullptr;
  PlanCache<Plan> forwards{kMostPlans, &start_plan<&make_forward>, &wait_for_stream};
  PlanCache<Plan> backwards{kMostPlans, &start_plan<&make_backward>, &wait_for_stream};
  GrowingWorkspace workspace;
};
State& state() {
  static State* const state = new State;
  return *state;
}

cudnnHandle_t handle() {
  State& s = state();
  if (s.handle == nullptr) LT_CUDA_CHECK(cudnnCreate(&s.handle));
  LT_CUDA_CHECK(cudnnSetStream(s.handle, c10::cuda::getCurrentCUDAStream()));
  return s.handle;
}

bool is_capturing() { return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }

/// Builds the plans of this shape and of the sizes that other calls of the run will have, all at once.
void build_plans(const CudnnShape& shape, const kernels::AttentionCalls& calls) {
  std::vector<kernels::AttentionCalls::Size> sizes = calls.sizes;
  sizes.push_back({shape.num_docs, shape.max_len_q});
  for (const auto& size : sizes) {
    CudnnShape of_size = shape;
    of_size.num_docs = size.num_docs;
    of_size.max_len_q = of_size.max_len_k = size.max_len;
    state().forwards.begin(forward_key(of_size));
    if (!calls.has_backward) continue;
    of_size.dout_stride = shape.num_heads * shape.head_size;  // the model's layout; others are built when needed
    of_size.deterministic = settings().deterministic;
    state().backwards.begin(backward_key(of_size, calls.max_tokens));
  }
  state().forwards.wait_for_builds();
  state().backwards.wait_for_builds();
}

CudnnShape shape_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                    const AttentionLayout& layout) {
  CudnnShape shape;
  shape.num_docs = static_cast<std::int64_t>(layout.cu_seqlens_q.size()) - 1;
  shape.max_len_q = layout.max_len_q;
  shape.max_len_k = layout.max_len_k;
  shape.total_q = total(layout.cu_seqlens_q);
  shape.total_k = total(layout.cu_seqlens_k);
  shape.num_heads = q.size(1);
  shape.num_kv_heads = k.size(1);
  shape.head_size = q.size(2);
  shape.window = layout.window;
  shape.q_stride = q.stride(0);
  shape.k_stride = k.stride(0);
  shape.v_stride = v.stride(0);
  shape.out_stride = out.stride(0);
  shape.scale = layout.scale;
  return shape;
}

/// The ragged-offset tables of a batch, computed on the device from its cu_seqlens: begins [kNumBegins, >= b + 1] int64
/// in elements, lengths [2, >= b] int32. cuDNN may assume that each row is aligned to 16 bytes.
struct Tables {
  at::Tensor begins, lengths;
};
std::int64_t row_of_begins(const CudnnShape& shape) { return (shape.num_docs + 1 + 15) / 16 * 16; }
std::int64_t row_of_lengths(const CudnnShape& shape) { return (shape.num_docs + 31) / 32 * 32; }

Tables make_tables(const CudnnShape& shape, const AttentionLayout& layout, at::Device device) {
  const std::int64_t dq_stride = shape.num_heads * shape.head_size;
  const std::int64_t strides[kNumBegins] = {
      shape.q_stride,    shape.k_stride,  shape.v_stride, shape.out_stride,
      shape.dout_stride, shape.num_heads, dq_stride,      shape.num_kv_heads * shape.head_size};
  kernels::RaggedTables ragged;
  static_assert(kNumBegins <= kernels::kMaxRaggedTables);
  ragged.count = static_cast<int>(kNumBegins);
  for (int table = 0; table < ragged.count; ++table) {
    ragged.strides[table] = strides[table];
    ragged.is_of_keys[table] = table == kKBegin - kQBegin || table == kVBegin - kQBegin || table == kDkBegin - kQBegin;
  }
  const std::int64_t row = row_of_begins(shape), length_row = row_of_lengths(shape);
  const Tables made = {at::empty({kNumBegins, row}, at::device(device).dtype(at::kLong)),
                       at::empty({2, length_row}, at::device(device).dtype(at::kInt))};
  kernels::ragged_tables_cuda(layout.cu_seqlens_q_device.const_data_ptr<std::int32_t>(),
                              layout.cu_seqlens_k_device.const_data_ptr<std::int32_t>(),
                              std::ssize(layout.cu_seqlens_q) - 1, ragged, made.begins.mutable_data_ptr<std::int64_t>(),
                              row, made.lengths.mutable_data_ptr<std::int32_t>(), length_row,
                              c10::cuda::getCurrentCUDAStream().stream());
  return made;
}

/// Computed for the first layer of a batch and cached in the layout for the others.
const Tables& tables(const CudnnShape& shape, const AttentionLayout& layout, at::Device device) {
  using Kept = std::map<CudnnShape, Tables>;
  if (!layout.prepared) layout.prepared = std::make_shared<Kept>();
  Kept& kept = *static_cast<Kept*>(layout.prepared.get());
  auto found = kept.find(shape);
  if (found == kept.end()) found = kept.emplace(shape, make_tables(shape, layout, device)).first;
  return found->second;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

void run(const Plan& plan, const CudnnShape& shape, const AttentionLayout& layout, const at::Tensor& q,
         std::initializer_list<Id> tables_used, Pointers pointers) {
  const Tables& table = tables(shape, layout, q.device());
  auto* const first = static_cast<std::int64_t*>(table.begins.mutable_data_ptr());
  for (const Id id : tables_used) pointers[id] = first + (id - kQBegin) * row_of_begins(shape);
  auto* const lengths = static_cast<int*>(table.lengths.mutable_data_ptr());
  pointers[kLengthQ] = lengths;
  pointers[kLengthK] = lengths + row_of_lengths(shape);
  void* const workspace = state().workspace.at_least(plan.workspace_bytes, q.device(), is_capturing());
  check(plan.graph->execute(handle(), pointers, workspace), "cuDNN attention: execute");
}

void copy_documents(const at::Tensor& target, const at::Tensor& source, std::int64_t num_tokens) {
  if (!target.is_same(source)) target.narrow(0, 0, num_tokens).copy_(source.narrow(0, 0, num_tokens));
}

void forward(const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0, const AttentionLayout& layout,
             at::Tensor& out, at::Tensor& lse) {
  const at::Tensor q = aligned(q0), k = aligned(k0), v = aligned(v0);
  const at::Tensor o = is_aligned(out) ? out : at::empty_like(q0, at::MemoryFormat::Contiguous);
  const at::Tensor l = lse.is_contiguous() ? lse : at::empty(lse.sizes(), lse.options());
  const CudnnShape shape = shape_of(q, k, v, o, layout), key = forward_key(shape);
  if (layout.calls && !state().forwards.has(key)) build_plans(shape, *layout.calls);
  run(state().forwards.get(key, is_capturing()), key, layout, q, {kQBegin, kKBegin, kVBegin, kOutBegin, kLseBegin},
      {{kQ, q.data_ptr()}, {kK, k.data_ptr()}, {kV, v.data_ptr()}, {kOut, o.data_ptr()}, {kLse, l.data_ptr()}});
  copy_documents(out, o, total(layout.cu_seqlens_q));
  copy_documents(lse, l, total(layout.cu_seqlens_q));
}

/// The tensor itself, or memory of the same shape: see make_backward() for the reason.
at::Tensor contiguous(const at::Tensor& t, std::int64_t num_tokens) {
  return t.is_contiguous() && is_aligned(t) ? t : at::empty(t.sizes(), t.options()).narrow(0, 0, num_tokens);
}

void backward(const at::Tensor& dout0, const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0,
              const at::Tensor& out0, const at::Tensor& lse, const AttentionLayout& layout,
              AttentionGradients& gradients) {
  const at::Tensor q = aligned(q0), k = aligned(k0), v = aligned(v0), out = aligned(out0), dout = aligned(dout0);
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k);
  const AttentionGradients to = {contiguous(gradients.q, N), contiguous(gradients.k, Nk), contiguous(gradients.v, Nk)};
  const at::Tensor l = lse.contiguous();
  CudnnShape shape = shape_of(q, k, v, out, layout);
  shape.dout_stride = dout.stride(0);
  shape.deterministic = settings().deterministic;
  const CudnnShape key = backward_key(shape, layout.calls ? layout.calls->max_tokens : 0);
  run(state().backwards.get(key, is_capturing()), key, layout, q,
      {kQBegin, kKBegin, kVBegin, kOutBegin, kDoutBegin, kLseBegin, kDqBegin, kDkBegin},
      {{kQ, q.data_ptr()},
       {kK, k.data_ptr()},
       {kV, v.data_ptr()},
       {kOut, out.data_ptr()},
       {kDout, dout.data_ptr()},
       {kLse, l.data_ptr()},
       {kDq, to.q.data_ptr()},
       {kDk, to.k.data_ptr()},
       {kDv, to.v.data_ptr()}});
  gradients = to;
}

}  // namespace

kernels::CudnnPlan check_cudnn_plan(const CudnnShape& wanted, const std::string& gpu_json, int sm_version,
                                    bool with_compilation) {
  auto gpu = std::make_shared<fe::DeviceProperties>();
  check(gpu->deserialize({gpu_json.begin(), gpu_json.end()}), "cuDNN: description of the GPU");
  kernels::CudnnPlan plan;
  for (const auto make : {&make_forward, &make_backward}) {
    const bool is_forward = make == &make_forward;
    const std::string pass = is_forward ? "forward" : "backward";
    const GraphPointer graph = new_graph();
    graph->set_device_properties(gpu).set_sm_version(sm_version);  // before its nodes, which copy this
    make(graph, is_forward ? forward_key(wanted) : backward_key(wanted, wanted.total_q));
    plan.refusal = refusal_of(*graph, nullptr);
    if (!plan.refusal.empty()) {
      plan.refusal = fmt::format("{}: {}", pass, plan.refusal);
      return plan;
    }
    if (!with_compilation) continue;
    (is_forward ? plan.forward_bytes : plan.backward_bytes) = compile(graph).workspace_bytes;
    std::string name;
    check(graph->get_plan_name(name), "cuDNN attention: get_plan_name");
    plan.engines += fmt::format("{} {} ", pass, name);
  }
  return plan;
}

const kernels::CudaAttention kCudnn = {&forward, &backward};

}  // namespace lora_train::cuda
