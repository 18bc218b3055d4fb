// Decides which attention calls share a cuDNN plan, and keeps plans and their workspace. Independent of cuDNN.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::cuda {

using kernels::CudnnShape;

/// A shape rounded up, so that few plans serve all batches of a run. A forward plan does not depend on totals,
/// gradients or modes.
inline CudnnShape forward_key(CudnnShape shape) {
  const auto rounded = [](std::int64_t count, std::int64_t least) {
    return std::max(least, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count))));
  };
  shape.num_docs = rounded(shape.num_docs, 1);
  shape.max_len_q = rounded(shape.max_len_q, 128);
  shape.max_len_k = rounded(shape.max_len_k, 128);
  shape.total_q = shape.total_k = shape.dout_stride = 0;
  shape.deterministic = false;
  return shape;
}

/// The same for a backward plan. Totals are upper bounds that size its workspace: max_tokens, the most in a run; 0:
/// unknown, so they are rounded up.
inline CudnnShape backward_key(const CudnnShape& shape, std::int64_t max_tokens) {
  const auto total = [max_tokens](std::int64_t count) {
    constexpr std::int64_t kTokens = 2048;
    return std::max(max_tokens, max_tokens > 0 ? count : (count + kTokens - 1) / kTokens * kTokens);
  };
  CudnnShape key = forward_key(shape);
  key.total_q = total(shape.total_q);
  key.total_k = total(shape.total_k);
  key.dout_stride = shape.dout_stride;
  key.deterministic = shape.deterministic;
  return key;
}

/// Plans by key, built in their own threads. Holds about `most`, dropping the least recently used, except those in
/// captured graphs. Not thread-safe.
template <class Plan>
class PlanCache {
 public:
  using Build = std::function<Plan()>;
  /// start(key) prepares a plan, and returns the function that builds it in a thread. wait() returns once the device no
  /// longer uses any plan.
  PlanCache(std::size_t most, std::function<Build(const CudnnShape&)> start, std::function<void()> wait)
      : most_(most), start_(std::move(start)), wait_(std::move(wait)) {}

  bool has(const CudnnShape& key) const { return plans_.contains(key); }
  std::size_t size() const { return plans_.size(); }

  /// Starts building a plan, unless it exists. get() rethrows exceptions from start() or a build.
  void begin(const CudnnShape& key) {
    if (has(key)) return;
    Entry& entry = plans_[key];
    entry.last_use = ++num_uses_;
    try {
      entry.plan = std::async(std::launch::async, start_(key)).share();
    } catch (...) {
      std::promise<Plan> failed;
      failed.set_exception(std::current_exception());
      entry.plan = failed.get_future().share();
    }
  }

  /// Waits for all builds that have started.
  void wait_for_builds() const {
    for (const auto& [key, entry] : plans_) entry.plan.wait();
  }

  /// Builds a plan, unless it exists, and waits for it. It is valid until the next get().
  const Plan& get(const CudnnShape& key, bool is_capturing) {
    begin(key);
    Entry& entry = plans_.at(key);
    entry.last_use = ++num_uses_;
    entry.is_in_graph = entry.is_in_graph || is_capturing;
    if (!is_capturing) drop_oldest(key);
    return entry.plan.get();
  }

 private:
  struct Entry {
    std::shared_future<Plan> plan;
    std::int64_t last_use = 0;
    bool is_in_graph = false;  ///< the graph launches kernels that belong to the plan
  };

  void drop_oldest(const CudnnShape& used) {
    while (plans_.size() > most_) {
      const auto oldest = std::ranges::min_element(plans_, {}, [&](const auto& item) {
        return std::pair(item.first == used || item.second.is_in_graph, item.second.last_use);
      });
      if (oldest->first == used || oldest->second.is_in_graph) return;
      wait_();
      plans_.erase(oldest);
    }
  }

  std::size_t most_;
  std::function<Build(const CudnnShape&)> start_;
  std::function<void()> wait_;
  std::map<CudnnShape, Entry> plans_;
  std::int64_t num_uses_ = 0;
};

/// A device workspace shared by the plans of one stream. It grows to the largest request and never shrinks. Not
/// thread-safe.
class GrowingWorkspace {
 public:
  /// Returns at least `bytes` bytes. If a larger buffer replaces one returned during a capture, the old one is kept,
  /// because the graph still uses it.
  void* at_least(std::int64_t bytes, at::Device device, bool is_capturing) {
    if (!memory_.defined() || memory_.numel() < bytes) {
      if (is_in_graph_) kept_.push_back(memory_);
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
      is_in_graph_ = false;
    }
    is_in_graph_ = is_in_graph_ || is_capturing;
    return memory_.mutable_data_ptr();
  }
  std::size_t num_kept() const { return kept_.size(); }

 private:
  at::Tensor memory_;
  std::vector<at::Tensor> kept_;
  bool is_in_graph_ = false;
};

}  // namespace lora_train::cuda
