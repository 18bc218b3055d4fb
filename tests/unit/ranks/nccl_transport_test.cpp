#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "lora_train/base/stop_request.h"
#include "nccl_ranks.h"
#include "transport.h"

namespace lora_train::ranks::nccl_test {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor on_host = tensor.cpu();
  return {static_cast<const char*>(on_host.const_data_ptr()), on_host.nbytes()};
}

constexpr std::size_t kNumGradients = 300007;  // more than a chunk of the stand-in

TEST_F(NcclTransport, SumsAreTheSameBitsOnAllRanks) {
  for (const int size : {2, 4}) {
    const auto results = run(size, [](const Rank& rank) {
      std::vector<float> values = testing_support::gradients_of(rank.rank, kNumGradients);
      const at::Tensor gradients =
          at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat).to(at::kCUDA);
      const at::Tensor scalars = at::full({3}, 1e15 + rank.rank, at::kDouble).to(at::kCUDA);
      for (int step = 0; step < 2; ++step) rank.transport.all_reduce(std::array{gradients, scalars});
      return bytes_of(scalars) + bytes_of(gradients) + std::to_string(num_calls("all_reduce")) +
             std::to_string(num_calls("numbers"));
    });
    std::vector<double> expected(kNumGradients);
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<float> values = testing_support::gradients_of(rank, kNumGradients);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] += static_cast<double>(values[i]) * size;
    }
    const std::string& text = results[0].text;
    ASSERT_EQ(text.size(), 24 + expected.size() * 4 + 7) << text.substr(0, 300);
    EXPECT_EQ(text.substr(text.size() - 7), "2600020");
    expect_all(results, text);
    double scalar = 0;
    std::memcpy(&scalar, text.data(), sizeof scalar);
    EXPECT_EQ(scalar, size * (1e15 * size + size * (size - 1) / 2));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      float sum = 0;
      std::memcpy(&sum, text.data() + 24 + 4 * i, sizeof sum);
      ASSERT_NEAR(sum, expected[i], 1e-5 * size) << i;
    }
  }
}

TEST_F(NcclTransport, AllRanksReceiveTheTensorsOfRank0) {
  const auto results = run(2, [](const Rank& rank) {
    const at::Tensor numbers = at::full({5}, rank.rank + 7, at::kLong).to(at::kCUDA);
    const at::Tensor halves = at::full({3}, rank.rank + 0.5, at::kBFloat16).to(at::kCUDA);
    rank.transport.broadcast(std::array{numbers, halves});
    return bytes_of(numbers) + bytes_of(halves);
  });
  const std::string expected = bytes_of(at::full({5}, 7, at::kLong)) + bytes_of(at::full({3}, 0.5, at::kBFloat16));
  expect_all(results, expected);
}

TEST_F(NcclTransport, TensorsInHostMemoryAndTextsGoToTheHost) {
  const auto results = run(2, [](const Rank& rank) {
    const at::Tensor values = at::ones({1});
    rank.transport.all_reduce(std::array{values});
    return rank.transport.all_gather("text")[1] + std::to_string(values.item<float>()) +
           std::to_string(num_calls("connect"));
  });
  EXPECT_EQ(results[0].text, "of the host-1.0000000");
}

TEST_F(NcclTransport, TakesNoDeviceMemoryOnceConnected) {
  const auto results = run(2, [](const Rank& rank) {
    const at::Tensor gradients = at::zeros({100000}, kOnGpu), scalars = at::zeros({40}, kOnGpu.dtype(at::kDouble));
    rank.transport.set_abort_flag(scalars[7]);
    rank.transport.all_reduce(std::array{gradients, scalars});
    const auto allocated = [] {
      const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(0);
      return std::to_string(stats.allocation[0].allocated) + " " + std::to_string(stats.segment[0].allocated) + "|";
    };
    std::string text = allocated();
    for (int step = 0; step < 3; ++step) rank.transport.all_reduce(std::array{gradients, scalars});
    rank.transport.broadcast(std::array{gradients});
    gradients.cpu();
    text += allocated();
    rank.transport.abort();
    return text + allocated();
  });
  const std::string& text = results[0].text;
  const std::string first = text.substr(0, text.find('|') + 1);
  EXPECT_TRUE(text == first + first + first) << text;
}

