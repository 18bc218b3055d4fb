#include <unistd.h>

#include "fake_machine.h"

namespace lora_train::device {
namespace {

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
  set("FAKE_GPUS", "A|8.0|1000|900|0|;B|8.0|1000|900|0|");
  using Row = std::vector<PeerAccess>;
  const auto matrix = [&](const char* peers) {
    set("FAKE_PEERS", peers);
    return find().peer_access;
  };
  EXPECT_EQ(matrix("nvlink"),
            (std::vector<Row>{{PeerAccess::kSelf, PeerAccess::kNvlink}, {PeerAccess::kNvlink, PeerAccess::kSelf}}));
  EXPECT_EQ(matrix("pcie"),
            (std::vector<Row>{{PeerAccess::kSelf, PeerAccess::kPcie}, {PeerAccess::kPcie, PeerAccess::kSelf}}));
  EXPECT_EQ(matrix("none"),
            (std::vector<Row>{{PeerAccess::kSelf, PeerAccess::kNone}, {PeerAccess::kNone, PeerAccess::kSelf}}));
  EXPECT_STREQ(to_string(PeerAccess::kNvlink), "nvlink");
}

TEST_F(FindGpus, WithoutTheManagementLibraryMemoryIsUnknownAndTheVersionIsTheKernelModules) {
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

TEST_F(FindGpus, AManagementLibraryThatDoesNotStartIsNoted) {
  set("FAKE_NVML_INIT", "18");
  EXPECT_TRUE(find().management_problem.ends_with(": Driver/library version mismatch")) << find().management_problem;
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

}  // namespace
}  // namespace lora_train::device
