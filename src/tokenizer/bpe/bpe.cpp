#include "bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <memory>
#include <queue>

#include "lora_train/base/hash.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kScanLimit = 48;  // symbols; beyond, a heap beats scanning every pair after every merge

std::uint32_t rank_of(const MergeTable& table, const Symbol& left, const Symbol& right) {
  const Merge* merge = table.find(left.id, right.id);
  return merge == nullptr ? kNoRank : merge->rank;
}

void merge_by_scan(const MergeTable& table, std::vector<Symbol>& symbols) {
  std::uint32_t ranks[kScanLimit];
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(table, symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = {table.find(symbols[best].id, symbols[best + 1].id)->id,
                     symbols[best].length + symbols[best + 1].length};
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = rank_of(table, symbols[best - 1], symbols[best]);
    if (best + 1 < count) ranks[best] = rank_of(table, symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

// A merge that was possible when pushed; stale if either side has changed since.
struct Candidate {
  std::uint32_t rank;
  std::uint32_t position;
  std::int32_t left, right, merged;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

class HeapMerger {
 public:
  HeapMerger(const MergeTable& table, std::vector<Symbol>& symbols) : table_(table), symbols_(symbols) {
    const auto count = static_cast<std::int64_t>(symbols.size());
    nodes_.reserve(symbols.size());
    for (std::int64_t i = 0; i < count; ++i) nodes_.push_back({i - 1, i + 1 < count ? i + 1 : -1});
    for (std::int64_t i = 0; i < count; ++i) push(i);
  }

  void run() {
    while (!heap_.empty()) {
      stop_poll_();
      const Candidate top = heap_.top();
      heap_.pop();
      apply(top);
    }
    std::size_t out = 0;
    for (std::int64_t at = 0; at >= 0; at = nodes_[index(at)].next) symbols_[out++] = symbols_[index(at)];
    symbols_.resize(out);
  }

 private:
  struct Node {
    std::int64_t previous, next;
  };
  static constexpr std::int32_t kGone = -2;
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  void push(std::int64_t at) {
    const std::int64_t next = nodes_[index(at)].next;
    stop_poll_();
    if (next < 0) return;
    const std::int32_t left = symbols_[index(at)].id, right = symbols_[index(next)].id;
    if (const Merge* merge = table_.find(left, right)) {
      heap_.push({merge->rank, static_cast<std::uint32_t>(at), left, right, merge->id});
    }
  }

  void apply(const Candidate& candidate) {
    Symbol& left = symbols_[candidate.position];
    const std::int64_t next = nodes_[candidate.position].next;
    if (left.id != candidate.left || next < 0 || symbols_[index(next)].id != candidate.right) return;
    left = {candidate.merged, left.length + symbols_[index(next)].length};
    symbols_[index(next)].id = kGone;
    const std::int64_t after = nodes_[index(next)].next;
    nodes_[candidate.position].next = after;
    if (after >= 0) nodes_[index(after)].previous = candidate.position;
    if (nodes_[candidate.position].previous >= 0) push(nodes_[candidate.position].previous);
    push(candidate.position);
  }

  const MergeTable& table_;
  std::vector<Symbol>& symbols_;
  StopPoll stop_poll_;
  std::vector<Node> nodes_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap_;
};

constexpr std::uint32_t kMetaspace = 0x2581;
constexpr std::size_t kBitsPerPair = 8;  // one in eight foreign pairs is mistaken for a known one

// The complete character that ends right before `end`, or length 0.
Utf8Char char_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && is_continuation(text[begin])) --begin;
  const Utf8Char c = utf8_char(text, begin);
  return begin + c.length == end ? c : Utf8Char{};
}

constexpr std::size_t kLongSlots = std::size_t{1} << 14U;
constexpr std::size_t kMaxArena = std::size_t{4} << 20U;  // bytes of words, and the same number of symbols

}  // namespace

MergeTable::MergeTable(std::size_t expected_merges) { rehash(std::bit_ceil(2 * expected_merges + 16)); }

void MergeTable::rehash(std::size_t slots) {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{kEmpty, {}});
  mask_ = slots - 1;
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(slots));
  for (const Slot& slot : old) {
    if (slot.key == kEmpty) continue;
    std::size_t at = slot_of(slot.key);
    while (slots_[at].key != kEmpty) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (2 * (size_ + 1) > slots_.size()) rehash(2 * slots_.size());
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = slot_of(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
  if (slots_[at].key == kEmpty) ++size_;
  slots_[at] = {key, merge};
}

void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanLimit) return merge_by_scan(table, symbols);
  HeapMerger(table, symbols).run();
}

