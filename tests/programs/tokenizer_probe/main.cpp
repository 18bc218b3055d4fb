// Test-only: encodes the texts of one file into another and prints how long that took (seconds of CPU time).
//
//   tokenizer-probe OPTIONS.json
//
// OPTIONS.json: {"model": folder, "file": "auto" | "json" | "model" | "tekken", "special_tokens_in_text": bool,
// "offsets": bool, "decode": bool, "repeat": n, "texts": path, "out": path}. Records in `texts`: uint32 length, bytes;
// in `out`: uint32 number of ids, int32 ids, and with "decode" uint32 length, the bytes they decode to. Little-endian.
// stdout: {"load_s", "encode_s": one per repetition, "bytes", "tokens"}.
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace {

using lora_train::tokenizer::Encoding;
using lora_train::tokenizer::Tokenizer;
using lora_train::tokenizer::TokenizerFile;
using lora_train::tokenizer::TokenizerOptions;

// CPU time: the program has one thread, and the machine may have other work.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TokenizerFile file_named(const std::string& name) {
  if (name == "json") return TokenizerFile::kTokenizerJson;
  if (name == "model") return TokenizerFile::kSentencePieceModel;
  if (name == "tekken") return TokenizerFile::kTekken;
  return TokenizerFile::kAuto;
}

std::vector<std::string_view> split_records(std::string_view bytes) {
  std::vector<std::string_view> records;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint32_t length = 0;
    std::memcpy(&length, bytes.data() + at, 4);
    records.push_back(bytes.substr(at + 4, length));
    at += 4 + length;
  }
  return records;
}

template <typename T>
void append_record(std::string& out, const T* data, std::size_t count) {
  const auto number = static_cast<std::uint32_t>(count);
  out.append(reinterpret_cast<const char*>(&number), 4);
  out.append(reinterpret_cast<const char*>(data), count * sizeof(T));
}

void run(const nlohmann::json& options) {
  const double started = cpu_seconds();
  const auto tokenizer = Tokenizer::load(options["model"].get<std::string>(),
                                         {.file = file_named(options.value("file", "auto")),
                                          .special_tokens_in_text = options.value("special_tokens_in_text", true)});
  const double load_s = cpu_seconds() - started;
  const std::string bytes = lora_train::read_file(options["texts"].get<std::string>());
  const auto texts = split_records(bytes);
  const bool offsets = options.value("offsets", false);
  std::vector<double> encode_s;
  std::vector<Encoding> encodings;
  for (int i = 0; i < options.value("repeat", 1); ++i) {
    encodings.clear();
    const double start = cpu_seconds();
    for (const auto text : texts) encodings.push_back(tokenizer->encode(text, offsets));
    encode_s.push_back(cpu_seconds() - start);
  }
  std::string out;
  std::size_t tokens = 0;
  for (const Encoding& encoding : encodings) {
    tokens += encoding.ids.size();
    append_record(out, encoding.ids.data(), encoding.ids.size());
    if (!options.value("decode", false)) continue;
    const std::string text = tokenizer->decode(encoding.ids);
    append_record(out, text.data(), text.size());
  }
  std::ofstream(options["out"].get<std::string>(), std::ios::binary) << out;
  std::cout << nlohmann::json({{"load_s", load_s},
                               {"encode_s", encode_s},
                               {"bytes", bytes.size() - 4 * texts.size()},
                               {"tokens", tokens}})
                   .dump()
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer-probe OPTIONS.json\n";
    return 2;
  }
  try {
    run(nlohmann::json::parse(lora_train::read_file(argv[1])));
    return 0;
  } catch (const lora_train::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  }
}
