#include "table_reader.h"

#include <functional>

#include "lora_train/base/error.h"
#include "table_library.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kTableBlockBytes = 1 << 20;

class TableReader : public RowReader {
 public:
  explicit TableReader(const std::filesystem::path& file) : file_(file.string()) {
    const OpenTable open_rows = load_table_library(file);
    at_file([&] { rows_.reset(open_rows(file_.c_str())); });
  }

  std::optional<RowBlock> next() override {
    RowBlock block;
    block.file = file_;
    std::vector<std::size_t> ends;
    at_file([&] { rows_->read(block.text, ends, kTableBlockBytes); });
    if (ends.empty()) return std::nullopt;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      RowBlock::Piece piece{.kind = RowBlock::Kind::kTableRow, .line = ++num_rows_};
      piece.begin = begin;
      piece.size = end - begin;
      block.pieces.push_back(std::move(piece));
      begin = end;
    }
    return block;
  }

 private:
  /// A problem of the whole file; one of a single row is found as its text is parsed.
  void at_file(const std::function<void()>& action) const {
    try {
      action();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw DataError(file_, (num_rows_ > 0 ? "after row " + std::to_string(num_rows_) + ": " : "") + error.what());
    }
  }

  std::string file_;
  std::unique_ptr<TableRows> rows_;
  std::uint64_t num_rows_ = 0;
};

}  // namespace

std::unique_ptr<RowReader> open_table(const std::filesystem::path& file) { return std::make_unique<TableReader>(file); }

}  // namespace lora_train::data
