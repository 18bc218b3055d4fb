// Runs every kernel of this build and its reference on one device.
#include "lora_train/bench/doctor/doctor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>

#include "kernel_cases.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/plan/setup/run_device.h"
#include "nccl_check.h"

namespace lora_train::bench {
namespace {

constexpr int kTimedCalls = 3;
constexpr std::chrono::seconds kNcclPatience(60);  // the first connection of 8 GPUs takes seconds

Outputs copies(const Outputs& tensors) {
  Outputs made;
  for (const at::Tensor& tensor : tensors) made.push_back(tensor.clone());
  return made;
}

/// In fp64 on the device, which sends one number.
double relative_error(const at::Tensor& got, const at::Tensor& reference) {
  const at::Tensor want = reference.to(at::kDouble);
  const double error = (got.to(at::kDouble) - want).norm().div(want.norm()).item<double>();
  // NaN is a failure, and so is a reference that is zero everywhere, since it proves nothing.
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
    const auto start = std::chrono::steady_clock::now();
    call(outputs);
    plan::wait_for({place.device});
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// The error of an output, and which document is the worst.
struct OutputError {
  double error = 0;
  std::string note = {};
};
OutputError error_of(const Case& c, const at::Tensor& got, const at::Tensor& want) {
  constexpr double kDocumentTolerance = 4;
  const double error = relative_error(got, want);
  if (c.cu_seqlens.empty()) return {error};
  const kernels::DocumentError worst = kernels::worst_document(got, want, c.cu_seqlens);
  return {std::max(error, worst.error / kDocumentTolerance), "wrong result, most of all in document " +
                                                                 std::to_string(worst.document + 1) + " of " +
                                                                 std::to_string(c.cu_seqlens.size() - 1)};
}

}  // namespace

KernelCheck run_case(const Place& place, const Case& c) {
  KernelCheck check;
  check.name = c.name + " " + dtype_name(place.dtype);
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

namespace {

/// Computes fp32 products in full precision: TF32 would hide errors.
at::Device start(const DoctorRequest& request) {
  if (!request.use_cuda) return at::kCPU;
  Profile profile;
  profile.run.device = Device::kCuda;
  profile.run.tf32 = false;
  return plan::start_device(profile, {}).device;
}

}  // namespace

std::vector<KernelCheck> check_kernels(const DoctorRequest& request) {
  const at::Device device = start(request);
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

}  // namespace lora_train::bench
