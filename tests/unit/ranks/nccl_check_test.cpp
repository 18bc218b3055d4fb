#include "bench/doctor/kernel_cases.h"
#include "nccl_ranks.h"

namespace lora_train::ranks::nccl_test {
namespace {

/// In a process of its own: it starts CUDA.
class NcclCheck : public NcclTransport {
 protected:
  static std::string check(const std::string& fault, const char* num_gpus = "2") {
    ScopedEnvironment environment;
    environment.set("STAND_IN_DEVICES", num_gpus);
    environment.set("STAND_IN_NCCL_FAULT", fault);
    const auto words = [](int) {
      kernels::start_cuda({});
      const bench::KernelCheck check = bench::check_nccl(std::chrono::seconds(30));
      if (check.passed && check.note.empty()) {
        EXPECT_TRUE(check.shape.starts_with("GPUs=2 N=16777216, ") && check.shape.ends_with(" GB/s")) << check.shape;
        EXPECT_TRUE(check.max_error == 0 && check.own_us > 0 && check.reference_us > 0);
        if (HasFailure()) return std::string("wrong figures");
      }
      return (check.passed ? "passed " : "") + check.note;
    };
    return run_ranks(1, words)[0].text;
  }
};

TEST_F(NcclCheck, SumsOverAllGpus) { EXPECT_EQ(check(""), "passed "); }

TEST_F(NcclCheck, NamesTheGpuThatFails) {
  for (const std::string fault : {"fail:0:1", "fail:2:0"}) {
    const std::string note = check(fault);
    EXPECT_TRUE(note.starts_with("rank " + fault.substr(7) + " of 2: NCCL: ")) << note;
    EXPECT_SAYS(note, "NCCL_DEBUG=INFO");
  }
}

TEST_F(NcclCheck, OneGpuTrainsWithoutIt) {
  const std::string note = check("fail:0:0", "1");
  EXPECT_TRUE(note.starts_with("passed NCCL does not run here; one GPU trains without it: rank 0 of 1: NCCL: "))
      << note;
}

}  // namespace
}  // namespace lora_train::ranks::nccl_test
