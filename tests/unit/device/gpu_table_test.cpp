#include "lora_train/device/gpu_table.h"

#include <gtest/gtest.h>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::device {
namespace {

const std::string kGood =
    R"({"name": "A", "device_name": "NVIDIA A", "memory_gib": 24, "num_multiprocessors": 80, "gemm_tflops": 50,
        "bandwidth_gb_s": 500, "link_gb_s": 20, "price_per_hour": 0})";

std::vector<GpuFacts> read(const std::string& text) {
  const testing_support::TemporaryFolder folder;
  write_file_atomic(folder / "gpus.json", text);
  return read_gpu_table(folder / "gpus.json");
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  return "[" + text + "]";
}

TEST(GpuTable, TheShippedOneFindsAGpuInAnyCaseAndByTheDriversName) {
  const auto table = read_gpu_table("configs/gpus.json");
  const std::map<std::string, std::vector<std::string>> names_of = {
      {"H200", {"h200"}},
      {"A10G", {"nvidia a10g"}},
      {"L4", {"L4"}},
      {"L40S", {"L40S"}},
      {"B200", {"B200 192GB"}},
      {"RTX 5090", {"RTX 5090"}},
      {"RTX 4090", {"4090", "rtx 4090", "RTX4090", "rtx-4090", "GeForce RTX 4090", "4090 24GB", "rtx4090-24g"}},
      {"H100", {"H100-80GB", "h100 80", "NVIDIA H100", "H100 SXM5", "h100-sxm5-80gb"}},
      {"A100 40 GB", {"A100-40GB", "a100 40", "a100_40g", "NVIDIA A100 SXM4 40 GB"}},
      {"A100 40 GB, A100 80 GB", {"A100"}},
      {"", {"H20", "", "L40", "H100 NVL", "H100 94GB"}}};
  for (const auto& [expected, names] : names_of) {
    for (const std::string& name : names) {
      std::vector<std::string> found;
      for (const GpuFacts& gpu : find_gpus(table, name)) found.push_back(gpu.name);
      EXPECT_EQ(join(found), expected) << name;
    }
  }
}

TEST(GpuTable, SaysWhyANameIsNotOne) {
  const auto table = read_gpu_table("configs/gpus.json");
  EXPECT_EQ(why_not_one_gpu(table, "A100 80GB"), "");
  EXPECT_EQ(why_not_one_gpu(table, "A100"), "\"A100\" may be A100 40 GB or A100 80 GB; expected one of them.");
  const std::string unknown = why_not_one_gpu(table, "H101");
  EXPECT_SAYS(unknown, "is not a GPU of configs/gpus.json; expected one of A10G, L4");
  EXPECT_SAYS(unknown, "Did you mean \"H100\"?");
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
  const std::pair<std::string, const char*> cases[] = {
      {"[{", "is not valid JSON"},
      {"[]", "expected a list of GPUs"},
      {"[1]", "GPU 1: is not an object"},
      {"[" + kGood + "," + kGood + "]", "GPU 2: duplicate name \"A\""},
      {changed("\"price_per_hour\": 0", "\"price_per_hour\": -1"), "price_per_hour: is -1, expected a number from 0"},
      {changed("\"memory_gib\": 24", "\"memory_gib\": 0"), "memory_gib: is 0, expected a number above 0"},
      {changed("\"memory_gib\": 24", "\"memory_gib\": \"24\""), "memory_gib"},
      {changed("\"link_gb_s\": 20,", ""), "link_gb_s: missing"},
      {changed("\"link_gb_s\"", "\"nvlink\": 1, \"link_gb_s\""), "unknown member \"nvlink\""}};
  for (const auto& [text, part] : cases)
    EXPECT_SAYS(testing_support::refusal<FormatError>([&text = text] { read(text); }), part);
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
