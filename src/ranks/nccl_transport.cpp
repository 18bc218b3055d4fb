#include "nccl_transport.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::ranks {
namespace {

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

  /// The caller is the one thread that makes the calls, and no other thread replaces the group.
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
    throw DeviceError("rank " + std::to_string(rank_) + " of " + std::to_string(world_size_),
                      "aborted while the GPUs were connecting, because a rank has failed or ended");
  }

  std::unique_ptr<Transport> host_;
  int rank_, world_size_;
  std::mutex mutex_;  ///< of what follows
  bool is_aborted_ = false;
  at::Tensor flag_;
  std::unique_ptr<kernels::NcclGroup> group_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int rank, int world_size) {
  return std::make_unique<NcclTransport>(std::move(host), rank, world_size);
}

}  // namespace lora_train::ranks
