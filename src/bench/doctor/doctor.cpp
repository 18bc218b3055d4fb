// Runs every kernel of this build and its reference on one device.

#include "lora_train/bench/doctor/doctor.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "kernel_cases.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimedCalls = 3;
constexpr std::chrono::seconds kNcclPatience(60);            // the first connection of 8 GPUs takes seconds
constexpr std::int64_t kNumFloats = std::int64_t{16} << 20;  // large enough to be limited by the links
constexpr int kNumCalls = 5;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Outputs copies(const Outputs& tensors) {
  Outputs made;
  for (const at::Tensor& tensor : tensors) made.push_back(tensor.clone());
  return made;
}

/// Computes in fp64 on the device, which sends one number.
double relative_error(const at::Tensor& got, const at::Tensor& reference) {
  const at::Tensor want = reference.to(at::kDouble);
  const double error = (got.to(at::kDouble) - want).norm().div(want.norm()).item<double>();
  // NaN is a failure, and so is a reference that is all zeros, which proves nothing.
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

const char* dtype_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

/// LibTorch appends a backtrace to its messages.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

double tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 1e-2 : 1e-5; }

/// The fastest of a few calls: other work on the machine can only slow a call down.
double time_us(const Place& place, const Call& call, Outputs& outputs) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimedCalls; ++i) {
    plan::wait_for({place.device});
    const auto start = Clock::now();
    call(outputs);
    plan::wait_for({place.device});
    best = std::min(best, us_since(start));
  }
  return best;
}

/// The error of an output, and the worst document.
struct OutputError {
  double error = 0;
  std::string note = {};
};
OutputError error_of(const Case& c, const at::Tensor& got, const at::Tensor& want) {
  constexpr double kDocumentTolerance = 4;
  const double error = relative_error(got, want);
  if (c.cu_seqlens.empty()) return {error};
  const kernels::DocumentError worst = kernels::worst_document(got, want, c.cu_seqlens);
  return {std::max(error, worst.error / kDocumentTolerance),
          fmt::format("wrong result, worst in document {} of {}", worst.document + 1, c.cu_seqlens.size() - 1)};
}

/// Computes fp32 products in full precision: TF32 would hide errors.
at::Device start_device(const DoctorRequest& request) {
  if (!request.use_cuda) return at::kCPU;
  Profile profile;
  profile.run.device = Device::kCuda;
  profile.run.tf32 = false;
  return plan::start_device(profile, {}).device;
}

/// The ranks of the check. If one fails, all end.
class GpuThreads {
 public:
  explicit GpuThreads(int num_gpus) : groups_(static_cast<std::size_t>(num_gpus)) {
    for (int gpu = 0; gpu < num_gpus; ++gpu) inputs.push_back(at::full({kNumFloats}, static_cast<float>(gpu) + 0.5F));
    outputs.resize(inputs.size());
  }

