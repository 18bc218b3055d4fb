// liblora_train_arrow.so: opens Parquet and Arrow files with Apache Arrow's C++ libraries, and converts their values to
// JSON.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/util/float16.h>
#include <arrow/util/utf8.h>
#include <arrow/visit_array_inline.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "lora_train/base/library.h"
#include "lora_train_build_id.h"
#include "table_rows.h"

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

namespace lora_train::data {
namespace {

using arrow::Type;

constexpr std::int64_t kMsPerDay = 86'400'000;

void check(const arrow::Status& status) {
  if (status.IsOutOfMemory()) throw std::runtime_error("needs more memory than is available: " + status.message());
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// Appends value `index` of an array whose type check_column_type() accepted, in the format of table_rows.h.
void append_json(const arrow::Array& array, std::int64_t index, std::string& out);

/// Appends `text` in quotes. Bytes that are not UTF-8 stay as they are.
void append_json_string(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

template <class Number>
void append_number(Number number, std::string& out) {
  std::array<char, 32> text{};
  out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr);
}

template <class Float>
void append_float(Float number, std::string& out) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  const std::size_t begin = out.size();
  append_number(number, out);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";  // 1.0 is not an integer
}

std::int64_t floor_divide(std::int64_t number, std::int64_t by) { return number / by - (number % by < 0 ? 1 : 0); }

std::int64_t milliseconds(std::int64_t count, arrow::TimeUnit::type unit) {
  switch (unit) {
    case arrow::TimeUnit::SECOND: {
      std::int64_t result = 0;
      if (__builtin_mul_overflow(count, 1000, &result)) throw std::runtime_error("a time is beyond 64 bits");
      return result;
    }
    case arrow::TimeUnit::MILLI: return count;
    case arrow::TimeUnit::MICRO: return floor_divide(count, 1000);
    default: return floor_divide(count, 1'000'000);
  }
}

/// Appends begin .. end - 1, each as `append` writes it, with commas between brackets.
template <class Append>
void append_items(std::int64_t begin, std::int64_t end, std::string_view brackets, std::string& out,
                  const Append& append) {
  out += brackets[0];
  for (std::int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append(i);
  }
  out += brackets[1];
}

/// Visits an array for a value that is not null.
struct ValueWriter {
  template <class Array>
  arrow::Status Visit(const Array& array, std::int64_t index, std::string& out) const {
    using T = typename Array::TypeClass;
    if constexpr (arrow::is_boolean_type<T>::value) {
      out += array.Value(index) ? "true" : "false";
    } else if constexpr (arrow::is_half_float_type<T>::value) {
      append_float(arrow::util::Float16::FromBits(array.Value(index)).ToFloat(), out);
    } else if constexpr (arrow::is_floating_type<T>::value) {
      append_float(array.Value(index), out);
    } else if constexpr (arrow::is_integer_type<T>::value || std::is_same_v<T, arrow::Date64Type>) {
      append_number(array.Value(index), out);
    } else if constexpr (std::is_same_v<T, arrow::Date32Type>) {
      append_number(array.Value(index) * kMsPerDay, out);
    } else if constexpr (arrow::is_timestamp_type<T>::value || arrow::is_duration_type<T>::value) {
      append_number(milliseconds(array.Value(index), static_cast<const T&>(*array.type()).unit()), out);
    } else if constexpr (arrow::is_time_type<T>::value || arrow::is_decimal_type<T>::value) {
      append_json_string(array.GetScalar(index).ValueOrDie()->ToString(), out);
    } else if constexpr (arrow::has_string_view<T>::value) {
      const std::string_view bytes = array.GetView(index);
      const bool is_text =
          arrow::is_string_type<T>::value || arrow::is_string_view_type<T>::value || arrow::util::ValidateUTF8(bytes);
      if (is_text) {
        append_json_string(bytes, out);
      } else {
        out += "{\"bytes\":" + std::to_string(bytes.size()) + "}";
      }
    } else {
      return append_nested(array, index, out);
    }
    return arrow::Status::OK();
  }

