// An all-reduce of fp32 between CPU ranks: by Gloo, as a run does it, and by chunks through a TCPStore, interleaved.
//
//   ranks_bench [--numbers 40000000] [--rounds 5]
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "lora_train/kernels/aten.h"
#include "lora_train/ranks/connect.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"

namespace {

using namespace lora_train;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Each rank puts its tensor into the store, in values of at most 4 MiB, and adds those of the others.
void add_through_store(c10d::TCPStore& store, int rank, int world_size, int round, at::Tensor& values) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  const auto key = [&](int of, std::int64_t begin) {
    return std::to_string(round) + "/" + std::to_string(of) + "/" + std::to_string(begin);
  };
  auto* const data = values.mutable_data_ptr<float>();
  const std::int64_t size = values.numel();
  for (std::int64_t begin = 0; begin < size; begin += kChunk) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(data + begin);
    store.set(key(rank, begin), std::vector<std::uint8_t>(bytes, bytes + 4 * std::min(kChunk, size - begin)));
  }
  for (std::int64_t begin = 0; begin < size; begin += kChunk) {
    for (int other = 0; other < world_size; ++other) {
      if (other == rank) continue;
      std::vector<std::uint8_t> bytes = store.get(key(other, begin));
      values.narrow(0, begin, std::min(kChunk, size - begin))
          .add_(at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size() / 4)}, at::kFloat));
    }
  }
}

void run(int world_size, std::int64_t num_values, int rounds) {
  const testing_support::TemporaryFolder folder;
  const auto results = testing_support::run_ranks(world_size, [&](int rank) {
    ::alarm(0);
    at::set_num_threads(1);
    launch::World world;
    world.launcher = launch::Launcher::kNproc;
    world.rank = world.local_rank = rank;
    world.size = world.local_size = world_size;
    world.job = "bench";
    world.job_folder = folder.path();
    const auto ranks = ranks::connect(world, {});
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = rank == 0;
    options.waitWorkers = false;
    std::string port;
    std::unique_ptr<c10d::TCPStore> store;
    if (rank == 0) store = std::make_unique<c10d::TCPStore>("127.0.0.1", options);
    options.port =
        static_cast<std::uint16_t>(std::stoi(ranks->broadcast(rank == 0 ? std::to_string(store->getPort()) : "")));
    if (rank > 0) store = std::make_unique<c10d::TCPStore>("127.0.0.1", options);
    at::Tensor values = at::ones({num_values}, at::kFloat);
    double gloo = 1e9, chunks = 1e9;
    for (int round = 0; round < rounds; ++round) {
      ranks->all_gather("");
      auto start = Clock::now();
      ranks->all_reduce(std::array{values});
      ranks->all_gather("");
      gloo = std::min(gloo, seconds_since(start));
      values.fill_(1);
      ranks->all_gather("");
      start = Clock::now();
      add_through_store(*store, rank, world_size, round, values);
      ranks->all_gather("");
      chunks = std::min(chunks, seconds_since(start));
      const bool is_right = values[num_values - 1].item<float>() == static_cast<float>(world_size);
      if (!is_right) throw std::runtime_error("the sum is wrong");
      values.fill_(1);
    }
    char line[160];
    std::snprintf(line, sizeof line, "%d ranks, %lld fp32: Gloo %.3f s, chunks through a TCPStore %.3f s: %.1f times",
                  world_size, static_cast<long long>(num_values), gloo, chunks, chunks / gloo);
    ranks->leave(0);
    return std::string(line);
  });
  std::printf("%s\n", results[0].text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t num_values = 40'000'000;
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--numbers") == 0) num_values = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::atoi(argv[i + 1]);
  }
  std::printf("the best of %d rounds, all ranks on this host, one thread each\n", rounds);
  for (const int world_size : {2, 4}) run(world_size, num_values, rounds);
}
