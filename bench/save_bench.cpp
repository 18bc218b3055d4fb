// What a checkpoint costs: how long training stands still (the copy of the state), and when it is on the disk and read back,
// beside what the disk and the memory of this machine can do in the same run.
//
//   save_bench [--folder DIR] [--parameters 40000000] [--rounds 5]
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/run_folder/checkpoint.h"
#include "support/temporary_folder.h"

namespace {

using namespace lora_train;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// As LoRA of rank 16 on a model of 4096: matrices of 65,536 values.
model::Trainables lora_parameters(std::int64_t num_parameters) {
  constexpr std::int64_t kSize = 65536;
  std::vector<model::Parameter> list;
  for (std::int64_t i = 0; i < (num_parameters + kSize - 1) / kSize; ++i) {
    list.push_back({"base_model.model.layers." + std::to_string(i) + ".lora_A.weight", {16, kSize / 16}, true});
  }
  model::Trainables made(std::move(list));
  made.values.uniform_(-1, 1);
  return made;
}

void print_limits(const std::filesystem::path& folder, std::size_t num_bytes) {
  const at::Tensor source = at::ones({static_cast<int64_t>(num_bytes / 4)}), target = at::empty_like(source);
  at::Tensor(target).copy_(source);
  auto start = Clock::now();
  at::Tensor(target).copy_(source);
  std::printf("memory: copying %.0f MB takes %.1f ms\n", static_cast<double>(num_bytes) / 1e6,
              1000 * seconds_since(start));
  const std::string_view bytes(static_cast<const char*>(source.data_ptr()), num_bytes);
  start = Clock::now();
  FileWriter file(folder / "raw", num_bytes);
  file.write(bytes);
  file.finish();
  std::printf("disk: one file of %.0f MB, written, hashed and synced, takes %.2f s\n",
              static_cast<double>(num_bytes) / 1e6, seconds_since(start));
  start = Clock::now();
  Hasher hasher;
  hasher.update(bytes);
  std::printf("hash: %.2f s\n", seconds_since(start));
}

void measure_saves(const std::filesystem::path& parent, std::int64_t num_parameters, int rounds) {
  const testing_support::TemporaryFolder folder(parent);
  const model::Trainables live = lora_parameters(num_parameters);
  optim::OptimizerState optimizer(optim::optimizer_for(OptimizerKind::kAdamwTorch), live.blocks(), at::kCPU);
  for (at::Tensor& flat : optimizer.tensors) flat.uniform_(-1, 1);
  std::printf("%lld trainable parameters, %d threads, %s\n", static_cast<long long>(live.size()), at::get_num_threads(),
              folder.path().c_str());
  print_limits(folder.path(), live.values.nbytes() + static_cast<std::size_t>(optimizer.bytes()));
  model::Trainables snapshot = live.host_copy();
  optim::OptimizerState optimizer_snapshot = optimizer.host_copy();
  run_folder::CheckpointWriter saver({folder.path(), 2, {}});
  for (int round = 1; round <= rounds; ++round) {
    const auto start = Clock::now();
    snapshot.values.copy_(live.values);
    optimizer_snapshot.copy_from(optimizer);
    run_folder::Contents contents;
    contents.state.step = round;
    contents.files = run::checkpoint_files(nullptr, snapshot, optimizer_snapshot);
    saver.start(std::move(contents));
    const double stall_s = seconds_since(start);
    const auto result = saver.wait();
    if (result->error) std::rethrow_exception(result->error);
    std::printf("save %d: training stands still for %.1f ms; on the disk and read back after %.2f s\n", round,
                1000 * stall_s, result->durable_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "/tmp";
  std::int64_t num_parameters = 40'000'000;
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--folder") folder = argv[i + 1];
    if (flag == "--parameters") num_parameters = std::atoll(argv[i + 1]);
    if (flag == "--rounds") rounds = std::atoi(argv[i + 1]);
  }
  measure_saves(folder, num_parameters, rounds);
  return 0;
}
