#include "lora_train/data/cache/ledger.h"

#include <algorithm>
#include <array>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::data {
namespace {

struct ReasonText {
  const char* name;
  const char* sentence;
  bool is_lost;
};

constexpr std::array<ReasonText, 12> kReasons = {{
    {"bad_row", "malformed, dropped (on_bad_row: drop)", true},
    {"overlength", "longer than max_seq_len, dropped (overlength: drop)", true},
    {"truncated", "longer than max_seq_len, tail cut (overlength: truncate)", false},
    {"fully_masked", "no token to train on", true},
    {"not_rendered", "the chat template left out part of the chat", false},
    {"empty_answer", "a trained answer is empty: only its end is learned", false},
    {"null_fields", "null members of messages or tools, left out (null_fields: keep keeps them)", false},
    {"json_arguments", "arguments of tool calls are JSON text, decoded for the template", false},
    {"duplicate", "the same as an earlier example", false},
    {"in_validation", "also in the evaluation data, which makes its loss look too good", false},
    {"dropped_duplicate", "the same as an earlier example, dropped (drop_duplicates: true)", true},
    {"dropped_in_training", "also in the training data, dropped (drop_duplicates: true)", true},
}};

const ReasonText& text_of(LedgerReason reason) { return kReasons[static_cast<std::size_t>(reason)]; }

std::string percent(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.2f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

void ThoughtCounts::add(const ThoughtCounts& other) {
  kept += other.kept;
  dropped += other.dropped;
  empty += other.empty;
}

std::string ThoughtCounts::text() const {
  return fmt::format("{} with thoughts: {} kept, {} dropped, {} written empty", count_of(total(), "turn"),
                     format_count(kept), format_count(dropped), format_count(empty));
}

std::string Ledger::line(const LedgerEntry& entry, std::int64_t total) {
  std::string line = format_count(entry.count) + " (" + percent(entry.count, std::max<std::int64_t>(total, 1)) + ") " +
                     text_of(entry.reason).sentence + "; first: " + entry.first_source;
  if (!entry.first_message.empty()) line += ": " + entry.first_message;
  if (entry.more_sources.empty()) return line;
  const auto others = entry.count - 1 - static_cast<std::int64_t>(entry.more_sources.size());
  return line + "; also " + join(entry.more_sources) + (others > 0 ? " and " + format_count(others) + " more" : "");
}

const char* name_of(LedgerReason reason) { return text_of(reason).name; }

bool is_lost(LedgerReason reason) { return text_of(reason).is_lost; }

void Ledger::add(LedgerReason reason, const std::string& source, const std::string& message, std::int64_t count) {
  add(LedgerEntry{reason, count, source, message, {}});
}

void Ledger::add(const LedgerEntry& entry) {
  const auto place = std::lower_bound(entries.begin(), entries.end(), entry.reason,
                                      [](const LedgerEntry& e, LedgerReason reason) { return e.reason < reason; });
  if (place == entries.end() || place->reason != entry.reason) {
    entries.insert(place, entry);
    return;
  }
  std::vector<std::string>& more = place->more_sources;
  more.push_back(entry.first_source);
  more.insert(more.end(), entry.more_sources.begin(), entry.more_sources.end());
  more.resize(std::min(more.size(), LedgerEntry::kMaxMoreSources));
  place->count += entry.count;
}

void Ledger::add(const Ledger& other) {
  total += other.total;
  kept += other.kept;
  thoughts.add(other.thoughts);
  for (const LedgerEntry& entry : other.entries) add(entry);
}

std::int64_t Ledger::count(LedgerReason reason) const {
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.reason == reason; });
  return entry == entries.end() ? 0 : entry->count;
}

std::vector<std::string> Ledger::lines() const {
  std::vector<std::string> out = {fmt::format("examples: {} read, {} kept", format_count(total), format_count(kept))};
  for (const LedgerEntry& entry : entries) out.push_back("  " + line(entry, total));
  if (thoughts.total() > 0) out.push_back("  " + thoughts.text());
  return out;
}

void Ledger::check_drop_fraction(double max_fraction, const std::string& what) const {
  if (total == 0 || static_cast<double>(lost()) <= max_fraction * static_cast<double>(total)) return;
  std::string message =
      fmt::format("{} would lose {} of {} examples ({}), more than max_drop_fraction: {:g} allows:", what,
                  format_count(lost()), format_count(total), percent(lost(), total), max_fraction);
  bool is_too_long = false;
  for (const LedgerEntry& entry : entries) {
    if (!is_lost(entry.reason)) continue;
    message += "\n  " + line(entry, total);
    is_too_long |=
        entry.reason == LedgerReason::kOverlength || entry.first_message.find("max_seq_len") != std::string::npos;
  }
  message += fmt::format("\nFix the examples, {}or raise max_drop_fraction (0 to 1).",
                         is_too_long ? "raise max_seq_len, " : "");
  throw DataError("", message);  // about all examples; each line names its own first example
}

}  // namespace lora_train::data
