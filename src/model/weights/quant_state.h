// What bitsandbytes writes as JSON beside a 4-bit weight: functional.QuantState.as_dict(packed=True).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::model {

struct QuantState {
  std::string quant_type;  ///< "nf4", "fp4"
  std::int64_t block_size = 0;
  std::int64_t nested_block_size = 0;  ///< 0: scales are not nested
  double nested_offset = 0;
  std::vector<std::int64_t> shape;
};

/// `where` is "file: tensor". Throws FormatError (where = "file: tensor: key") for text that is no such JSON, a key that is
/// missing, unknown or of the wrong type, and a block size that bitsandbytes does not allow.
QuantState parse_quant_state(std::string_view json, const std::string& where);

}  // namespace lora_train::model
