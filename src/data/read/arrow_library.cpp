// liblora_train_arrow.so: opens Parquet and Arrow files with Apache Arrow's C++ libraries.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <stdexcept>
#include <string_view>

#include "json_text.h"
#include "lora_train/base/library.h"
#include "lora_train_build_id.h"
#include "table_rows.h"

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

namespace lora_train::data {
namespace {

using Input = std::shared_ptr<arrow::io::RandomAccessFile>;

constexpr std::int64_t kParquetBatchRows = 1024;
constexpr std::int64_t kParquetBuffer = 1 << 20;
constexpr std::string_view kEndOfStream{"\xFF\xFF\xFF\xFF\0\0\0\0", 8};
constexpr std::string_view kContinuation{"\xFF\xFF\xFF\xFF", 4};  // how streams begin, and did not before Arrow 0.15

void check(const arrow::Status& status) {
  if (status.IsOutOfMemory()) throw std::runtime_error("needs more memory than there is: " + status.message());
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <class T>
T take(arrow::Result<T>&& result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// Batches of a file, one after the other: null at the end.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual std::shared_ptr<arrow::Schema> schema() const = 0;
  virtual std::shared_ptr<arrow::RecordBatch> next() = 0;
};

/// A row group is decoded a page at a time, so that memory does not grow with it.
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
  /// Arrow takes the end of the file for the end of the stream.
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
      check(batch_->ValidateFull());  // of a damaged file, offsets may lie anywhere
    }
    return true;
  }

  void append_row(std::string& text) {
    text += '{';
    for (int i = 0; i < batch_->num_columns(); ++i) {
      if (i > 0) text += ',';
      text += names_[static_cast<std::size_t>(i)];
      text += ':';
      append_json(*batch_->column(i), row_, text);
    }
    text += '}';
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
