#include "lora_train/data/cache/document_store.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <fstream>
#include <numeric>
#include <tuple>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "token_cache.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kUnit = 8;
constexpr std::size_t kBufferBytes = 1 << 20;

struct RecordHeader {
  std::uint64_t line;
  std::uint64_t content_hash;
  std::uint32_t num_tokens;
  std::uint32_t num_supervised;
  std::uint32_t file;
  std::uint16_t has_weights, soft_width;
};
static_assert(sizeof(RecordHeader) == 32);

// Marks the start of a table and of its footer. Each new layout gets a new mark, so that no version reads the other's
// files; older layouts have it only in the footer.
constexpr std::string_view kMark = "LTOKENS4", kAnyMark = "LTOKENS";

struct Footer {
  char mark[8] = {};
  std::uint64_t num_examples = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t num_record_bytes = 0;
  std::uint64_t num_metadata_bytes = 0;
  char key[32] = {};
  char body_hash[32] = {};
  std::uint64_t footer_hash = 0;  // hash of all bytes before it
};
static_assert(sizeof(Footer) == 112);

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <typename T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::uint64_t hash_of(const Footer& footer) {
  return hash64(bytes_of(footer).substr(0, offsetof(Footer, footer_hash)));
}

/// hash128_hex() for a body of any size.
std::string hash_of(std::string_view body) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  Hasher hasher;
  for (std::size_t begin = 0; begin < body.size(); begin += kPiece) {
    throw_if_stop_requested();
    hasher.update(body.substr(begin, kPiece));
  }
  return hasher.hex();
}

std::string padded_key(std::string key) {
  assert(key.size() <= sizeof Footer::key);
  key.resize(sizeof Footer::key, '\0');
  return key;
}

}  // namespace

bool is_token_table(const std::filesystem::path& file) {
  if (path_kind(file) != PathKind::kFile) return false;
  std::ifstream stream(file, std::ios::binary);
  const auto has_mark = [&] {
    char start[kAnyMark.size()];
    return stream.read(start, sizeof start) && std::string_view(start, sizeof start) == kAnyMark;
  };
  if (has_mark()) return true;
  stream.clear();
  stream.seekg(-static_cast<std::streamoff>(sizeof(Footer)), std::ios::end);
  return has_mark();
}

TokenTable::TokenTable(MappedFile file, const std::string& key, std::shared_ptr<const void> lock)
    : file_(std::move(file)), lock_(std::move(lock)) {
  const auto require = [&](bool is_good, const char* message) {
    if (!is_good) throw FormatError(path().string(), message);
  };
  Footer footer;
  require(bytes().size() >= sizeof footer, "too short for a token table");
  const std::string_view body = bytes().substr(0, bytes().size() - sizeof footer);
  std::memcpy(&footer, body.data() + body.size(), sizeof footer);
  require(body.starts_with(kMark) && std::string_view(footer.mark, sizeof footer.mark) == kMark,
          "not a token table of this version");
  require(footer.footer_hash == hash_of(footer), "the footer of the token table is damaged");
  require(footer.num_record_bytes >= kMark.size() && footer.num_record_bytes <= body.size() &&
              body.size() - footer.num_record_bytes == footer.num_metadata_bytes,
          "the size of the token table differs from what its footer says");
  require(std::string(footer.key, sizeof footer.key) == padded_key(key), "a token table for other data or options");
  require(hash_of(body) == std::string_view(footer.body_hash, sizeof footer.body_hash), "the token table is damaged");
  num_examples_ = static_cast<std::int64_t>(footer.num_examples);
  num_tokens_ = static_cast<std::int64_t>(footer.num_tokens);
  metadata_ = body.substr(footer.num_record_bytes);
}

