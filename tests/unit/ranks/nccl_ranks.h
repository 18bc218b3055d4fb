// Ranks on the stand-ins for NCCL and the CUDA runtime (tests/programs/stand_in_gpu), which tests/integration/cuda/test_nccl.py preloads.
#pragma once

#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "lora_train/kernels/dispatch/cuda_library.h"
#include "support/environment.h"
#include "support/rank_processes.h"
#include "support/refusal.h"
#include "transport.h"

namespace lora_train::ranks::nccl_test {

using testing_support::expect_all;
using testing_support::RankResult;
using testing_support::run_ranks;
using testing_support::ScopedEnvironment;

inline const at::TensorOptions kOnGpu = at::TensorOptions(at::kCUDA);

/// What the processes of a test share.
struct Shared {
  std::atomic<int> num_broadcasts, has_ended;
  char bytes[4096];
};

/// In place of Gloo: rank 0 writes, the others wait.
class SharedTransport : public Transport {
 public:
  SharedTransport(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  void all_reduce(std::span<const at::Tensor> tensors) override { tensors[0].fill_(-1); }
  void broadcast(std::span<const at::Tensor> tensors) override {
    if (rank_ == 0) {
      std::memcpy(shared_.bytes, tensors[0].const_data_ptr(), tensors[0].nbytes());
      ++shared_.num_broadcasts;
    }
    while (shared_.num_broadcasts == 0) std::this_thread::yield();
    std::memcpy(tensors[0].mutable_data_ptr(), shared_.bytes, tensors[0].nbytes());
  }
  std::vector<std::string> all_gather(const std::string& text) override { return {text, "of the host"}; }
  void abort() noexcept override { shared_.has_ended = 1; }

 private:
  Shared& shared_;
  int rank_;
};

inline long num_calls(const char* name) {
  static const auto count = reinterpret_cast<long (*)(const char*)>(::dlsym(RTLD_DEFAULT, "stand_in_nccl_count"));
  return count(name);
}

/// Kind and what() of the error that `body` throws.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind() + std::string(": ") + error.what();
  }
  return "no error";
}

/// A rank of a test.
struct Rank {
  int rank = 0;
  Shared& shared;
  Transport& transport;

  /// Returns without waiting for the sums.
  at::Tensor reduce_zeros(std::int64_t size = 10) const {
    const at::Tensor zeros = at::zeros({size}, kOnGpu);
    transport.all_reduce(std::array{zeros});
    return zeros;
  }
  /// What the error of a sum says.
  std::string error_of_reduce(std::int64_t size = 10) const {
    return error_of([&] { reduce_zeros(size); });
  }
  /// The same, after which the rank has aborted.
  std::string last_error_of_reduce() const {
    std::string error = error_of_reduce();
    transport.abort();
    return error;
  }
  /// In a thread, as a control thread does.
  std::thread abort_once(const std::function<bool()>& is_time) const {
    return std::thread([this, is_time] {
      while (!is_time()) std::this_thread::yield();
      transport.abort();
    });
  }
};

class NcclTransport : public testing::Test {
 protected:
  void SetUp() override {
    if (::dlsym(RTLD_DEFAULT, "stand_in_nccl_count") == nullptr)
      GTEST_SKIP() << "runs in tests/integration/cuda/test_nccl.py";
    const kernels::CudaFolders folders = kernels::default_cuda_folders();
    kernels::load_cuda_library(folders.library, folders.torch);
  }

  std::vector<RankResult> run(int size, const std::function<std::string(const Rank&)>& body,
                              bool deterministic = false) {
    void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& shared = *static_cast<Shared*>(memory);  // zeros
    auto results = run_ranks(size, [&](int rank) {
      kernels::start_cuda({.deterministic = deterministic});
      const auto transport = make_nccl_transport(std::make_unique<SharedTransport>(shared, rank), rank, size);
      return body({rank, shared, *transport});
    });
    ::munmap(memory, sizeof(Shared));
    return results;
  }

  /// Of rank 0 while rank 1 does what `fault` says; rank 1 goes when rank 0 has aborted.
  std::string of_rank_0(const std::string& fault, const std::function<std::string(const Rank&)>& body) {
    ScopedEnvironment environment;
    environment.set("STAND_IN_NCCL_FAULT", fault);
    const auto results = run(2, [&](const Rank& rank) -> std::string {
      if (rank.rank == 0) {
        try {
          return body(rank);
        } catch (const Error& error) {
          rank.transport.abort();
          return std::string("threw ") + error.what();
        }
      }
      std::thread aborting = rank.abort_once([&] { return rank.shared.has_ended == 1; });
      try {
        rank.reduce_zeros();
        rank.reduce_zeros();
      } catch (const DeviceError&) {
      }
      aborting.join();
      return "ended";
    });
    EXPECT_EQ(results[1].text, "ended");
    return results[0].text;
  }
};

}  // namespace lora_train::ranks::nccl_test
