#include "lora_train/device/gpu_table.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::device {
namespace {

using testing_support::TemporaryFolder;

const std::string kGood =
    R"({"name": "A", "device_name": "NVIDIA A", "memory_gib": 24, "num_multiprocessors": 80, "gemm_tflops": 50,
        "bandwidth_gb_s": 500, "link_gb_s": 20, "price_per_hour": 0})";

std::vector<GpuFacts> read(const std::string& text) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "gpus.json", text);
  return read_gpu_table(folder / "gpus.json");
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  return "[" + text + "]";
}

TEST(GpuTable, TheShippedOneHasTheGpusThatPeopleRent) {
  const auto table = read_gpu_table("configs/gpus.json");
  for (const char* name :
       {"A10G", "L4", "L40S", "A100 40 GB", "A100 80 GB", "H100", "H200", "B200", "RTX 4090", "RTX 5090"}) {
    EXPECT_TRUE(std::any_of(table.begin(), table.end(), [&](const auto& gpu) { return gpu.name == name; })) << name;
  }
}

TEST(GpuTable, FindsAGpuInAnyCaseAndByTheDriversName) {
  const auto table = read_gpu_table("configs/gpus.json");
  const auto found = [&](const std::string& name) {
    std::string names;
    for (const GpuFacts& gpu : find_gpus(table, name)) names += (names.empty() ? "" : ", ") + gpu.name;
    return names;
  };
  EXPECT_EQ(found("h200"), "H200");
  EXPECT_EQ(found("nvidia a10g"), "A10G");
  EXPECT_EQ(found("H20"), "");
  EXPECT_EQ(found(""), "");
  for (const char* name : {"4090", "rtx 4090", "RTX4090", "rtx-4090", "GeForce RTX 4090", "4090 24GB", "rtx4090-24g"})
    EXPECT_EQ(found(name), "RTX 4090") << name;
  for (const char* name : {"H100-80GB", "h100 80", "NVIDIA H100", "H100 SXM5", "h100-sxm5-80gb"})
    EXPECT_EQ(found(name), "H100") << name;
  for (const char* name : {"A100-40GB", "a100 40", "a100_40g", "NVIDIA A100 SXM4 40 GB"})
    EXPECT_EQ(found(name), "A100 40 GB") << name;
  EXPECT_EQ(found("A100"), "A100 40 GB, A100 80 GB");
  EXPECT_EQ(found("L40"), "");  // another GPU
  EXPECT_EQ(found("H100 NVL"), "");
  EXPECT_EQ(found("H100 94GB"), "");
  EXPECT_EQ(found("B200 192GB"), "B200");
}

TEST(GpuTable, SaysWhyANameIsNotOne) {
  const auto table = read_gpu_table("configs/gpus.json");
  EXPECT_EQ(why_not_one_gpu(table, "A100 80GB"), "");
  EXPECT_EQ(why_not_one_gpu(table, "A100"), "\"A100\" may be A100 40 GB or A100 80 GB; expected one of them.");
  EXPECT_NE(why_not_one_gpu(table, "H101").find("is not a GPU of configs/gpus.json; expected one of A10G, L4"),
            std::string::npos);
  EXPECT_NE(why_not_one_gpu(table, "H101").find("Did you mean \"H100\"?"), std::string::npos);
}

TEST(GpuTable, ReadsEveryFigure) {
  const GpuFacts gpu = read("[" + kGood + "]").at(0);
  EXPECT_EQ(gpu.device_name, "NVIDIA A");
  EXPECT_EQ(gpu.memory_gib, 24);
  EXPECT_EQ(gpu.num_multiprocessors, 80);
  EXPECT_EQ(gpu.gemm_tflops, 50);
  EXPECT_EQ(gpu.bandwidth_gb_s, 500);
  EXPECT_EQ(gpu.link_gb_s, 20);
  EXPECT_EQ(gpu.price_per_hour, 0);
}

TEST(GpuTable, RefusesWhatIsNone) {
  EXPECT_NE(refusal("[{").find("is not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("[]").find("expected a list of GPUs"), std::string::npos);
  EXPECT_NE(refusal("[1]").find("GPU 1: is not an object"), std::string::npos);
  EXPECT_NE(refusal("[" + kGood + "," + kGood + "]").find("GPU 2: duplicate name \"A\""), std::string::npos);
  EXPECT_NE(refusal(changed("\"price_per_hour\": 0", "\"price_per_hour\": -1"))
                .find("price_per_hour: is -1, expected a number from 0"),
            std::string::npos);
  EXPECT_NE(
      refusal(changed("\"memory_gib\": 24", "\"memory_gib\": 0")).find("memory_gib: is 0, expected a number above 0"),
      std::string::npos);
  EXPECT_NE(refusal(changed("\"memory_gib\": 24", "\"memory_gib\": \"24\"")).find("memory_gib"), std::string::npos);
  EXPECT_NE(refusal(changed("\"link_gb_s\": 20,", "")).find("link_gb_s: missing"), std::string::npos);
  EXPECT_NE(refusal(changed("\"link_gb_s\"", "\"nvlink\": 1, \"link_gb_s\"")).find("unknown member \"nvlink\""),
            std::string::npos);
}

TEST(GpuTable, TheUsersReplaceThoseOfTheSameName) {
  GpuFacts a{.name = "A"}, b{.name = "B"}, cheap{.name = "A", .price_per_hour = 0.1}, c{.name = "C"};
  const auto merged = merge_gpu_tables({a, b}, {c, cheap});
  ASSERT_EQ(merged.size(), 3U);
  EXPECT_EQ(merged[0].price_per_hour, 0.1);
  EXPECT_EQ(merged[2].name, "C");
}

}  // namespace
}  // namespace lora_train::device