TEST_F(NcclTransport, IsRefusedInsideACapture) {
  const auto results = run(2, [](const Rank& rank) {
    const at::Tensor values = rank.reduce_zeros();
    return error_of([&] { kernels::capture([&] { rank.transport.all_reduce(std::array{values}); }); }) +
           std::to_string(num_calls("captured"));
  });
  EXPECT_EQ(results[1].text,
            "device: rank 1 of 2: NCCL: all-reduce inside a graph capture: graphs differ between ranks0");
}

TEST_F(NcclTransport, RanksThatReduceDifferentTensorsAreNamed) {
  for (const RankResult& result : run(2, [](const Rank& rank) { return rank.error_of_reduce(10 + rank.rank); })) {
    EXPECT_SAYS(result.text,
                "call 1: rank 0 has all_reduce of 10 fp32, rank 1 has all_reduce of 11 fp32). NCCL_DEBUG=INFO");
  }
}

TEST_F(NcclTransport, OnlyContiguousNumbersAreReduced) {
  const auto results = run(2, [](const Rank& rank) {
    const auto reduce = [&](const at::Tensor& tensor) { rank.transport.all_reduce(std::array{tensor}); };
    const at::Tensor values = at::zeros({4, 4}, kOnGpu);
    const auto reduce_with_host = [&] { rank.transport.all_reduce(std::array{values, at::zeros({4})}); };
    return error_of([&] { reduce(values.t()); }) + "\n" + error_of([&] { reduce(values.to(at::kLong)); }) + "\n" +
           error_of(reduce_with_host);
  });
  EXPECT_EQ(
      results[0].text,
      "internal: all-reduce: expected contiguous CUDA tensors\ninternal: all-reduce: expected fp32 or fp64, not Long\n"
      "internal: all-reduce: expected contiguous CUDA tensors");
}

constexpr const char* kAborted = "device: rank 0 of 2: NCCL: aborted, because a rank has failed or ended";

TEST_F(NcclTransport, AbortEndsWhatWaitsForARankThatHangs) {
  // The first collective waits for all ranks; later ones are waited for by what comes after them in the stream.
  const auto abort_the_first = [](const Rank& rank) {
    std::thread aborting = rank.abort_once([] { return num_calls("all_reduce") == 1; });
    const std::string error = rank.error_of_reduce();
    aborting.join();
    return error + "\n" + rank.error_of_reduce();
  };
  const auto abort_the_second = [](const Rank& rank) {
    rank.reduce_zeros().cpu();
    std::atomic<bool> is_enqueued = false;
    std::thread aborting = rank.abort_once([&] { return is_enqueued.load(); });
    const at::Tensor sums = rank.reduce_zeros();
    is_enqueued = true;
    sums.cpu();
    aborting.join();
    return rank.error_of_reduce() + std::to_string(num_calls("abort"));
  };
  EXPECT_EQ(of_rank_0("hang:1:1", abort_the_first), std::string(kAborted) + "\n" + kAborted);
  EXPECT_EQ(of_rank_0("hang:2:1", abort_the_second), kAborted + std::string("1"));
}

const at::Tensor* flag_to_see = nullptr;
double seen_flag = -1;

TEST_F(NcclTransport, AbortSetsTheFlagBeforeItEndsAnything) {
  const auto abort = [](const Rank& rank) {
    const at::Tensor scalars = at::zeros({3}, kOnGpu.dtype(at::kDouble)), flag = scalars[1];
    rank.transport.set_abort_flag(flag);
    flag_to_see = &flag;
    *static_cast<void (**)()>(::dlsym(RTLD_DEFAULT, "stand_in_nccl_at_abort")) = [] {
      seen_flag = *flag_to_see->const_data_ptr<double>();
    };
    rank.reduce_zeros();
    rank.reduce_zeros();
    rank.transport.abort();
    const at::Tensor now = scalars.cpu();
    const double* const values = now.const_data_ptr<double>();
    return std::to_string(seen_flag) + " " + std::to_string(values[0]) + " " + std::to_string(values[2]);
  };
  EXPECT_EQ(of_rank_0("hang:2:1", abort), "1.000000 0.000000 0.000000");
}