 private:
  template <class Array>
  static arrow::Status append_nested(const Array& array, std::int64_t index, std::string& out) {
    using T = typename Array::TypeClass;
    if constexpr (arrow::is_dictionary_type<T>::value) {
      append_json(*array.dictionary(), array.GetValueIndex(index), out);
    } else if constexpr (arrow::is_extension_type<T>::value) {
      append_json(*array.storage(), index, out);
    } else if constexpr (arrow::is_struct_type<T>::value) {
      append_items(0, array.num_fields(), "{}", out, [&](std::int64_t i) {
        append_json_string(array.struct_type()->field(static_cast<int>(i))->name(), out);
        out += ':';
        append_json(*array.field(static_cast<int>(i)), index, out);
      });
    } else if constexpr (arrow::is_list_like_type<T>::value || arrow::is_list_view_type<T>::value) {
      const std::int64_t begin = array.value_offset(index), end = begin + array.value_length(index);
      append_items(begin, end, "[]", out, [&](std::int64_t i) {
        if constexpr (std::is_same_v<T, arrow::MapType>) {
          append_items(0, 2, "[]", out,
                       [&](std::int64_t k) { append_json(k == 0 ? *array.keys() : *array.items(), i, out); });
        } else {
          append_json(*array.values(), i, out);
        }
      });
    } else {
      return arrow::Status::NotImplemented(array.type()->ToString());  // check_column_type() refused it
    }
    return arrow::Status::OK();
  }
};

void append_json(const arrow::Array& array, std::int64_t index, std::string& out) {
  if (array.type_id() == Type::NA || array.IsNull(index)) {
    out += "null";
  } else {
    const ValueWriter writer;
    check(arrow::VisitArrayInline(array, &writer, index, out));
  }
}

/// Throws std::runtime_error if JSON has no value for a type anywhere inside `type`. `column` names it.
void check_column_type(const arrow::DataType& type, const std::string& column) {
  switch (type.id()) {
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
    case Type::INTERVAL_MONTHS:
    case Type::INTERVAL_DAY_TIME:
    case Type::INTERVAL_MONTH_DAY_NANO:
    case Type::RUN_END_ENCODED:
      throw std::runtime_error("the column \"" + column + "\" is of type " + type.ToString() +
                               ", which has no JSON value. Write the file without it");
    case Type::DICTIONARY:
      return check_column_type(*static_cast<const arrow::DictionaryType&>(type).value_type(), column);
    case Type::EXTENSION:
      return check_column_type(*static_cast<const arrow::ExtensionType&>(type).storage_type(), column);
    default:
      for (const auto& field : type.fields()) check_column_type(*field->type(), column + "." + field->name());
  }
}

using Input = std::shared_ptr<arrow::io::RandomAccessFile>;

constexpr std::int64_t kParquetBatchRows = 1024;
constexpr std::int64_t kParquetBuffer = 1 << 20;
constexpr std::string_view kEndOfStream{"\xFF\xFF\xFF\xFF\0\0\0\0", 8};
constexpr std::string_view kContinuation{"\xFF\xFF\xFF\xFF", 4};  // start of a stream since Arrow 0.15

template <class T>
T take(arrow::Result<T>&& result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// The batches of a file, in order; null at the end.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual std::shared_ptr<arrow::Schema> schema() const = 0;
  virtual std::shared_ptr<arrow::RecordBatch> next() = 0;
};

/// Decodes a row group one page at a time, so that memory does not grow with it.
class ParquetBatches : public Batches {
 public:
  explicit ParquetBatches(const Input& file) {
    parquet::ReaderProperties bytes;
    bytes.enable_buffered_stream();
    bytes.set_buffer_size(kParquetBuffer);
    bytes.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties rows(/*use_threads=*/false);
    rows.set_batch_size(kParquetBatchRows);
    rows.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(file, bytes));
    check(builder.properties(rows)->Build(&file_));
    batches_ = take(file_->GetRecordBatchReader());
  }
  std::shared_ptr<arrow::Schema> schema() const override { return batches_->schema(); }
  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    check(batches_->ReadNext(&batch));
    return batch;
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
};

arrow::ipc::IpcReadOptions without_threads() {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  return options;
}

class ArrowFileBatches : public Batches {
 public:
  explicit ArrowFileBatches(const Input& file)
      : reader_(take(arrow::ipc::RecordBatchFileReader::Open(file, without_threads()))) {}
  std::shared_ptr<arrow::Schema> schema() const override { return reader_->schema(); }
  std::shared_ptr<arrow::RecordBatch> next() override {
    return next_ < reader_->num_record_batches() ? take(reader_->ReadRecordBatch(next_++)) : nullptr;
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  int next_ = 0;
};

class ArrowStreamBatches : public Batches {
 public:
  explicit ArrowStreamBatches(const Input& file)
      : file_(file), reader_(take(arrow::ipc::RecordBatchStreamReader::Open(file.get(), without_threads()))) {}
  std::shared_ptr<arrow::Schema> schema() const override { return reader_->schema(); }
  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    check(reader_->ReadNext(&batch));
    if (batch == nullptr) require_end_mark();
    return batch;
  }