StoredExample TokenTable::example(std::uint64_t position) const {
  const char* at = file_.data() + kMark.size() + position * kUnit;
  const auto& header = *reinterpret_cast<const RecordHeader*>(at);
  const auto* tokens = reinterpret_cast<const std::int32_t*>(at + sizeof header);
  const auto* weights = reinterpret_cast<const float*>(tokens + 2 * header.num_tokens);
  const std::size_t num_weights = header.has_weights != 0 ? header.num_tokens : 0;
  const std::size_t num_soft = std::size_t{header.num_supervised} * header.soft_width;
  const auto* soft_ids = reinterpret_cast<const std::int32_t*>(weights + (num_weights + 1) / 2 * 2);
  const auto* soft_log_probs = reinterpret_cast<const float*>(soft_ids + num_soft);
  return {header.line,
          header.content_hash,
          header.file,
          header.num_supervised,
          {tokens, header.num_tokens},
          {tokens + header.num_tokens, header.num_tokens},
          {weights, num_weights},
          {header.soft_width, {soft_ids, num_soft}, {soft_log_probs, num_soft}}};
}

TokenTableWriter::TokenTableWriter(const std::filesystem::path& file, std::string key)
    : path_(file), key_(padded_key(std::move(key))) {
  if (!path_.empty()) {
    std::tie(file_, lock_) = open_locked(path_, 0);
  }
  write(kMark);
  if (file_ != nullptr) flush();  // a killed process leaves a file that can be recognised
}

void TokenTableWriter::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                              std::uint32_t file, std::uint64_t line, std::span<const float> weights,
                              const SoftLabels& soft) {
  assert(!ids.empty() && ids.size() == labels.size() && (weights.empty() || weights.size() == ids.size()));
  constexpr float kPadding = 0;
  const auto num_supervised = static_cast<std::uint32_t>(count_supervised(labels));
  assert(soft.ids.size() == num_supervised * static_cast<std::size_t>(soft.width) && soft.width <= UINT16_MAX);
  std::uint64_t hash = hash64(bytes_of(labels), hash64(bytes_of(ids)));
  if (!weights.empty()) hash = hash64(bytes_of(weights), hash);
  if (soft.width > 0) hash = hash64(bytes_of(soft.log_probs), hash64(bytes_of(soft.ids), hash));
  const RecordHeader header{line,
                            hash,
                            static_cast<std::uint32_t>(ids.size()),
                            num_supervised,
                            file,
                            static_cast<std::uint16_t>(weights.empty() ? 0 : 1),
                            static_cast<std::uint16_t>(soft.width)};
  write(bytes_of(header));
  write(bytes_of(ids));
  write(bytes_of(labels));
  write(bytes_of(weights));
  if (weights.size() % 2 != 0) write(bytes_of(kPadding));
  write(bytes_of(soft.ids));
  write(bytes_of(soft.log_probs));
  ++num_examples_;
  num_tokens_ += static_cast<std::int64_t>(ids.size());
  num_supervised_ += num_supervised;
}

void TokenTableWriter::write(std::string_view bytes) {
  hasher_.update(bytes);
  num_bytes_ += bytes.size();
  buffer_ += bytes;
  if (file_ != nullptr && buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void TokenTableWriter::flush() {
  file_->write(buffer_);
  buffer_.clear();
}

std::shared_ptr<const TokenTable> TokenTableWriter::finish(std::string_view metadata) {
  Footer footer;
  footer.num_record_bytes = num_bytes_;
  write(metadata);
  kMark.copy(footer.mark, sizeof footer.mark);
  footer.num_examples = static_cast<std::uint64_t>(num_examples_);
  footer.num_tokens = static_cast<std::uint64_t>(num_tokens_);
  footer.num_metadata_bytes = metadata.size();
  std::memcpy(footer.key, key_.data(), sizeof footer.key);
  std::memcpy(footer.body_hash, hasher_.hex().data(), sizeof footer.body_hash);
  footer.footer_hash = hash_of(footer);
  buffer_ += bytes_of(footer);
  if (file_ == nullptr) return std::make_shared<TokenTable>(MappedFile({}, std::move(buffer_)), key_);
  flush();
  file_->commit();
  return std::make_shared<TokenTable>(MappedFile(path_), key_, std::move(lock_));
}

std::int64_t count_supervised(std::span<const std::int32_t> labels) {
  if (labels.empty()) return 0;
  const auto predicted = labels.subspan(1);
  return std::count_if(predicted.begin(), predicted.end(), [](std::int32_t label) { return label != kIgnoredLabel; });
}

double DocumentStore::weight_sum(std::size_t i) const {
  const auto of_tokens = weights(i);
  if (of_tokens.empty()) return static_cast<double>(num_supervised(i));
  return std::accumulate(of_tokens.begin() + 1, of_tokens.end(), 0.0);
}

bool DocumentStore::has_weights() const {
  return std::any_of(sources_->begin(), sources_->end(), [](const Source& source) { return source.has_weights; });
}

std::int64_t DocumentStore::soft_width() const {
  std::int64_t width = 0;
  for (const Source& source : *sources_) width = std::max(width, source.soft_width);
  return width;
}

std::string DocumentStore::source(std::size_t i) const {
  const StoredExample found = example(i);
  const std::uint64_t element = found.line >> 32;
  return fmt::format("{}:{}{}", (*sources_)[documents_[i].table].files[found.file], found.line & 0xffffffffU,
                     element > 0 ? fmt::format(", element {}", element) : "");
}

std::int64_t DocumentStore::total_tokens() const {
  return std::accumulate(documents_.begin(), documents_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Document& document) { return sum + document.num_tokens; });
}

std::int64_t DocumentStore::total_supervised() const {
  return std::accumulate(documents_.begin(), documents_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Document& document) { return sum + document.num_supervised; });
}

