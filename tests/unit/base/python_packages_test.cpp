#include "lora_train/base/python_packages.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

std::string make_script(const fs::path& file, const std::string& body) {
  std::ofstream(file) << "#!/bin/sh\n" << body << "\n";
  fs::permissions(file, fs::perms::owner_all);
  return file.string();
}

TEST(PythonPackages, AreFoundWithoutImportingThem) {
  const TemporaryFolder folder;
  const fs::path site = folder / "site";
  fs::create_directories(site / "torch");
  std::ofstream(site / "torch" / "__init__.py") << "raise SystemExit('imported')\n";
  const std::string python =
      make_script(folder / "python3", "PYTHONPATH=" + site.string() + " exec /usr/bin/python3 \"$@\"");
  EXPECT_EQ(find_python_package(python, "torch"), site / "torch");
}

TEST(PythonPackages, WorkingDirectoryIsNotAsked) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "torch");
  std::ofstream(folder / "torch" / "__init__.py") << "\n";
  const std::string python =
      make_script(folder / "python3", "cd " + folder.path().string() + "; exec /usr/bin/python3 -S -E \"$@\"");
  EXPECT_EQ(find_python_package(python, "torch"), fs::path());
}

TEST(PythonPackages, PythonThatFailsOrIsMissingHasNone) {
  const TemporaryFolder folder;
  EXPECT_EQ(find_python_package(make_script(folder / "python3", "echo /somewhere; exit 3"), "torch"), fs::path());
  EXPECT_EQ(find_python_package((folder / "missing").string(), "torch"), fs::path());
}

}  // namespace
}  // namespace lora_train