 private:
  /// Arrow mistakes the end of the file for the end of the stream.
  void require_end_mark() const {
    const std::int64_t size = take(file_->GetSize());
    const auto begin = take(file_->ReadAt(0, 4)), end = take(file_->ReadAt(std::max<std::int64_t>(size - 8, 0), 8));
    if (std::string_view(*begin) == kContinuation && std::string_view(*end) != kEndOfStream) {
      throw std::runtime_error("the stream has no end mark: the file looks truncated");
    }
  }

  Input file_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

std::unique_ptr<Batches> open_batches(const std::string& path) {
  const Input file = take(arrow::io::ReadableFile::Open(path));
  const auto begin = take(file->ReadAt(0, 6));
  const std::string_view magic(*begin);
  if (magic.starts_with("PAR1") || path.ends_with(".parquet")) return std::make_unique<ParquetBatches>(file);
  if (magic == "ARROW1") return std::make_unique<ArrowFileBatches>(file);
  check(file->Seek(0));
  return std::make_unique<ArrowStreamBatches>(file);
}

class ArrowRows : public TableRows {
 public:
  explicit ArrowRows(const std::string& path) : batches_(open_batches(path)) {
    arrow::util::InitializeUTF8();
    for (const auto& field : batches_->schema()->fields()) {
      check_column_type(*field->type(), field->name());
      append_json_string(field->name(), names_.emplace_back());
    }
  }

  void read(std::string& text, std::vector<std::size_t>& ends, std::size_t enough) override {
    while (text.size() < enough && has_row()) {
      append_row(text);
      ends.push_back(text.size());
    }
  }

 private:
  bool has_row() {
    while (batch_ == nullptr || row_ == batch_->num_rows()) {
      row_ = 0;
      batch_ = batches_->next();
      if (batch_ == nullptr) return false;
      check(batch_->ValidateFull());  // in a damaged file, offsets may point anywhere
    }
    return true;
  }

  void append_row(std::string& text) {
    append_items(0, batch_->num_columns(), "{}", text, [&](std::int64_t i) {
      text += names_[static_cast<std::size_t>(i)];
      text += ':';
      append_json(*batch_->column(static_cast<int>(i)), row_, text);
    });
    ++row_;
  }

  std::unique_ptr<Batches> batches_;
  std::vector<std::string> names_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t row_ = 0;
};

}  // namespace
}  // namespace lora_train::data

extern "C" lora_train::data::TableRows* lora_train_open_table(const char* file) {
  return new lora_train::data::ArrowRows(file);
}
