#include "output/doctor_report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/version.h"
#include "lora_train/device/gpu.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"

namespace lora_train::cli {
namespace {

using nlohmann::json;
using testing_support::expect_members;
using testing_support::expect_parts;
using testing_support::TemporaryFolder;

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

const bench::KernelCheck kKernel = {"swiglu forward fp32", "N=3 F=5", 1.5e-7, 1e-5, 12.5, 40, true, ""};

device::Gpu gpu(int index, const std::string& name, int major, int minor) {
  device::Gpu made;
  made.index = index;
  made.name = name;
  made.major = major;
  made.minor = minor;
  made.num_multiprocessors = 132;
  made.total_bytes = 140 * kGib;
  made.free_bytes = 139 * kGib;
  return made;
}

DoctorFindings cpu_machine() {
  DoctorFindings findings;
  findings.torch = TorchInstallation{"/venv/torch", "2.11.0+cu130", "13.0", "python3"};
  findings.host = {"A Processor", 16, {"avx2", "amx_bf16"}, 128 * kGib, 16};
  findings.available_memory = 100 * kGib;
  findings.gpus.library_problem = "libcuda.so.1: cannot open shared object file";
  findings.libraries = {{"NCCL", "2.28.9", ""}};
  findings.disk = DiskSpeed{"/runs", 500 * kGib, kGib / 4, 1024.0 * 1024 * 1024, 2048.0 * 1024 * 1024};
  return findings;
}

DoctorFindings gpu_machine() {
  DoctorFindings findings = cpu_machine();
  findings.gpus = {};
  findings.gpus.driver_version = "580.95.05";
  findings.gpus.cuda_version = 13000;
  findings.gpus.gpus = {gpu(0, "NVIDIA H200", 9, 0)};
  findings.gpus.peer_access = {{device::PeerAccess::kSelf}};
  findings.has_cuda_library = true;
  return findings;
}

DoctorCheck find(const DoctorFindings& findings, const std::string& name) {
  for (const auto& check : judge(findings)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no line " << name << " in\n" << doctor_table(judge(findings));
  return {};
}

void expect(const DoctorFindings& findings, const std::string& name, CheckStatus status, const std::string& value,
            const std::string& advice) {
  const DoctorCheck check = find(findings, name);
  EXPECT_EQ(static_cast<int>(check.status), static_cast<int>(status)) << name;
  EXPECT_NE(check.value.find(value), std::string::npos) << check.value;
  EXPECT_NE(check.advice.find(advice), std::string::npos) << check.advice;
  EXPECT_EQ(check.advice.empty(), status == CheckStatus::kOk) << check.advice;
  EXPECT_EQ(has_failed(judge(findings)), status == CheckStatus::kFailed) << doctor_table(judge(findings));
}

TEST(DoctorReport, MachineWithoutAGpuGetsNotesAndNothingFails) {
  const DoctorFindings findings = cpu_machine();
  expect(findings, "GPU", CheckStatus::kNote, "none", "runs compute on the CPU");
  expect(findings, "CUDA code", CheckStatus::kNote, "a CPU-only build", "");
  expect(findings, "LibTorch", CheckStatus::kOk, "2.11.0+cu130 in /venv/torch (python3)", "");
  expect(findings, "processor", CheckStatus::kOk, "A Processor, 16 cores, avx2 amx_bf16", "");
  expect(findings, "host memory", CheckStatus::kOk, "128.0 GiB, 100.0 GiB available", "");
  expect(findings, "NCCL", CheckStatus::kOk, "2.28.9", "");
}

TEST(DoctorReport, MissingLibTorchOrEngineFailsAndTheRestIsStillThere) {
  DoctorFindings findings = cpu_machine();
  findings.torch.reset();
  findings.torch_problem = "not found: pip install torch==2.11.0";
  expect(findings, "LibTorch", CheckStatus::kFailed, "not found", "pip install torch==2.11.0");
  EXPECT_EQ(find(findings, "disk").status, CheckStatus::kOk);
  findings = cpu_machine();
  findings.engine_problem = "liblora_train_engine.so: engine version 2, expected 3";
  expect(findings, "engine", CheckStatus::kFailed, "cannot be loaded", "expected 3");
}

TEST(DoctorReport, ProcessorWithoutBf16IsNoted) {
  DoctorFindings findings = cpu_machine();
  findings.host.vector_units = {"avx2"};
  expect(findings, "processor", CheckStatus::kNote, "avx2", "precision: fp32 is faster");
  findings.host.vector_units = {"avx512_bf16"};
  expect(findings, "processor", CheckStatus::kOk, "avx512_bf16", "");
}

TEST(DoctorReport, HyperthreadsAreToldFromCores) {
  DoctorFindings findings = cpu_machine();
  findings.host.num_cores = 32;
  expect(findings, "processor", CheckStatus::kOk, "A Processor, 16 cores (32 threads), avx2 amx_bf16", "");
  const json host = json::parse(doctor_json(findings, judge(findings)))["host"];
  EXPECT_EQ(host["cores"], 32);
  EXPECT_EQ(host["physical_cores"], 16);
}

TEST(DoctorReport, SeveralNumaNodesAreAdvisedARankEachOnACpu) {
  DoctorFindings findings = cpu_machine();
  findings.host.num_numa_nodes = 2;
  const std::string advice = "2 NUMA nodes: train on CPUs with --nproc 2, one rank per node";
  EXPECT_EQ(find(findings, "processor").advice, advice);
  EXPECT_EQ(find(findings, "processor").status, CheckStatus::kOk);
  EXPECT_NE(doctor_table(judge(findings)).find("  ok; " + advice + "\n"), std::string::npos);
  EXPECT_EQ(json::parse(doctor_json(findings, judge(findings)))["host"]["numa_nodes"], 2);
  findings.host.vector_units = {"avx2"};
  expect(findings, "processor", CheckStatus::kNote, "avx2", "precision: fp32 is faster; " + advice);
  DoctorFindings with_gpu = gpu_machine();
  with_gpu.host.num_numa_nodes = 2;
  expect(with_gpu, "processor", CheckStatus::kOk, "16 cores", "");
}

TEST(DoctorReport, GoodGpuMachine) {
  const DoctorFindings findings = gpu_machine();
  expect(findings, "driver", CheckStatus::kOk, "580.95.05, CUDA up to 13.0", "");
  expect(findings, "GPU 0", CheckStatus::kOk, "NVIDIA H200, sm_90, 132 multiprocessors, 140.0 GiB, 139.0 GiB free", "");
  expect(findings, "CUDA code", CheckStatus::kOk, device::built_architectures_text(), "");
  for (const auto& check : judge(findings)) EXPECT_EQ(check.status, CheckStatus::kOk) << check.name;
}

TEST(DoctorReport, OldDriverFailsWithItsAdviceAndNoGpuIsClaimed) {
  DoctorFindings findings = gpu_machine();
  findings.gpus.driver_version = "550.54.15";
  findings.gpus.cuda_version = 12040;
  expect(findings, "driver", CheckStatus::kFailed, "550.54.15, CUDA up to 12.4", "Update the driver");
  for (const auto& check : judge(findings)) EXPECT_NE(check.name, "GPU 0");
}

TEST(DoctorReport, GpuThatIsNewerOrInUseIsNotedAndAnUnusableOneFailsUnlessAnotherIsGood) {
  DoctorFindings findings = gpu_machine();
  findings.gpus.gpus = {gpu(0, "NVIDIA Next", 13, 0)};
  expect(findings, "GPU 0", CheckStatus::kNote, "sm_130", "the driver compiles our kernels in the first run");
  findings.gpus.gpus[0].processes = {{4711, 3 * kGib}};
  expect(findings, "GPU 0", CheckStatus::kNote, "", "in use by pid 4711 (3.0 GiB)");
  findings = gpu_machine();
  findings.gpus.gpus = {gpu(0, "Tesla T4", 7, 5)};
  expect(findings, "GPU 0", CheckStatus::kFailed, "Tesla T4, sm_75", "this build has code for ");
  findings.gpus.gpus.push_back(gpu(1, "NVIDIA A10G", 8, 6));
  findings.gpus.peer_access = {};
  expect(findings, "GPU 0", CheckStatus::kNote, "Tesla T4, sm_75", "Choose another GPU");
}

TEST(DoctorReport, PeerAccessIsALineAGpuAndAMissingManagementLibraryIsNoted) {
  using device::PeerAccess;
  DoctorFindings findings = gpu_machine();
  findings.gpus.gpus.push_back(gpu(1, "NVIDIA H200", 9, 0));
  findings.gpus.peer_access = {{PeerAccess::kSelf, PeerAccess::kNvlink}, {PeerAccess::kNvlink, PeerAccess::kSelf}};
  expect(findings, "GPU 1 reaches", CheckStatus::kOk, "nvlink self", "");
  findings.gpus.peer_access[1][0] = PeerAccess::kNone;
  expect(findings, "GPU 1 reaches", CheckStatus::kNote, "none self", "through host memory");
  findings = gpu_machine();
  findings.gpus.management_problem = "libnvidia-ml.so.1: not there";
  findings.gpus.gpus[0].free_bytes.reset();
  expect(findings, "driver management", CheckStatus::kNote, "", "libnvidia-ml.so.1: not there");
  EXPECT_TRUE(find(findings, "GPU 0").value.ends_with("140.0 GiB"));
}

TEST(DoctorReport, WhatOnlyAGpuNeedsFailsWhereThereIsOne) {
  DoctorFindings findings = gpu_machine();
  findings.has_cuda_library = false;
  expect(findings, "CUDA code", CheckStatus::kFailed, "a CPU-only build", "liblora_train_cuda.so");
  findings = gpu_machine();
  findings.torch->cuda = "";
  expect(findings, "CUDA of LibTorch", CheckStatus::kFailed, "a CPU build", "pip install torch==2.11.0");
  findings = cpu_machine();
  findings.torch->cuda = "";
  expect(findings, "CUDA of LibTorch", CheckStatus::kNote, "a CPU build", "");
  for (const bool has_gpu : {false, true}) {
    findings = has_gpu ? gpu_machine() : cpu_machine();
    findings.libraries = {{"cuDNN", "", "libcudnn.so.9: not there"}};
    expect(findings, "cuDNN", has_gpu ? CheckStatus::kFailed : CheckStatus::kNote, "cannot be loaded",
           "libcudnn.so.9: not there");
  }
}

TEST(DoctorReport, Disk) {
  DoctorFindings findings = cpu_machine();
  expect(findings, "disk", CheckStatus::kOk,
         "/runs: 500.0 GiB free, writes 1.0 GiB/s with fsync, reads 2.0 GiB/s (256.0 MiB)", "");
  findings.disk->write_bytes_per_s = 50e6;
  expect(findings, "disk", CheckStatus::kNote, "writes 47.7 MiB/s", "slow");
  findings.disk->free_bytes = kGib;
  expect(findings, "disk", CheckStatus::kNote, "1.0 GiB free", "little space is free");
  findings = cpu_machine();
  findings.disk->num_bytes = 0;
  EXPECT_TRUE(find(findings, "disk").value.ends_with(" free"));
  findings.disk.reset();
  findings.disk_problem = "/runs: cannot make a file: Read-only file system";
  expect(findings, "disk", CheckStatus::kFailed, "cannot be written", "Read-only file system");
}

TEST(DoctorReport, KernelsThatDifferOrCannotRunFail) {
  DoctorFindings findings = cpu_machine();
  findings.kernels = {kKernel};
  expect(findings, "swiglu forward fp32", CheckStatus::kOk,
         "N=3 F=5: error 1.5e-07, at most 1e-05; 12.5 us, reference 40.0 us", "");
  findings.kernels[0].passed = false;
  expect(findings, "swiglu forward fp32", CheckStatus::kFailed, "", "wrong result. Train with kernels: reference");
  findings.kernels[0].note = "sizes differ: 2 and 3";
  expect(findings, "swiglu forward fp32", CheckStatus::kFailed, "", "sizes differ: 2 and 3. Train with");
  findings = gpu_machine();
  findings.kernels_place = "cuda:0 (NVIDIA H200)";
  expect(findings, "kernels", CheckStatus::kOk, "on cuda:0 (NVIDIA H200)", "");
  findings.kernels_problem = "libtorch_cuda.so: cannot be loaded";
  expect(findings, "kernels", CheckStatus::kFailed, "cannot be run on cuda:0 (NVIDIA H200)", "libtorch_cuda.so");
  EXPECT_EQ(json::parse(doctor_json(findings, {})).at("kernels_place"), "cuda:0 (NVIDIA H200)");
}

TEST(DoctorReport, TableHasALineACheckThatEndsInItsStatus) {
  EXPECT_EQ(doctor_table({{"a", "one", CheckStatus::kOk, ""},
                          {"longer", "three", CheckStatus::kNote, "look\nhere"},
                          {"b", std::string(80, 'x'), CheckStatus::kFailed, "do this"}}),
            "a       one" + std::string(71, ' ') +
                "ok\n"
                "longer  three" +
                std::string(69, ' ') + "note: look here\nb       " + std::string(80, 'x') +
                "  FAILED: do this\n1 ok, 1 note, 1 FAILED\n");
}

TEST(DoctorReport, TableHasOneLineForAllKernelsThatAgree) {
  DoctorFindings findings = cpu_machine();
  findings.kernels_place = "CPU";
  findings.kernels = {kKernel, {"rope forward fp32", "N=3", 1, 1e-5, 1, 1, false, ""}};
  const std::string table = doctor_table(judge(findings));
  expect_parts(table, {"1 of 2 agree with their references on CPU", "rope forward fp32"});
  EXPECT_EQ(table.find("swiglu"), std::string::npos) << table;
  EXPECT_EQ(kernel_line(kKernel), "swiglu forward fp32" + std::string(23, ' ') +
                                      "N=3 F=5: error 1.5e-07, at most 1e-05; 12.5 us, reference 40.0 us" +
                                      std::string(9, ' ') + "ok");
}

TEST(DoctorReport, JsonSaysTheSameAndNullForWhatIsMissing) {
  DoctorFindings findings = gpu_machine();
  findings.gpus.gpus[0].processes = {{4711, std::nullopt}};
  findings.kernels = {kKernel};
  const auto checks = judge(findings);
  const std::string text = doctor_json(findings, checks);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one object a line";
  const json object = json::parse(text);
  EXPECT_EQ(object.at("version"), version());
  ASSERT_EQ(object.at("checks").size(), checks.size());
  for (std::size_t i = 0; i < checks.size(); ++i) EXPECT_EQ(object["checks"][i].at("value"), checks[i].value);
  EXPECT_EQ(object.at("gpu_architectures").size(), device::built_architectures().size());
  EXPECT_EQ(object["gpu_architectures"].at(0), "sm_80");
  expect_members(object, R"({"passed": true, "libtorch": {"cuda": "13.0"}, "driver": {"version": "580.95.05"},
                             "peer_access": [["self"]], "libraries": {"NCCL": "2.28.9"}})");
  const json& gpu = object.at("gpus").at(0);
  expect_members(gpu, R"({"architecture": "sm_90", "compute_mode": "default",
                          "processes": [{"bytes": null, "pid": 4711}]})");
  EXPECT_EQ(gpu.at("free_bytes"), 139 * kGib);
  EXPECT_EQ(object.at("disk").at("free_bytes"), 500 * kGib);
  EXPECT_EQ(object.at("kernels").at(0).at("own_us"), 12.5);
  findings.gpus.gpus[0].compute_mode = static_cast<device::ComputeMode>(9);
  EXPECT_EQ(json::parse(doctor_json(findings, checks)).at("gpus").at(0).at("compute_mode"), "unknown (9)");
  findings = cpu_machine();
  findings.torch.reset();
  findings.disk->num_bytes = 0;
  const json missing = json::parse(doctor_json(findings, judge(findings)));
  EXPECT_EQ(missing.at("checks").at(1).at("status"), "failed");
  expect_members(missing, R"({"passed": false, "libtorch": null, "disk": {"write_bytes_per_s": null},
                             "gpu_architectures": [], "gpus": []})");
}

