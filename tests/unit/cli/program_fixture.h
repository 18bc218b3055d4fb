// The program itself, copied to a fresh folder with the fake engine in lib/.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/expect_parts.h"
#include "support/run_command.h"
#include "support/temporary_folder.h"

namespace lora_train {

namespace fs = std::filesystem;
using testing_support::CommandOptions;
using testing_support::CommandResult;
using testing_support::expect_parts;
using testing_support::run_command;

class Program : public testing::Test {
 protected:
  Program() {
    fs::create_directories(folder_ / "lib");
    fs::copy_file(LORA_TRAIN_PROGRAM, folder_ / "lora-train");
    fs::copy_file(FAKE_ENGINE, engine());
    fs::create_directories(folder_ / "configs");
    write("configs/small.yaml", "# a small profile\nmodel: m\ndatasets: [{path: d.jsonl}]\n");
    options_.environment["LORA_TRAIN_TORCH"] = LORA_TRAIN_TORCH_DIR;
  }

  fs::path engine() const { return folder_ / "lib/liblora_train_engine.so"; }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  CommandResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), (folder_ / "lora-train").string());
    return run_command(arguments, options_);
  }

  CommandResult train(std::vector<std::string> arguments) const {
    std::vector<std::string> words = {"train", "--model", "m", "--train-data", "d.jsonl"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run(words);
  }

  testing_support::TemporaryFolder folder_;
  CommandOptions options_;
};

/// The last line of a text that ends in a line end.
inline std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n') + 1;
  const std::size_t begin = text.rfind('\n', end - 1);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1));
}

/// That a command ended with this code, and that its stderr has all `parts`.
inline void expect_error(const CommandResult& result, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  expect_parts(result.err, parts);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace lora_train
