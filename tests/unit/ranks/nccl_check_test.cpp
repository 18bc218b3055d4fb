#include "bench/doctor/kernel_cases.h"
#include "nccl_ranks.h"

namespace lora_train::ranks::nccl_test {
namespace {

using bench::KernelCheck;

/// In a process of its own: it starts CUDA.
class NcclCheck : public NcclTransport {
 protected:
  static std::string check(const std::string& fault, const std::function<std::string(const KernelCheck&)>& words,
                           const char* num_gpus = "2") {
    ScopedEnvironment environment;
    environment.set("STAND_IN_DEVICES", num_gpus);
    environment.set("STAND_IN_NCCL_FAULT", fault);
    return run_ranks(1,
                     [&](int) {
                       kernels::start_cuda({});
                       return words(bench::check_nccl(std::chrono::seconds(30)));
                     })[0]
        .text;
  }
};

TEST_F(NcclCheck, SumsOverAllGpus) {
  EXPECT_EQ(
      check("",
            [](const KernelCheck& check) {
              return std::string(check.passed ? "passed" : "failed ") + check.note +
                     (check.shape.starts_with("GPUs=2 N=16777216, ") && check.shape.ends_with(" GB/s") ? ""
                                                                                                       : check.shape) +
                     (check.max_error == 0 && check.own_us > 0 && check.reference_us > 0 ? "" : " without figures");
            }),
      "passed");
}

TEST_F(NcclCheck, NamesTheGpuThatFails) {
  for (const std::string fault : {"fail:0:1", "fail:2:0"}) {
    const std::string note =
        check(fault, [](const KernelCheck& check) { return (check.passed ? "passed " : "") + check.note; });
    EXPECT_TRUE(note.starts_with("rank " + fault.substr(7) + " of 2: NCCL: ")) << note;
    EXPECT_NE(note.find("NCCL_DEBUG=INFO"), std::string::npos) << note;
  }
}

TEST_F(NcclCheck, OneGpuTrainsWithoutIt) {
  const std::string note = check(
      "fail:0:0", [](const KernelCheck& check) { return (check.passed ? "passed " : "") + check.note; }, "1");
  EXPECT_TRUE(note.starts_with("passed NCCL does not run here; one GPU trains without it: rank 0 of 1: NCCL: "))
      << note;
}

}  // namespace
}  // namespace lora_train::ranks::nccl_test
