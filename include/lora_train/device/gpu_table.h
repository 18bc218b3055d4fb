// The table of known GPUs, for `plan`: shipped as configs/gpus.json, which users can extend with their own files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::device {

/// Rates are sustained ones, as in a training step, not those of the data sheet.
struct GpuFacts {
  std::string name = {};         ///< common name: "H200"
  std::string device_name = {};  ///< the driver's name, "NVIDIA H200", by which measured rates are found
  double memory_gib = 0;         ///< total, as the driver reports it
  int num_multiprocessors = 0;
  double gemm_tflops = 0;     ///< bf16 products, 10^12 FLOPs per second
  double bandwidth_gb_s = 0;  ///< memory, 10^9 bytes per second, reads and writes together
  double link_gb_s = 0;       ///< to the other GPUs of the machine, each way
  double price_per_hour = 0;  ///< per GPU, in dollars
  bool is_cpu = false;        ///< this machine's CPU: only memory and measured rates are known; never in a table
};

/// Reads a JSON list of objects with the members of GpuFacts. Throws IoError; FormatError if the file is not such a
/// list, for an unknown or missing member, a figure that is not positive (a price may be 0), or two GPUs with the same
/// name.
std::vector<GpuFacts> read_gpu_table(const std::filesystem::path& file);

/// The GPUs that a name means: the table's or the driver's name in upper or lower case, else a common spelling, without
/// the maker or with the memory ("4090", "rtx4090", "h100-80gb", "A100-SXM4-40GB"). Several if the name leaves the
/// memory open ("A100").
std::vector<GpuFacts> find_gpus(const std::vector<GpuFacts>& table, const std::string& name);

/// Why a name does not mean exactly one GPU of the table, and what to write; empty if it does.
std::string why_not_one_gpu(const std::vector<GpuFacts>& table, const std::string& name);

/// `table` plus the GPUs of `more`; one with the same name replaces the old one in place.
std::vector<GpuFacts> merge_gpu_tables(std::vector<GpuFacts> table, const std::vector<GpuFacts>& more);

}  // namespace lora_train::device