TEST(LibraryVersions, CountAsTheLibrariesDo) {
  EXPECT_EQ(version_of_number(22809), "2.28.9");
  EXPECT_EQ(version_of_number(91900), "9.19.0");
  EXPECT_EQ(version_of_number(130100), "13.1.0");
}

TEST(LibraryVersions, AreThoseOfTheWheelsBesideTorchAndNoneOfACpuBuild) {
  EXPECT_TRUE(library_versions({"/nowhere/torch", "2.11.0+cpu", "", "test"}).empty());
  const TorchInstallation torch = read_torch_folder(LORA_TRAIN_TORCH_DIR, "test");
  if (torch.cuda.empty()) GTEST_SKIP() << "a CPU build of torch";
  const auto versions = library_versions(torch);
  const std::pair<const char*, const char*> series[] = {{"NCCL", "2."}, {"cuDNN", "9."}, {"cuBLASLt", "13."}};
  ASSERT_EQ(versions.size(), std::size(series));
  for (std::size_t i = 0; i < versions.size(); ++i) {
    EXPECT_EQ(versions[i].name, series[i].first);
    EXPECT_TRUE(versions[i].version.starts_with(series[i].second)) << versions[i].version << versions[i].problem;
  }
}

TEST(LibraryVersions, MissingLibraryIsNamed) {  // the others are of one series whatever CUDA is
  const auto library = library_versions({"/nowhere/torch", "2.11.0+cu990", "99.0", "test"}).at(2);
  EXPECT_EQ(library.version, "");
  expect_parts(library.problem, {"libcublasLt.so.99"});
}