std::int64_t DocumentStore::longest() const {
  std::int64_t longest = 0;
  for (const Document& document : documents_) {
    longest = std::max<std::int64_t>(longest, document.num_tokens);
  }
  return longest;
}

void DocumentStore::add(std::shared_ptr<const TokenTable> table, std::vector<std::string> files) {
  auto sources = std::make_shared<std::vector<Source>>(*sources_);
  assert(sources->size() < (1U << 16));
  documents_.reserve(documents_.size() + static_cast<std::size_t>(table->num_examples()));
  // 48 and 16 bits, as in the header.
  constexpr std::uint64_t kPositionMask = (1ULL << 48) - 1;
  const auto index = static_cast<std::uint16_t>(sources->size());
  std::uint64_t position = 0;
  bool has_weights = false;
  std::int64_t soft_width = 0;
  StopPoll stop_poll;
  for (std::int64_t i = 0; i < table->num_examples(); ++i) {
    stop_poll();
    const StoredExample found = table->example(position);
    documents_.push_back(
        {position & kPositionMask, index, static_cast<std::uint32_t>(found.ids.size()), found.num_supervised});
    has_weights = has_weights || !found.weights.empty();
    soft_width = std::max(soft_width, found.soft.width);
    position = TokenTable::next(position, found);
  }
  sources->push_back({std::move(table), std::move(files), has_weights, soft_width});
  sources_ = std::move(sources);
}

DocumentStore DocumentStore::empty_copy() const {
  DocumentStore out;
  out.sources_ = sources_;
  return out;
}

void DocumentStore::append_from(const DocumentStore& other, std::size_t i, std::size_t num_tokens) {
  assert(sources_ == other.sources_ && num_tokens >= 1 && num_tokens <= other.documents_[i].num_tokens);
  Document document = other.documents_[i];
  if (num_tokens < document.num_tokens) {
    document.num_tokens = static_cast<std::uint32_t>(num_tokens);
    document.num_supervised = static_cast<std::uint32_t>(count_supervised(other.labels(i).first(num_tokens)));
  }
  documents_.push_back(document);
}

DocumentStore DocumentStore::subset(std::span<const std::uint32_t> chosen) const {
  DocumentStore out = empty_copy();
  out.documents_.reserve(chosen.size());
  for (const std::uint32_t i : chosen) {
    out.documents_.push_back(documents_[i]);
  }
  return out;
}

std::string documents_hash(const DocumentStore& store) {
  Hasher hasher;
  for (std::size_t i = 0; i < store.size(); ++i) {
    const std::array values{store.content_hash(i), static_cast<std::uint64_t>(store.num_tokens(i))};
    hasher.update({reinterpret_cast<const char*>(values.data()), sizeof values});
  }
  return hasher.hex();
}

std::string name_examples(const DocumentStore& store, std::span<const std::uint32_t> documents) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> examples;
  for (const std::uint32_t document : documents.first(std::min(kShown, documents.size()))) {
    examples.push_back(store.source(document));
  }
  return join(examples) + (documents.size() > kShown ? ", ..." : "");
}

}  // namespace lora_train::data
