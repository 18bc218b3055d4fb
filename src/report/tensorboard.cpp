#include "lora_train/report/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "chart/charts.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::report {
namespace {

// A record of an event file is: u64 length, masked CRC32C of these 8 bytes, payload, masked CRC32C of the payload, all
// little-endian. The payload is a tensorflow.Event message.

static_assert(std::endian::native == std::endian::little);

void append_number(std::string& out, const auto& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

/// A protobuf message.
struct ProtoMessage {
  std::string bytes;

  /// An integer (varint), a float or double, or bytes: a text or a message.
  template <typename Value>
  ProtoMessage& add(std::uint64_t field, const Value& value) {
    if constexpr (std::is_same_v<Value, ProtoMessage>) {
      return add(field, value.bytes);
    } else if constexpr (std::is_integral_v<Value>) {
      append_varint(bytes, field << 3);
      append_varint(bytes, static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_floating_point_v<Value>) {
      append_varint(bytes, field << 3 | (sizeof value == 4 ? 5U : 1U));
      append_number(bytes, value);
    } else {
      const std::string_view text = value;
      append_varint(bytes, field << 3 | 2U);
      append_varint(bytes, text.size());
      bytes.append(text);
    }
    return *this;
  }
};

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

ProtoMessage event_at(double time) { return ProtoMessage().add(1, time); }

std::string frame(std::string_view payload) {
  std::string length, record;
  append_number(length, std::uint64_t{payload.size()});
  record = length;
  append_number(record, masked_crc32c(length));
  record.append(payload);
  append_number(record, masked_crc32c(payload));
  return record;
}

/// The start of a session: readers drop the data of earlier files from this step on.
std::string session_start_record(long long step, double time) {
  constexpr int kStart = 1;  // SessionLog.SessionStatus
  const ProtoMessage session = ProtoMessage().add(1, kStart);
  return frame(event_at(time).add(2, step).add(7, session).bytes);
}

std::string value_record(const ProtoMessage& value, long long step, double time) {
  const ProtoMessage summary = ProtoMessage().add(1, value);
  return frame(event_at(time).add(2, step).add(5, summary).bytes);
}

/// One text, which TensorBoard reads as Markdown: a TensorProto with one dimension, for the plugin "text".
std::string text_record(std::string_view tag, std::string_view markdown, long long step, double time) {
  constexpr int kString = 7;
  const ProtoMessage shape = ProtoMessage().add(2, ProtoMessage().add(1, 1));
  const ProtoMessage tensor = ProtoMessage().add(1, kString).add(2, shape).add(8, markdown);
  const ProtoMessage metadata = ProtoMessage().add(1, ProtoMessage().add(1, "text"));
  return value_record(ProtoMessage().add(1, tag).add(8, tensor).add(9, metadata), step, time);
}

/// One picture, RGB.
std::string image_record(std::string_view tag, std::string_view png, int width, int height, long long step,
                         double time) {
  constexpr int kRgb = 3;
  const ProtoMessage image = ProtoMessage().add(1, height).add(2, width).add(3, kRgb).add(4, png);
  return value_record(ProtoMessage().add(1, tag).add(4, image), step, time);
}

constexpr std::chrono::seconds kFlushInterval{10};

std::string file_name(double time, int attempt) {
  std::string name = fmt::format("{}{}.{}", storage::kEventFilePrefix, time, host_name());
  return attempt == 0 ? name : fmt::format("{}.{}", name, attempt);
}

// Scalars for every number of a record except step and time.
std::string scalar_records(const std::string& prefix, const nlohmann::ordered_json& record, long long step,
                           double time) {
  std::string records;
  for (const auto& [key, value] : record.items()) {
    for (std::size_t rank = 0; value.is_array() && rank < value.size() && value[rank].is_number(); ++rank) {
      records += scalar_record(fmt::format("{}{}/{}", prefix, key, rank), value[rank].get<float>(), step, time);
    }
    if (!value.is_number() || key == "step" || key == "time") continue;
    records += scalar_record(prefix + key, value.get<float>(), step, time);
  }
  return records;
}

/// The names that Hugging Face's Trainer gives to the time of an evaluation and its rate.
std::vector<std::pair<std::string, double>> trainer_metrics(const EvalRecord& record) {
  std::vector<std::pair<std::string, double>> metrics = {{"runtime", record.eval_s}};
  const auto samples = static_cast<double>(record.kind ? record.num_rows : record.num_documents);
  if (record.eval_s > 0) metrics.emplace_back("samples_per_second", samples / record.eval_s);
  return metrics;
}

/// Empty without bins.
std::string reliability_record(const EvalRecord& record, double time) {
  if (record.bins.empty()) return {};
  const Drawing drawing = draw(ReliabilityChart{record.name, {reliability_curve(record, ink_of_curve(0))}});
  return image_record("reliability/" + record.name, to_png(drawing, 1), drawing.width, drawing.height, record.step,
                      time);
}

/// Everything that an evaluation adds. `is_first`: the tags have no set name; `is_named`: also adds the tags of one of
/// several sets.
std::string evaluation_records(const EvalRecord& record, bool is_first, bool is_named) {
  const double time = now_s();
  std::string records =
      scalar_records(is_first ? "eval/" : fmt::format("eval/{}/", record.name), to_object(record), record.step, time);
  auto as_trainer = trainer_metrics(record);
  const auto add = [&](const std::string& prefix) {
    for (const auto& [key, value] : as_trainer)
      records += scalar_record(prefix + key, static_cast<float>(value), record.step, time);
  };
  if (is_first) add("eval/");
  if (record.loss) as_trainer.emplace_back("loss", *record.loss);
  if (record.accuracy) as_trainer.emplace_back("accuracy", *record.accuracy);
  if (is_named) add(fmt::format("eval/{}_", record.name));
  return records + reliability_record(record, time);
}

/// A code block, in which Markdown changes nothing.
std::string code_block(const std::string& text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? "\n    " : std::string(1, c);
  return block + "\n\n";
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string version_record(double time) { return frame(event_at(time).add(3, "brain.Event:2").bytes); }

std::string scalar_record(std::string_view tag, float value, long long step, double time) {
  return value_record(ProtoMessage().add(1, tag).add(2, value), step, time);
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, bool has_several_sets)
    : has_several_sets_(has_several_sets), last_flush_(std::chrono::steady_clock::now()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const double time = now_s();
  // O_EXCL: a run resumed within the same second must not append to the previous file.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ = folder / file_name(time, attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) fail_with(path_, "cannot create the TensorBoard file");
  }
  buffer_ = version_record(time);
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const IoError&) {  // a destructor must not throw; callers who care have called flush()
  }
  if (fd_ >= 0) ::close(fd_);
}

void TensorBoardWriter::drop_after(long long step) {
  buffer_ += session_start_record(step + 1, now_s());
  flush();
}

void TensorBoardWriter::add(const Record& record) {
  std::visit(
      [this](const auto& known) {
        if constexpr (requires { this->put(known); }) this->put(known);
      },
      record);
}

void TensorBoardWriter::put(const StepRecord& record) {
  buffer_ += scalar_records("train/", to_object(record), record.step, record.time);
  flush_when_due();
}

void TensorBoardWriter::put(const EvalRecord& record) {
  if (!record.kind && !first_eval_name_) first_eval_name_ = record.name;
  const bool is_first = !record.kind && record.name == first_eval_name_;
  buffer_ += evaluation_records(record, is_first, record.kind || has_several_sets_);
  flush_when_due();
}

void TensorBoardWriter::start(const Profile& profile, double time) {
  buffer_ += text_record("args", code_block(to_yaml(profile)), 0, time);
  flush();
}

void TensorBoardWriter::put(const EndRecord& record) {
  const double seconds = record.times.wall_s();
  if (seconds > 0) {
    const auto rate = static_cast<float>(static_cast<double>(record.step) / seconds);
    buffer_ += scalar_record("train/train_runtime", static_cast<float>(seconds), record.step, record.time);
    buffer_ += scalar_record("train/train_steps_per_second", rate, record.step, record.time);
  }
  flush();
}

void TensorBoardWriter::flush() {
  const std::size_t written = write_all(fd_, buffer_);
  const bool is_whole = written == buffer_.size();
  const int code = errno;
  buffer_.erase(0, written);
  last_flush_ = std::chrono::steady_clock::now();
  if (!is_whole) fail_with(path_, "cannot write the TensorBoard file", code);
}

void TensorBoardWriter::flush_when_due() {
  if (std::chrono::steady_clock::now() - last_flush_ > kFlushInterval) flush();
}

}  // namespace lora_train::report
