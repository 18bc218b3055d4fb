#include "hparams_record.h"

#include <nlohmann/json.hpp>

#include "event_record.h"
#include "proto_message.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlugin = "hparams";
/// The last value of each is the result of a run.
constexpr const char* kMetrics[] = {"eval/loss", "eval/perplexity", "eval/token_accuracy",
                                    "eval/ece",  "train/loss_mean", "train/tokens_per_s"};
enum DataType { kString = 1, kBool = 2, kFloat64 = 3 };
enum Status { kSuccess = 1, kFailure = 2 };

/// google.protobuf.Value; its type is the second.
std::pair<ProtoMessage, DataType> value_of(const Json& value) {
  if (value.is_boolean()) return {ProtoMessage().add_varint(4, value.get<bool>() ? 1 : 0), kBool};
  if (value.is_number()) return {ProtoMessage().add_double(2, value.get<double>()), kFloat64};
  return {ProtoMessage().add_bytes(3, value.get<std::string>()), kString};
}

std::string record_of(const char* tag, int field, const ProtoMessage& data, double time) {
  return plugin_record(tag, kPlugin, ProtoMessage().add_message(field, data).bytes(), time);
}

}  // namespace

std::string hparams_start_records(const std::string& profile_json, const std::string& group, double time) {
  const Json profile = Json::parse(profile_json);
  ProtoMessage experiment, session;
  for (const auto& [key, setting] : profile.items()) {
    if (!setting.is_boolean() && !setting.is_number() && !setting.is_string()) continue;
    const auto [value, type] = value_of(setting);
    experiment.add_message(4, ProtoMessage().add_bytes(1, key).add_varint(4, type));
    session.add_message(1, ProtoMessage().add_bytes(1, key).add_message(2, value));
  }
  for (const char* tag : kMetrics)
    experiment.add_message(5, ProtoMessage().add_message(1, ProtoMessage().add_bytes(2, tag)));
  experiment.add_double(3, time);
  session.add_bytes(4, group).add_double(5, time);
  return record_of("_hparams_/experiment", 2, experiment, time) +
         record_of("_hparams_/session_start_info", 3, session, time);
}

std::string hparams_end_record(bool is_success, double time) {
  const ProtoMessage end = ProtoMessage().add_varint(1, is_success ? kSuccess : kFailure).add_double(2, time);
  return record_of("_hparams_/session_end_info", 4, end, time);
}

}  // namespace lora_train::report
