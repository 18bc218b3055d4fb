#include "lora_train/base/python_packages.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

/// A Python that is a script of the test.
class PythonPackages : public ::testing::Test {
 protected:
  std::string python(const std::string& body) const {
    const fs::path file = folder / "python3";
    std::ofstream(file) << "#!/bin/sh\n" << body << "\n";
    fs::permissions(file, fs::perms::owner_all);
    return file.string();
  }
  void put_torch(const fs::path& site, const std::string& text) const {
    fs::create_directories(site / "torch");
    std::ofstream(site / "torch" / "__init__.py") << text << "\n";
  }

  const testing_support::TemporaryFolder folder;
};

TEST_F(PythonPackages, AreFoundWithoutImportingThem) {
  const fs::path site = folder / "site";
  put_torch(site, "raise SystemExit('imported')");
  EXPECT_EQ(find_python_package(python("PYTHONPATH=" + site.string() + " exec /usr/bin/python3 \"$@\""), "torch"),
            site / "torch");
}

TEST_F(PythonPackages, AreNotSoughtInTheWorkingDirectoryNorWhereThereIsNoPython) {
  put_torch(folder.path(), "");
  for (const std::string& body :
       {"cd " + folder.path().string() + "; exec /usr/bin/python3 -S -E \"$@\"", "echo /somewhere; exit 3"s}) {
    EXPECT_EQ(find_python_package(python(body), "torch"), fs::path()) << body;
  }
  EXPECT_EQ(find_python_package((folder / "missing").string(), "torch"), fs::path());
}

}  // namespace
}  // namespace lora_train
