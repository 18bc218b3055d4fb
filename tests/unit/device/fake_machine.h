// A machine with the fake driver (tests/programs/fake_driver) and device nodes in a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lora_train/device/gpu.h"
#include "support/environment.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::device {

class FakeMachine : public testing::Test {
 protected:
  FakeMachine() {
    places_.cuda_library = FAKE_CUDA;
    places_.management_library = FAKE_NVML;
    places_.root = root_.path();
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"}) environment_.set(name, std::nullopt);
  }

  void set(const std::string& name, const std::string& value) { environment_.set(name, value); }

  /// A file of the machine, "dev/nvidia0".
  void put(const std::string& name, const std::string& text = "") {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  void without_driver() {
    places_.cuda_library = places_.management_library = (root_ / "no-such-library.so.1").string();
  }

  GpuSystem find() const { return find_gpus(places_); }

  /// What require_gpu says; empty when it passes.
  std::string refusal(int index = 0) const {
    const std::string text = testing_support::refusal<DeviceError>([&] { require_gpu(find(), index); });
    return text == "accepted" ? "" : text;
  }

  testing_support::TemporaryFolder root_;
  testing_support::ScopedEnvironment environment_;
  GpuPlaces places_;
};

}  // namespace lora_train::device
