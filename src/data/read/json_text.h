// Arrow values as JSON text. Part of liblora_train_arrow.so alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace lora_train::data {

/// Throws std::runtime_error where JSON has no value for a type, anywhere inside `type`. `column` names it.
void check_column_type(const arrow::DataType& type, const std::string& column);

/// Appends value `index` of an array whose type check_column_type() took, as table_rows.h has it.
void append_json(const arrow::Array& array, std::int64_t index, std::string& out);

/// Appends `text` in quotes. Bytes that are not UTF-8 stay as they are.
void append_json_string(std::string_view text, std::string& out);

}  // namespace lora_train::data
