#include "transport.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::ranks {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

constexpr auto kNoLimit = std::chrono::hours(24 * 365);  // Control decides when to give up
constexpr std::chrono::milliseconds kAbortPoll(50);

class GlooTransport : public Transport {
 public:
  GlooTransport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const std::string& address,
                std::chrono::milliseconds timeout)
      : rank_(rank), world_size_(world_size) {
    checked("connecting", [&] {
      const auto own = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
      group_ = make_gloo_group(own, rank_, world_size_, address, timeout);
      group_->setTimeout(kNoLimit);
    });
  }

  ~GlooTransport() override {
    // A thread of the group may wait for a rank that never answers; joining it would wait too.
    if (is_aborted_) (void)group_.release();
  }

  void all_reduce(std::span<const at::Tensor> tensors) override {
    checked("all-reduce", [&] {
      std::vector<Work> works;
      for (const at::Tensor& tensor : tensors) {
        std::vector<at::Tensor> one{tensor};
        works.push_back(group_->allreduce(one));
      }
      for (const Work& work : works) wait_for(work);
    });
  }

  void broadcast(std::span<const at::Tensor> tensors) override {
    checked("broadcast", [&] {
      for (const at::Tensor& tensor : tensors) {
        std::vector<at::Tensor> one{tensor};
        wait_for(group_->broadcast(one));
      }
    });
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<std::string> result;
    checked("all-gather", [&] {
      const auto own_size = at::empty({1}, at::kLong);
      *own_size.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
      std::vector<std::int64_t> sizes;
      for (const at::Tensor& size : gather(own_size)) sizes.push_back(*size.const_data_ptr<std::int64_t>());
      const auto padded = at::empty({*std::max_element(sizes.begin(), sizes.end()) + 1}, at::kByte);
      std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
      for (const at::Tensor& bytes : gather(padded)) {
        result.emplace_back(static_cast<const char*>(bytes.const_data_ptr()),
                            static_cast<std::size_t>(sizes[result.size()]));
      }
    });
    return result;
  }

  void abort() noexcept override { is_aborted_ = true; }

 private:
  /// Returns when the work is done. The group's thread holds its tensors as long as it needs them.
  void wait_for(const Work& work) const {
    struct Done {
      std::mutex mutex;
      std::condition_variable changed;
      bool is_done = false;
    };
    const auto done = std::make_shared<Done>();
    work->getFuture()->addCallback([done](c10::ivalue::Future&) {
      const std::lock_guard lock(done->mutex);
      done->is_done = true;
      done->changed.notify_all();
    });
    std::unique_lock lock(done->mutex);
    while (!done->changed.wait_for(lock, kAbortPoll, [&] { return done->is_done; })) {
      if (is_aborted_) throw DeviceError(name(), "gave up because another rank has failed");
    }
    work->wait();  // throws its error
  }

  std::vector<at::Tensor> gather(const at::Tensor& tensor) {
    std::vector<at::Tensor> inputs{tensor};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < world_size_; ++rank) outputs[0].push_back(at::empty_like(tensor));
    wait_for(group_->allgather(outputs, inputs));
    return outputs[0];
  }

  /// Gloo throws its own exceptions, from a library whose types we cannot see.
  template <typename Body>
  void checked(const std::string& what, const Body& body) {
    const std::string failed = what + " failed. Another rank has ended or cannot be reached: ";
    if (is_aborted_) throw DeviceError(name(), what + " after another rank has failed");
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      throw DeviceError(name(), failed + error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw DeviceError(name(), failed + error.what());
    }
  }

  std::string name() const { return fmt::format("rank {} of {}", rank_, world_size_); }

  int rank_, world_size_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::atomic<bool> is_aborted_{false};
};

class NcclTransport : public Transport {
 public:
  NcclTransport(std::unique_ptr<Transport> host, int rank, int world_size)
      : host_(std::move(host)), rank_(rank), world_size_(world_size) {}

  void all_reduce(std::span<const at::Tensor> tensors) override {
    if (are_on_gpu(tensors)) {
      connected().all_reduce(tensors);
    } else {
      host_->all_reduce(tensors);
    }
  }

  void broadcast(std::span<const at::Tensor> tensors) override {
    if (are_on_gpu(tensors)) {
      connected().broadcast(tensors);
    } else {
      host_->broadcast(tensors);
    }
  }

  std::vector<std::string> all_gather(const std::string& text) override { return host_->all_gather(text); }

  void set_abort_flag(const at::Tensor& flag) override {
    const std::lock_guard lock(mutex_);
    flag_ = flag;
    if (group_ != nullptr) group_->set_abort_flag(flag);
  }

  void end() noexcept override {
    if (group_ != nullptr) group_->end();
  }

  void abort() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      is_aborted_ = true;
      if (group_ != nullptr) group_->abort();
    }
    host_->abort();
  }

  std::string asynchronous_error() override {
    {
      const std::lock_guard lock(mutex_);
      if (group_ != nullptr) {
        if (std::string error = group_->asynchronous_error(); !error.empty()) return error;
      }
    }
    return host_->asynchronous_error();
  }

 private:
  static bool are_on_gpu(std::span<const at::Tensor> tensors) {
    return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cuda(); });
  }

  /// Only for the one thread that makes the calls; no other thread replaces the group.
  kernels::NcclGroup& connected() {
    if (group_ == nullptr) {
      std::unique_ptr<kernels::NcclGroup> group = connect();
      const std::lock_guard lock(mutex_);
      throw_if_aborted();  // since the last poll
      if (flag_.defined()) group->set_abort_flag(flag_);
      group_ = std::move(group);
    }
    return *group_;
  }

  std::unique_ptr<kernels::NcclGroup> connect() {
    const kernels::Nccl& nccl = kernels::cuda_library()->nccl;
    const at::Tensor sent = at::zeros({kernels::kNcclIdBytes}, at::kByte);
    if (rank_ == 0) std::memcpy(sent.mutable_data_ptr(), nccl.unique_id().data(), kernels::kNcclIdBytes);
    host_->broadcast(std::array{sent});
    const std::string id(static_cast<const char*>(sent.const_data_ptr()), kernels::kNcclIdBytes);
    return nccl.connect(id, rank_, world_size_, [this] {
      throw_if_stop_requested();
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
    });
  }

  void throw_if_aborted() const {
    if (!is_aborted_) return;
    throw DeviceError(fmt::format("rank {} of {}", rank_, world_size_),
                      "aborted while connecting the GPUs because a rank has failed or ended");
  }

  std::unique_ptr<Transport> host_;
  int rank_, world_size_;
  std::mutex mutex_;  ///< guards the members below
  bool is_aborted_ = false;
  at::Tensor flag_;
  std::unique_ptr<kernels::NcclGroup> group_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const std::string& address, std::chrono::milliseconds timeout) {
  return std::make_unique<GlooTransport>(store, rank, world_size, address, timeout);
}

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int rank, int world_size) {
  return std::make_unique<NcclTransport>(std::move(host), rank, world_size);
}

}  // namespace lora_train::ranks