TEST(DiskSpeed, WritesReadsBackAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::uint64_t bytes = (std::uint64_t{9} << 20) + 5;  // no whole number of blocks
  const DiskSpeed speed = measure_disk(folder.path(), bytes);
  EXPECT_EQ(speed.folder, folder.path());
  EXPECT_EQ(speed.num_bytes, bytes);
  EXPECT_GT(speed.free_bytes, bytes);
  EXPECT_GT(speed.write_bytes_per_s, 0);
  EXPECT_GT(speed.read_bytes_per_s, 0);
  const DiskSpeed seen = look_at_disk(folder.path());
  EXPECT_GT(seen.free_bytes, 0u);
  EXPECT_EQ(seen.num_bytes, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskSpeed, FolderThatCannotHoldAFileAndOneThatIsNotThereYet) {
  EXPECT_THROW(measure_disk("/proc/self"), IoError);
  EXPECT_THROW(look_at_disk("/no/such/folder"), IoError);
  const TemporaryFolder folder;
  EXPECT_EQ(existing_folder(folder / "runs/first"), folder.path());
  EXPECT_EQ(existing_folder(folder.path()), folder.path());
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(existing_folder(folder / "file"), folder.path());
  EXPECT_EQ(existing_folder("/no-such-folder/x"), "/");
}

}  // namespace
}  // namespace lora_train::cli
