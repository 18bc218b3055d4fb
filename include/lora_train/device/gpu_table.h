// What is known of GPUs that are not here, for `plan`: shipped as configs/gpus.json, which users extend by files of their own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::device {

/// Rates are sustained ones, as a training step sees them, not those of the data sheet.
struct GpuFacts {
  std::string name = {};         ///< as people call it: "H200"
  std::string device_name = {};  ///< as the driver does: "NVIDIA H200"; rates measured on it are found by this name
  double memory_gib = 0;         ///< in all, as the driver reports it
  int num_multiprocessors = 0;
  double gemm_tflops = 0;     ///< bf16 products, 10^12 FLOPs a second
  double bandwidth_gb_s = 0;  ///< memory, 10^9 bytes a second, read and written together
  double link_gb_s = 0;       ///< to the other GPUs of the machine, each way
  double price_per_hour = 0;  ///< of one, in dollars
  bool is_cpu = false;  ///< this machine's CPU, of which only its memory and measured rates are known; in no table
};

/// A JSON list of objects with the members of GpuFacts. Throws IoError; FormatError for a file that is none, an unknown or missing
/// member, a figure that is not positive (a price may be 0), and two GPUs of one name.
std::vector<GpuFacts> read_gpu_table(const std::filesystem::path& file);

/// The GPUs that a name means: that of the table, or of the driver, in any case; else as people write it, without the maker or with
/// the memory ("4090", "rtx4090", "h100-80gb", "A100-SXM4-40GB"). Several if the name leaves the memory open ("A100").
std::vector<GpuFacts> find_gpus(const std::vector<GpuFacts>& table, const std::string& name);

/// Why a name means no GPU of the table, or several, and what to write; empty if it means one.
std::string why_not_one_gpu(const std::vector<GpuFacts>& table, const std::string& name);

/// `table` with those of `more` added; one of the same name replaces the old one, in its place.
std::vector<GpuFacts> merge_gpu_tables(std::vector<GpuFacts> table, const std::vector<GpuFacts>& more);

}  // namespace lora_train::device
