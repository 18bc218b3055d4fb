#include "lora_train/report/metrics_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "json_fields.h"
#include "lora_train/base/file.h"
#include "step_fields.h"

namespace lora_train::report {
namespace {

constexpr long long kMostLengthBins = 40;

/// The first sufficient width of 1, 2, 5, 10, 20, 50, ...
long long bin_width_for(long long longest) {
  for (long long power = 1;; power *= 10) {
    for (const long long factor : {1, 2, 5}) {
      if (factor * power * kMostLengthBins >= longest) return factor * power;
    }
  }
}

using Json = nlohmann::ordered_json;

void truncate_to(int fd, const std::filesystem::path& path, std::size_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail_with(path, "cannot shorten the file");
}

Json parsed(std::string_view line) { return Json::parse(line, nullptr, /*allow_exceptions=*/false); }

bool is_later_than(std::string_view line, long long step) {
  const Json object = parsed(line);
  if (!object.is_object()) return false;
  const auto found = object.find("step");
  return found != object.end() && found->is_number_integer() && found->get<long long>() > step;
}

Json to_object(const NamedTexts& texts) {
  Json object = Json::object();
  for (const auto& [name, text] : texts) {
    if (!text.empty()) object[name] = text;
  }
  return object;
}

void put_provenance(Json& object, const Provenance& provenance) {
  object["environment"] = to_object(provenance.environment);
  object["set_by"] = to_object(provenance.set_by);
  object["base_files"] = provenance.base_files;
  object["base_values"] = to_object(provenance.base_values);
}

Json to_object(const StartRecord& record) {
  Json object = {{"event", "start"},
                 {"step", record.step},
                 {"total_steps", record.total_steps},
                 {"version", record.version},
                 {"profile_hash", record.profile_hash},
                 {"device", record.device},
                 {"world_size", record.world_size},
                 {"run_name", record.run_name},
                 {"num_rows", record.num_rows},
                 {"num_documents", record.num_documents},
                 {"time", record.time},
                 {"elapsed_s", record.elapsed_s}};
  put_times(object, record.times);
  put_price(object, record.price);
  object["spans"] = to_array(record.spans);
  put_provenance(object, record.provenance);
  if (const LengthHistogram& lengths = record.document_lengths; lengths.bin_width > 0) {
    object["document_lengths"] = {{"bin_width", lengths.bin_width},
                                  {"counts", lengths.counts},
                                  {"num_tokens", lengths.num_tokens},
                                  {"longest", lengths.longest}};
  }
  return object;
}

Json to_object(const CheckpointRecord& record) {
  return {{"event", "checkpoint"},          {"step", record.step},       {"path", record.path},
          {"save_s", record.save_s},        {"stall_s", record.stall_s}, {"time", record.time},
          {"spans", to_array(record.spans)}};
}

Json to_object(const EndRecord& record) {
  Json object = {
      {"event", "end"},          {"step", record.step}, {"status", record.status},      {"exit_code", record.exit_code},
      {"reason", record.reason}, {"time", record.time}, {"elapsed_s", record.elapsed_s}};
  put_times(object, record.times);
  object["spans"] = to_array(record.spans);
  return object;
}

}  // namespace

LengthHistogram length_histogram(const std::vector<long long>& lengths) {
  LengthHistogram histogram;
  for (const long long length : lengths) {
    histogram.longest = std::max(histogram.longest, length);
    histogram.num_tokens += length;
  }
  if (histogram.longest == 0) return {};
  histogram.bin_width = bin_width_for(histogram.longest);
  histogram.counts.resize(static_cast<std::size_t>((histogram.longest - 1) / histogram.bin_width + 1));
  for (const long long length : lengths) {
    if (length > 0) ++histogram.counts[static_cast<std::size_t>((length - 1) / histogram.bin_width)];
  }
  return histogram;
}

Json to_object(const StepRecord& record) {
  Json object = {{"event", "train"}};
  put_fields(object, record);
  return object;
}

Json to_object(const EvalRecord& record) {
  Json object = {{"event", "eval"}, {"step", record.step}, {"name", record.name}};
  put_figures(object, record);
  object["eval_s"] = record.eval_s;
  if (!record.kind) {
    object.erase("ece");  // it has always come after eval_s
    object["ece"] = or_null(record.ece);
    object["num_documents"] = record.num_documents;
  }
  if (!record.kind || !record.bins.empty()) object["bins"] = to_array(record.bins);
  object["spans"] = to_array(record.spans);
  return object;
}

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

bool has_event(const std::filesystem::path& path, std::string_view event) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    const Json object = parsed(line);
    if (object.is_object() && object.contains("event") && object["event"] == event) return true;
  }
  return false;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path) : path_(path) {
  open();
  if (!std::filesystem::is_regular_file(path_)) return;
  const std::string text = read_file(path_);
  const std::size_t last_end = text.rfind('\n');
  const std::size_t whole = last_end == std::string::npos ? 0 : last_end + 1;
  if (whole != text.size()) truncate_to(fd_, path_, whole);
}

MetricsWriter::~MetricsWriter() {
  if (fd_ < 0) return;
  write_all(fd_, pending_);
  ::close(fd_);
}

void MetricsWriter::open() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_with(path_, "cannot open the file for appending");
}

void MetricsWriter::drop_after(long long step) {
  if (!std::filesystem::is_regular_file(path_)) return;
  const std::string text = read_file(path_);
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (!is_later_than(std::string_view(text).substr(begin, end - begin), step)) kept.append(text, begin, end - begin);
    begin = end;
  }
  if (text.starts_with(kept)) {
    if (kept.size() < text.size()) truncate_to(fd_, path_, kept.size());
    return;
  }
  write_file_atomic(path_, kept);
  ::close(fd_);
  open();
}

void MetricsWriter::append(const std::string& line) {
  pending_ += line;
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  if (write_all(fd_, pending_) == pending_.size()) {
    pending_.clear();
    return;
  }
  const int code = errno;
  // Removes the torn line. A device cannot be truncated, but keeps nothing either.
  [[maybe_unused]] const int ignored = ::ftruncate(fd_, end);
  fail_with(path_, "cannot append a line", code);
}

void MetricsWriter::flush() {
  if (!pending_.empty()) append({});
}

void MetricsWriter::write(const Record& record) {
  append(to_line(std::visit([](const auto& known) { return to_object(known); }, record)) + "\n");
}

}  // namespace lora_train::report
