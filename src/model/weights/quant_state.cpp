#include "quant_state.h"

#include <algorithm>
#include <bit>

#include "families/config_reader.h"
#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

constexpr std::size_t kMaxBytes = 4096;  // bitsandbytes writes about 200
constexpr const char* kKeys[] = {"quant_type", "blocksize", "dtype", "shape"};
constexpr const char* kNestedKeys[] = {"nested_blocksize", "nested_dtype", "nested_offset"};
constexpr const char* kAgain = "; quantise the model again, or use the unquantised model";

nlohmann::json parse(std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) {
    throw FormatError(where, "has " + std::to_string(text.size()) + " bytes; the JSON of a quant_state has at most " +
                                 std::to_string(kMaxBytes) + kAgain);
  }
  try {
    nlohmann::json document = nlohmann::json::parse(text);
    if (document.is_object()) return document;
  } catch (const nlohmann::json::exception&) {
  }
  throw FormatError(where, std::string("is not a JSON object, which the bytes of a quant_state are") + kAgain);
}

void require_keys(const ConfigReader& reader) {
  const auto is_known = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  for (const auto& key : reader.keys()) {
    if (!is_known(kKeys, key) && !is_known(kNestedKeys, key)) reader.reject(key, "is no key of a quant_state");
  }
  for (const char* key : kKeys) {
    if (!reader.is_given(key)) reader.reject(key, std::string("is missing in the quant_state") + kAgain);
  }
  const auto num_nested = std::count_if(std::begin(kNestedKeys), std::end(kNestedKeys),
                                        [&](const char* key) { return reader.is_given(key); });
  for (const char* key : kNestedKeys) {
    if (num_nested > 0 && !reader.is_given(key)) {
      reader.reject(key, std::string("is missing, although other keys of nested scales are there") + kAgain);
    }
  }
}

std::int64_t block_size(const ConfigReader& reader, const char* key) {
  const std::int64_t size = reader.size(key, std::int64_t{1} << 40);
  if (size < 32 || size > 4096 || !std::has_single_bit(static_cast<std::uint64_t>(size))) {
    reader.reject(key, "is " + std::to_string(size) + "; a power of two from 32 to 4096 was expected");
  }
  return size;
}

void require_one_of(const ConfigReader& reader, const char* key, std::initializer_list<const char*> known) {
  const std::string found = reader.text(key, "");
  std::string names;
  for (const char* name : known) {
    if (found == name) return;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  reader.reject(key, "\"" + found.substr(0, 80) + "\" is not known; expected " + names);
}

}  // namespace

QuantState parse_quant_state(std::string_view json, const std::string& where) {
  const ConfigReader reader(parse(json, where), where);
  require_keys(reader);
  require_one_of(reader, "quant_type", {"nf4", "fp4"});
  require_one_of(reader, "dtype", {"float32", "float16", "bfloat16"});
  QuantState state;
  state.quant_type = reader.text("quant_type", "");
  state.block_size = block_size(reader, "blocksize");
  state.shape = reader.ids("shape");
  if (!reader.is_given("nested_blocksize")) return state;
  require_one_of(reader, "nested_dtype", {"float32"});
  state.nested_block_size = block_size(reader, "nested_blocksize");
  state.nested_offset = *reader.optional_number("nested_offset");
  return state;
}

}  // namespace lora_train::model
