// The main function of native_kernels_test and cuda_kernels_test.
//
//   --no-guards   buffers end where their memory ends, without guard zones: a sanitizer sees a read past them
//
// Exit status: that of GoogleTest, also 1 if the filter leaves no test; 2 wrong arguments; 6 no GPU to run on.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/guarded.h"

int main(int argc, char** argv) {
  using namespace lora_train::testing_support;
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) != "--no-guards") {
      std::fprintf(stderr, "%s: unknown argument \"%s\". There are --no-guards and those of GoogleTest\n", argv[0],
                   argv[i]);
      return 2;
    }
    has_guard_zones = false;
  }
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  if (const std::string reason = start_executor(); !reason.empty()) {
    std::fprintf(stderr, "%s: %s. No kernel was tested\n", argv[0], reason.c_str());
    return 6;
  }
  const int status = RUN_ALL_TESTS();
  return ::testing::UnitTest::GetInstance()->test_to_run_count() == 0 ? 1 : status;
}
