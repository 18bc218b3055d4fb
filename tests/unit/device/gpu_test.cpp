#include "lora_train/device/gpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "fake_machine.h"

namespace lora_train::device {
namespace {

const std::vector<CudaArchitecture> kBuilt = {{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 0}, {12, 0, true}};

// Every preset has these; cmake/cuda_architectures.txt has more.
TEST(CudaBuild, HasMachineCodeForAmpereAndHopperAndPtxForLater) {
  EXPECT_TRUE(built_architectures_text().starts_with("sm_80 "));
  EXPECT_SAYS(built_architectures_text(), " sm_90 ");
  EXPECT_TRUE(built_architectures().back().is_ptx);
}

TEST(CudaBuild, MachineCodeRunsOnLaterMinorNumbersAndPtxOnLaterOnesOfAnyKind) {
  const std::map<CodeFor, std::vector<std::pair<int, int>>> capabilities = {
      {CodeFor::kMachineCode, {{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}, {12, 1}}},
      {CodeFor::kPtx, {{13, 0}, {20, 5}}},
      {CodeFor::kNone, {{3, 5}, {6, 1}, {7, 0}, {7, 5}, {11, 0}}}};
  for (const auto& [code, all] : capabilities) {
    for (const auto& [major, minor] : all) EXPECT_EQ(code_for(major, minor, kBuilt), code) << major << "." << minor;
  }
}

TEST(CudaBuild, LibraryLiesBesideTheProgram) {
  EXPECT_EQ(cuda_library_file(),
            std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lib/liblora_train_cuda.so");
}

using FindGpus = FakeMachine;

TEST_F(FindGpus, DescribesAGpu) {
  const GpuSystem system = find();
  EXPECT_EQ(system.driver_version, "580.95.05");
  EXPECT_EQ(system.cuda_version, 13000);
  EXPECT_EQ(system.init_code, 0);
  EXPECT_EQ(system.library_problem + system.management_problem, "");
  ASSERT_EQ(system.gpus.size(), 1u);
  const Gpu& gpu = system.gpus[0];
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.label(), "cuda:0 (NVIDIA H200)");
  EXPECT_EQ(gpu.architecture(), "sm_90");
  EXPECT_EQ(gpu.uuid, "GPU-00000000-0000-0000-0000-00000000abc0");
  EXPECT_EQ(gpu.pci_id, "0000:3b:00.0");
  EXPECT_EQ(gpu.num_multiprocessors, 132);
  EXPECT_EQ(gpu.total_bytes, 143771ull << 20);
  EXPECT_EQ(gpu.free_bytes, 143000ull << 20);
  EXPECT_EQ(gpu.compute_mode, ComputeMode::kDefault);
  EXPECT_TRUE(gpu.processes.empty());
}

TEST_F(FindGpus, MemoryAndProcessesAreThoseOfTheGpuThatCudaVisibleDevicesChose) {
  set("FAKE_GPUS", "A|8.0|1000|900|0|;B|9.0|2000|1500|3|11:400,12");
  set("CUDA_VISIBLE_DEVICES", "1");
  const GpuSystem system = find();
  EXPECT_EQ(system.visible_devices, "1");
  ASSERT_EQ(system.gpus.size(), 1u);
  const Gpu& gpu = system.gpus[0];
  EXPECT_EQ(gpu.label(), "cuda:0 (B)");
  EXPECT_EQ(gpu.free_bytes, 1500ull << 20);
  EXPECT_EQ(gpu.compute_mode, ComputeMode::kExclusiveProcess);
  EXPECT_EQ(describe_processes(gpu), "pid 11 (400.0 MiB), pid 12");
}

TEST_F(FindGpus, ManyProcessesAreAllListedAndThisOneIsNot) {
  std::string processes = std::to_string(::getpid()) + ":5";
  for (int pid = 1; pid <= 40; ++pid) processes += "," + std::to_string(1000000 + pid) + ":1";
  set("FAKE_GPUS", "A|8.0|1000|900|0|" + processes);
  const Gpu gpu = find().gpus.at(0);
  ASSERT_EQ(gpu.processes.size(), 40u);
  EXPECT_EQ(gpu.processes.back().pid, 1000040u);
}

TEST_F(FindGpus, ASliceOfAGpuIsFoundByItsOwnName) {
  set("FAKE_GPUS", "NVIDIA H100 80GB HBM3 MIG 1g.10gb|9.0|9984|9000|0|");
  const Gpu gpu = find().gpus.at(0);
  EXPECT_TRUE(gpu.uuid.starts_with("MIG-")) << gpu.uuid;
  EXPECT_EQ(gpu.free_bytes, 9000ull << 20);
}

TEST_F(FindGpus, PeerAccessNamesTheWay) {
  using enum PeerAccess;
  set("FAKE_GPUS", "A|8.0|1000|900|0|;B|8.0|1000|900|0|");
  for (const auto& [peers, way] : {std::pair{"nvlink", kNvlink}, {"pcie", kPcie}, {"none", kNone}}) {
    set("FAKE_PEERS", peers);
    EXPECT_EQ(find().peer_access, (std::vector<std::vector<PeerAccess>>{{kSelf, way}, {way, kSelf}})) << peers;
  }
  EXPECT_STREQ(to_string(kNvlink), "nvlink");
}

TEST_F(FindGpus, WithoutTheManagementLibraryMemoryIsUnknownAndTheVersionIsTheKernelModules) {
  set("FAKE_NVML_INIT", "18");
  EXPECT_TRUE(find().management_problem.ends_with(": Driver/library version mismatch")) << find().management_problem;
  places_.management_library = (root_ / "none.so").string();
  put("proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (archlinux@)\nGCC version:  "
      "gcc 14.2\n");
  const GpuSystem system = find();
  EXPECT_EQ(system.driver_version, "580.65.06");
  EXPECT_NE(system.management_problem, "");
  ASSERT_EQ(system.gpus.size(), 1u);
  EXPECT_EQ(system.gpus[0].free_bytes, std::nullopt);
  EXPECT_EQ(refusal(), "");
}

TEST_F(FindGpus, DeviceNodesOfNvidiaAlone) {
  for (const char* name :
       {"dev/nvidia0", "dev/nvidia12", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia", "dev/dxg", "dev/null"})
    put(name);
  using Names = std::vector<std::string>;
  EXPECT_EQ(nvidia_device_nodes(root_.path()), (Names{"/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl"}));
  put("usr/lib/wsl/lib/libcuda.so.1");
  EXPECT_EQ(nvidia_device_nodes(root_.path()).front(), "/dev/dxg");
  EXPECT_TRUE(nvidia_device_nodes(root_ / "nowhere").empty());
}

TEST_F(FindGpus, GpuHardwareIsANodeOrADriverThatFindsMoreThanNothing) {
  EXPECT_TRUE(find().has_gpu_hardware());
  set("FAKE_CUDA_INIT", "803");
  EXPECT_TRUE(find().has_gpu_hardware());
  set("FAKE_CUDA_INIT", "100");
  EXPECT_FALSE(find().has_gpu_hardware());
  put("dev/nvidia0");
  EXPECT_TRUE(find().has_gpu_hardware());
  without_driver();
  EXPECT_TRUE(find().has_gpu_hardware());
  std::filesystem::remove(root_ / "dev/nvidia0");
  EXPECT_FALSE(find().has_gpu_hardware());
}

using RequireGpu = FakeMachine;

TEST_F(RequireGpu, PassesOnEveryArchitectureThatIsBuiltAndOnLaterOnes) {
  for (const char* capability : {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "13.0"}) {
    set("FAKE_GPUS", std::string("GPU|") + capability + "|1000|900|0|");
    EXPECT_EQ(refusal(), "") << capability;
  }
  EXPECT_EQ(require_gpu(find()).name, "GPU");
}

TEST_F(RequireGpu, GpusBeforeAmpereAreRefusedByName) {
  set("FAKE_GPUS", "Tesla T4|7.5|15360|15000|0|");
  EXPECT_EQ(refusal(), "cuda:0 (Tesla T4): its compute capability is 7.5 (sm_75), but this build has code for " +
                           built_architectures_text() +
                           ". Choose another GPU with CUDA_VISIBLE_DEVICES. To compute on the CPU, set device: cpu.");
}

TEST_F(RequireGpu, WithoutTheDriversLibraryTheAdviceIsThatForTheMachine) {
  without_driver();
  const std::string text = refusal();
  for (const char* part :
       {"device: libcuda.so.1, the NVIDIA driver's library, cannot be used (",
        "no-such-library.so.1: cannot open shared object file",
        "; no device node /dev/nvidia0). Install the driver, 580 or newer", "--gpus all", "set device: cpu."}) {
    EXPECT_SAYS(text, part);
  }
  put("dev/nvidia0");  // a container without the toolkit
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n");
  EXPECT_SAYS(refusal(),
              "device nodes /dev/nvidia0). Install the driver, as the kernel module: 580.95.05. In a container:");
  put("dev/dxg");
  put("usr/lib/wsl/lib/libcuda.so.1");
  EXPECT_SAYS(refusal(), "In WSL: export LD_LIBRARY_PATH=/usr/lib/wsl/lib.");
  places_.cuda_library = FAKE_NVML;
  EXPECT_SAYS(refusal(), "has no function cuInit");
}

TEST_F(RequireGpu, OldDriverIsNamedWithItsNumber) {
  set("FAKE_DRIVER_VERSION", "550.54.15");
  EXPECT_EQ(refusal(), "") << "with the compatibility library";
  set("FAKE_CUDA_VERSION", "12040");
  EXPECT_EQ(
      refusal(),
      "device: NVIDIA driver 550.54.15 is too old: it supports CUDA up to 12.4, and this build needs CUDA 13.0, which "
      "needs driver 580 or newer. Update the driver (for a container: on the host). On a data-centre GPU, installing "
      "the package cuda-compat-13-0 works too. To compute on the CPU, set device: cpu.");
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
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|22700|0|");
  EXPECT_EQ(usage_warning(require_gpu(find())), "");
}

TEST_F(RequireGpu, AComputeModeThatLeavesNoRoomIsRefused) {
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|22700|3|");
  EXPECT_EQ(refusal(), "");
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|3000|3|4711:19456");
  EXPECT_SAYS(
      refusal(),
      "cuda:0 (NVIDIA A10G): it is in use by pid 4711 (19.0 GiB), and its compute mode is Exclusive_Process: one "
      "process at a time. Choose another GPU");
  put("tmp/nvidia-mps/control");
  EXPECT_EQ(refusal(), "") << "the multi-process service shares it";
  set("FAKE_GPUS", "NVIDIA A10G|8.6|23028|22700|2|");
  EXPECT_SAYS(
      refusal(),
      "its compute mode is Prohibited, which sudo nvidia-smi -i 0000:3b:00.0 -c DEFAULT changes. Choose another");
}

}  // namespace
}  // namespace lora_train::device
