#include "fake_machine.h"
#include "lora_train/device/gpu.h"

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

namespace lora_train::device {
namespace {

using RequireGpu = FakeMachine;

constexpr const char* kIdle = "NVIDIA A10G|8.6|23028|22700|0|";

TEST_F(RequireGpu, PassesOnEveryArchitectureThatIsBuiltAndOnLaterOnes) {
  for (const char* capability : {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "13.0"}) {
    set("FAKE_GPUS", std::string("GPU|") + capability + "|1000|900|0|");
    EXPECT_EQ(refusal(), "") << capability;
  }
  EXPECT_EQ(require_gpu(find()).name, "GPU");
}

TEST_F(RequireGpu, GpusBeforeAmpereAreRefusedByName) {
  set("FAKE_GPUS", "Tesla T4|7.5|15360|15000|0|");
  EXPECT_EQ(
      refusal(),
      "cuda:0 (Tesla T4): its compute capability is 7.5 (sm_75), but this build has code for " +
          built_architectures_text() +
          ": Ampere (8.0) and newer. Choose another GPU with CUDA_VISIBLE_DEVICES. To compute on the CPU, set device: "
          "cpu.");
}

TEST_F(RequireGpu, NoDriver) {
  without_driver();
  const std::string text = refusal();
  EXPECT_SAYS(text, "device: libcuda.so.1, the NVIDIA driver's library, cannot be used (");
  EXPECT_SAYS(text, "no-such-library.so.1: cannot open shared object file");
  EXPECT_SAYS(text, "; no device node /dev/nvidia0). Install the driver, 580 or newer");
  EXPECT_SAYS(text, "--gpus all");
  EXPECT_SAYS(text, "set device: cpu.");
}

TEST_F(RequireGpu, DeviceNodeWithoutALibraryIsAContainerWithoutTheToolkit) {
  without_driver();
  put("dev/nvidia0");
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n");
  const std::string text = refusal();
  EXPECT_SAYS(text, "device nodes /dev/nvidia0). Install the driver, as the kernel module: 580.95.05. In a container:");
}

TEST_F(RequireGpu, WindowsSubsystem) {
  without_driver();
  put("dev/dxg");
  put("usr/lib/wsl/lib/libcuda.so.1");
  EXPECT_SAYS(refusal(), "In WSL: export LD_LIBRARY_PATH=/usr/lib/wsl/lib.");
}

TEST_F(RequireGpu, ALibraryThatIsNotTheDriversIsRefused) {
  places_.cuda_library = FAKE_NVML;
  EXPECT_SAYS(refusal(), "has no function cuInit");
}

TEST_F(RequireGpu, OldDriverIsNamedWithItsNumber) {
  set("FAKE_CUDA_VERSION", "12040");
  set("FAKE_DRIVER_VERSION", "550.54.15");
  EXPECT_EQ(
      refusal(),
      "device: NVIDIA driver 550.54.15 is too old: it supports CUDA up to 12.4, and this build needs CUDA 13.0, which "
      "needs driver 580 or newer. Update the driver (for a container: on the host). On a data-centre GPU, installing "
      "the package cuda-compat-13-0 works too. To compute on the CPU, set device: cpu.");
}

TEST_F(RequireGpu, OldKernelModuleWithTheCompatibilityLibraryPasses) {
  set("FAKE_DRIVER_VERSION", "550.54.15");
  EXPECT_EQ(refusal(), "");
}

TEST_F(RequireGpu, GpusHiddenByCudaVisibleDevicesSayItsValue) {
  for (const char* value : {"", "7", "GPU-does-not-exist"}) {
    set("CUDA_VISIBLE_DEVICES", value);
    EXPECT_SAYS(refusal(),
                std::string("no GPU is visible: CUDA_VISIBLE_DEVICES is \"") + value + "\". Unset it, or set it to");
  }
}

TEST_F(RequireGpu, DriverThatFindsNoGpu) {
  set("FAKE_CUDA_INIT", "100");
  EXPECT_SAYS(refusal(), "NVIDIA driver 580.95.05 finds no GPU (no device node /dev/nvidia0). ");
  put("dev/nvidiactl");
  EXPECT_SAYS(refusal(), "finds no GPU (device nodes /dev/nvidiactl). Check whether nvidia-smi -L lists it");
}

TEST_F(RequireGpu, EveryErrorOfCuInitHasItsAdvice) {
  const std::pair<const char*, const char*> cases[] = {
      {"34", "lib64/stubs"},
      {"46", "compute mode"},
      {"101", "CUDA_VISIBLE_DEVICES names GPUs"},
      {"304", "may read and write /dev/nvidia*"},
      {"802",
       "cuInit returns CUDA_ERROR_SYSTEM_NOT_READY (802). On a machine with NVSwitch (HGX, DGX), the fabric manager "
       "must run, in the same version as the driver: sudo systemctl start nvidia-fabricmanager."},
      {"803",
       "cuInit returns CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803). libcuda.so.1 has a different version than the loaded "
       "kernel module. After a driver update, restart the machine"},
      {"804", "remove it from LD_LIBRARY_PATH"},
      {"805", "CUDA MPS (Multi-Process Service)"},
      {"809", "CUDA MPS (Multi-Process Service)"},
      {"999", "CUDA_ERROR_UNKNOWN (999). Often the kernel module nvidia_uvm is missing"},
      {"719", "cuInit returns CUDA error 719 (719). Check whether nvidia-smi works"},
  };
  for (const auto& [code, part] : cases) {
    set("FAKE_CUDA_INIT", code);
    const std::string text = refusal();
    EXPECT_SAYS(text, part);
    EXPECT_SAYS(text, "NVIDIA driver 580.95.05 does not start: cuInit returns ");
    EXPECT_SAYS(text, std::string("(") + code + "). ");
  }
}

TEST_F(RequireGpu, IndexPastTheLastGpu) {
  EXPECT_SAYS(refusal(1), "there is no GPU cuda:1: the driver reports 1. Start at most one process per GPU.");
  set("CUDA_VISIBLE_DEVICES", "0");
  EXPECT_SAYS(refusal(1), "the driver reports 1 (CUDA_VISIBLE_DEVICES is \"0\")");
}

TEST_F(RequireGpu, GpuInUseIsAWarning) {
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|3000|0|4711:19456,12");
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(
      usage_warning(require_gpu(find())),
      "cuda:0 (NVIDIA A10G) is in use by pid 4711 (19.0 GiB), pid 12, which leaves less memory and slows steps down");
  set("FAKE_GPUS", kIdle);
  EXPECT_EQ(usage_warning(require_gpu(find())), "");
}

TEST_F(RequireGpu, GpuInUseInExclusiveModeIsRefused) {
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|22700|3|");
  EXPECT_EQ(refusal(), "");
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|3000|3|4711:19456");
  EXPECT_SAYS(
      refusal(),
      "cuda:0 (NVIDIA A10G): it is in use by pid 4711 (19.0 GiB), and its compute mode is Exclusive_Process: one "
      "process at a time. Choose another GPU");
  put("tmp/nvidia-mps/control");
  EXPECT_EQ(refusal(), "") << "the multi-process service shares it";
}

TEST_F(RequireGpu, ProhibitedModeIsRefused) {
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|22700|2|");
  EXPECT_SAYS(
      refusal(),
      "its compute mode is Prohibited, which sudo nvidia-smi -i 0000:3b:00.0 -c DEFAULT changes. Choose another");
}

}  // namespace
}  // namespace lora_train::device
