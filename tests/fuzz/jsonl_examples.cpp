// Dataset files: JSON Lines, JSON arrays, gzip and zstd, every example parsed in every layout.
#include "data/read/example_format.h"
#include "data/read/example_reader.h"
#include "fuzz/input_file.h"
#include "lora_train/base/error.h"

namespace {

using lora_train::fuzz::fail;
using namespace lora_train::data;  // NOLINT: the names under test

// An example is a sample or says what is wrong with it; nothing else may come out.
template <class Function>
void expect_example_error(Function function) {
  try {
    function();
  } catch (const lora_train::DataError& error) {
    if (error.message().empty()) fail("an error without a message");
  }
}

void read_example(const Json& example) {
  expect_example_error([&] { parse_example(example, detect_layout(example, {}).type, {}); });
  for (const auto type : {lora_train::DatasetType::kMessages, lora_train::DatasetType::kSharegpt,
                          lora_train::DatasetType::kAlpaca, lora_train::DatasetType::kPromptCompletion,
                          lora_train::DatasetType::kText, lora_train::DatasetType::kPretokenized}) {
    expect_example_error([&] { parse_example(example, type, {}); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lora_train::fuzz::InputFile file("rows.jsonl");
  file.write(data, size);
  const std::string place = file.path().string() + ":";
  try {
    const auto reader = ExampleReader::open(file.path());
    while (auto block = reader->next()) {
      for (const RawExample& example : parse_examples(std::move(*block))) {
        if (!example.is_bad)
          read_example(example.value);
        else if (!example.where.starts_with(place) || example.message.empty())
          fail("a bad example without its place: " + example.where);
      }
    }
  } catch (const lora_train::DataError& error) {
    if (!error.where().starts_with(file.path().string())) fail("an error without the file: " + error.where());
  }
  return 0;
}