void CutTable::join(std::uint32_t left, std::uint32_t right) {
  if ((left | right) < 0x80) ascii_pairs_.set(left << 7U | right);
  found_.push_back(std::uint64_t{left} << 32U | right);
}

void CutTable::add(std::string_view token) {
  for (std::size_t at = 1; at < token.size(); ++at) {
    if (is_continuation(token[at])) continue;
    const Utf8Char left = char_before(token, at), right = utf8_char(token, at);
    if (left.length == 0 || right.length == 0) {
      byte_pairs_.set(byte_pair(token[at - 1], token[at]));
      continue;
    }
    join(left.code_point, right.code_point);
    if (!spaces_are_u2581_) continue;
    const std::uint32_t other_left = left.code_point == kMetaspace ? ' ' : left.code_point;
    const std::uint32_t other_right = right.code_point == kMetaspace ? ' ' : right.code_point;
    join(other_left, right.code_point);
    join(left.code_point, other_right);
    join(other_left, other_right);
  }
}

void CutTable::build() {
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  const std::size_t bits = std::bit_ceil(std::max<std::size_t>(kBitsPerPair * found_.size(), 64));
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(bits));
  pairs_.assign(bits / 64, 0);
  for (const std::uint64_t pair : found_) {
    const std::size_t bit = bit_of(static_cast<std::uint32_t>(pair >> 32U), static_cast<std::uint32_t>(pair));
    pairs_[bit >> 6U] |= std::uint64_t{1} << (bit & 63U);
  }
  found_ = {};
}

WordCache::WordCache() : short_slots_(std::size_t{1} << kShortSlotBits), long_slots_(kLongSlots) {}

std::span<const Symbol> WordCache::find_long(std::string_view word) const {
  const std::uint64_t hash = hash64(word);
  const LongSlot& slot = long_slots_[hash & (kLongSlots - 1)];
  if (slot.hash != hash || slot.num_symbols == 0 || slot.word_length != word.size()) return {};
  if (std::string_view(words_).substr(slot.word_at, slot.word_length) != word) return {};
  return {symbols_.data() + slot.symbols_at, slot.num_symbols};
}

void WordCache::insert(std::string_view word, std::span<const Symbol> symbols) {
  if (symbols.empty()) return;
  if (word.size() <= kMaxShortBytes && symbols.size() <= kMaxShortSymbols) {
    const ShortKey key = short_key(word);
    ShortSlot& slot = short_slots_[slot_of(key)];
    slot.key = key;
    slot.num_symbols = static_cast<std::uint32_t>(symbols.size());
    std::copy(symbols.begin(), symbols.end(), slot.symbols);
    return;
  }
  if (words_.size() + word.size() > kMaxArena || symbols_.size() + symbols.size() > kMaxArena) {
    std::fill(long_slots_.begin(), long_slots_.end(), LongSlot{});
    words_.clear();
    symbols_.clear();
  }
  const std::uint64_t hash = hash64(word);
  long_slots_[hash & (kLongSlots - 1)] = {
      hash, static_cast<std::uint32_t>(words_.size()), static_cast<std::uint32_t>(word.size()),
      static_cast<std::uint32_t>(symbols_.size()), static_cast<std::uint32_t>(symbols.size())};
  words_.append(word);
  symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
}

WordCache& WordCache::of_thread(std::uint64_t serial) {
  struct Entry {
    std::uint64_t serial = 0;
    std::unique_ptr<WordCache> cache;
  };
  thread_local std::array<Entry, 4> entries;
  thread_local std::size_t oldest = 0;
  for (Entry& entry : entries) {
    if (entry.serial == serial) return *entry.cache;
  }
  Entry& entry = entries[oldest++ % entries.size()];
  entry = {serial, std::make_unique<WordCache>()};
  return *entry.cache;
}

std::uint64_t WordCache::next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace lora_train::tokenizer