TEST_F(NcclTransport, EndsOnceAllRanksHaveFinalized) {
  const auto results = run(2, [](const Rank& rank) {
    rank.reduce_zeros();
    rank.transport.end();
    std::string text = rank.transport.asynchronous_error();
    for (const char* call : {"finalize", "destroy", "abort"}) text += std::to_string(num_calls(call));
    return text + rank.error_of_reduce().substr(0, 35);
  });
  EXPECT_EQ(results[1].text, "110device: rank 1 of 2: NCCL: aborted,");
}

TEST_F(NcclTransport, AnAsynchronousErrorIsSeenFromAnotherThread) {
  const auto watch = [](const Rank& rank) {
    rank.reduce_zeros().cpu();
    std::string seen = rank.transport.asynchronous_error() + "|";
    const at::Tensor sums = rank.reduce_zeros();
    std::thread watching([&] {
      while (rank.transport.asynchronous_error().empty()) std::this_thread::yield();
      seen += rank.transport.asynchronous_error() + "|";
      rank.transport.abort();
    });
    sums.cpu();
    watching.join();
    return seen + rank.transport.asynchronous_error() + rank.error_of_reduce();
  };
  EXPECT_EQ(of_rank_0("error:2:0", watch), std::string("|remote error: asked for by STAND_IN_NCCL_FAULT|") + kAborted);
}

TEST_F(NcclTransport, AnAsynchronousErrorIsThrownByTheNextCall) {
  const auto call_again = [](const Rank& rank) {
    rank.reduce_zeros().cpu();
    const at::Tensor values = rank.reduce_zeros();
    while (rank.transport.asynchronous_error().empty()) std::this_thread::yield();
    const std::string error = error_of([&] { rank.transport.all_reduce(std::array{values}); });
    rank.transport.abort();
    return error;
  };
  EXPECT_SAYS(of_rank_0("error:2:0", call_again), "device: rank 0 of 2: NCCL: all-reduce failed: remote error");
}

TEST_F(NcclTransport, ACallThatIsRefusedNamesTheRankAndWhatToTry) {
  const auto call = [](const Rank& rank) {
    rank.reduce_zeros();
    return rank.last_error_of_reduce();
  };
  EXPECT_EQ(of_rank_0("fail:2:0", call),
            "device: rank 0 of 2: NCCL: all-reduce failed: stand-in's error (asked for by STAND_IN_NCCL_FAULT). "
            "NCCL_DEBUG=INFO shows why; with NCCL_P2P_DISABLE=1, GPUs do not access each other's memory directly.");
}

TEST_F(NcclTransport, ConnectingEndsWithAFailureAnAbortOrAStop) {
  EXPECT_SAYS(of_rank_0("fail:0:0", [](const Rank& rank) { return rank.last_error_of_reduce(); }),
              "device: rank 0 of 2: NCCL: connecting the GPUs failed: system error (asked for");
  const auto abort = [](const Rank& rank) {
    std::thread aborting = rank.abort_once([] { return num_calls("connect") == 1; });
    const std::string error = rank.error_of_reduce();
    aborting.join();
    return error;
  };
  EXPECT_EQ(of_rank_0("hang:0:1", abort),
            "device: rank 0 of 2: aborted while connecting the GPUs because a rank has failed or ended");
  const auto stop = [](const Rank& rank) {
    const StopRequests requests;
    std::raise(SIGTERM);
    return rank.last_error_of_reduce();
  };
  EXPECT_SAYS(of_rank_0("hang:0:1", stop), "stopped: SIGTERM");
}

TEST_F(NcclTransport, DeterministicRunsFixTheAlgorithmUnlessTheEnvironmentDoes) {
  ScopedEnvironment environment;
  environment.set("NCCL_ALGO", {});
  environment.set("NCCL_PROTO", "LL128");
  for (const bool deterministic : {false, true}) {
    const auto settings = [](const Rank& rank) {
      rank.reduce_zeros();
      const char* const algorithm = std::getenv("NCCL_ALGO");
      return std::string(algorithm != nullptr ? algorithm : "none") + " " + std::getenv("NCCL_PROTO");
    };
    expect_all(run(2, settings, deterministic), deterministic ? "Ring LL128" : "none LL128");
  }
}

}  // namespace
}  // namespace lora_train::ranks::nccl_test