  void run(std::chrono::seconds patience) {
    const std::string id = kernels::cuda_library()->nccl.unique_id();
    std::vector<std::thread> threads;
    for (std::size_t gpu = 0; gpu < inputs.size(); ++gpu) threads.emplace_back([this, gpu, &id] { run_one(gpu, id); });
    {
      std::unique_lock lock(mutex_);
      const auto is_over = [this] { return num_done_ == inputs.size() || error_ != nullptr; };
      if (!ended_.wait_for(lock, patience, is_over)) {
        error_ = std::make_exception_ptr(DeviceError("NCCL", "the GPUs do not answer. Try NCCL_P2P_DISABLE=1"));
      }
      for (const auto& group : groups_) {
        if (error_ != nullptr && group != nullptr) group->abort();
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  std::vector<at::Tensor> inputs, outputs;  ///< [kNumFloats] per GPU, in host memory
  double us = 0;                            ///< fastest call of the slowest GPU

 private:
  void run_one(std::size_t gpu, const std::string& id) try {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
    const c10::DeviceGuard guard(device);
    auto connected = kernels::cuda_library()->nccl.connect(id, static_cast<int>(gpu), static_cast<int>(inputs.size()),
                                                           [this] { throw_if_failed(); });
    kernels::NcclGroup& group = *connected;
    {
      const std::lock_guard lock(mutex_);
      groups_[gpu] = std::move(connected);
    }
    const at::Tensor sums = at::empty({kNumFloats}, device);
    double best_us = std::numeric_limits<double>::infinity();
    for (int call = 0; call < kNumCalls; ++call) {
      throw_if_failed();
      sums.copy_(inputs[gpu]);
      plan::wait_for({device});
      const auto start = Clock::now();
      group.all_reduce(std::array{sums});
      plan::wait_for({device});
      best_us = std::min(best_us, us_since(start));
    }
    outputs[gpu] = sums.cpu();
    group.end();
    const std::lock_guard lock(mutex_);
    us = std::max(us, best_us);
    ++num_done_;
    ended_.notify_all();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
    ended_.notify_all();
  }

  void throw_if_failed() {
    throw_if_stop_requested();
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr) throw DeviceError("NCCL", "another GPU has failed");
  }

  std::mutex mutex_;  ///< guards the members below, and `us`
  std::condition_variable ended_;
  std::vector<std::unique_ptr<kernels::NcclGroup>> groups_;
  std::exception_ptr error_;
  std::size_t num_done_ = 0;
};

}  // namespace

KernelCheck run_case(const Place& place, const Case& c) {
  KernelCheck check;
  check.name = fmt::format("{} {}", c.name, dtype_name(place.dtype));
  check.shape = c.shape;
  check.tolerance = tolerance(place.dtype);
  try {
    Outputs got = copies(c.outputs), want = copies(c.outputs);
    c.own(got);
    c.reference(want);
    OutputError worst;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const OutputError found = error_of(c, got[i], want[i]);
      if (found.error > worst.error) worst = found;
    }
    check.max_error = worst.error;
    check.passed = !want.empty() && check.max_error <= check.tolerance;
    if (!check.passed) check.note = worst.note;
    check.own_us = time_us(place, c.own, got);
    check.reference_us = time_us(place, c.reference, want);
  } catch (const std::exception& error) {
    check.note = first_line(error);
    check.passed = false;
  }
  return check;
}

std::vector<KernelCheck> check_kernels(const DoctorRequest& request) {
  const at::Device device = start_device(request);
  at::manual_seed(42);
  std::vector<KernelCheck> checks;
  const auto add = [&](const KernelCheck& check) {
    checks.push_back(check);
    if (request.on_check) request.on_check(check);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Place place{device, dtype};
    const auto run = [&](const Case& c) { add(run_case(place, c)); };
    try {
      make_layer_cases(place, run);
      make_step_cases(place, run);
    } catch (const std::exception& error) {  // the device is broken or out of memory
      KernelCheck check;
      check.name = std::string("inputs of the kernels ") + dtype_name(dtype);
      check.note = first_line(error);
      add(check);
    }
  }
  if (request.use_cuda) add(check_nccl(kNcclPatience));
  return checks;
}

KernelCheck check_nccl(std::chrono::seconds patience) {
  const int num_gpus = kernels::cuda_library()->num_devices();
  KernelCheck check;
  check.name = "NCCL all-reduce fp32";
  check.shape = fmt::format("GPUs={} N={}", num_gpus, kNumFloats);
  check.tolerance = 1e-5;
  try {
    GpuThreads gpus(num_gpus);
    gpus.run(patience);
    const auto start = Clock::now();
    const at::Tensor sum = gpus.inputs[0].clone();
    for (std::size_t gpu = 1; gpu < gpus.inputs.size(); ++gpu) sum.add_(gpus.inputs[gpu]);
    check.reference_us = us_since(start);
    for (const at::Tensor& output : gpus.outputs) {
      check.max_error = std::max(check.max_error, ((output - sum).norm() / sum.norm()).item<double>());
    }
    check.passed = check.max_error <= check.tolerance;
    check.own_us = gpus.us;
    const double bytes = 2.0 * (num_gpus - 1) / num_gpus * static_cast<double>(kNumFloats * sizeof(float));
    if (num_gpus > 1) check.shape += fmt::format(", {:.1f} GB/s", bytes / gpus.us / 1e3);
  } catch (const std::exception& error) {
    check.passed = num_gpus == 1;
    check.note =
        (check.passed ? "NCCL does not run here; one GPU trains without it: " : "") + std::string(error.what());
  }
  return check;
}

}  // namespace lora_train::bench
