#include "turn_mark.h"

#include "lora_train/base/error.h"
#include "row_fields.h"

namespace lora_train::data {
namespace {

TurnMark mark_of(bool is_trained) { return is_trained ? TurnMark::kTrain : TurnMark::kSkip; }

TurnMark mark_of_weight(const Json& weight, const std::string& field) {
  if (!weight.is_number()) {
    wrong_type(field, weight, "0 (not trained) or 1 (trained)");
  }
  const auto value = weight.get<double>();
  if (value != 0.0 && value != 1.0) {
    throw DataError("", field + " is " + weight.dump() + "; the weight of a turn is 0 (not trained) or 1 (trained), " +
                            "others are not supported. To weight whole datasets, set `weight` in the profile");
  }
  return mark_of(value == 1.0);
}

}  // namespace

TurnMark turn_mark(const Json& message, const FieldMap& map, const std::string& place) {
  const Json* train = optional_field(message, map, "train");
  const Json* weight = optional_field(message, map, "weight");
  if (optional_field(message, map, "train_detail") != nullptr) {
    throw DataError("",
                    place + ".train_detail is not supported: a turn is trained whole or not at all (train, weight)");
  }
  if (train != nullptr && !train->is_boolean()) {
    wrong_type(place + ".train", *train, "true or false");
  }
  const TurnMark by_train = train == nullptr ? TurnMark::kNone : mark_of(train->get<bool>());
  const TurnMark by_weight = weight == nullptr ? TurnMark::kNone : mark_of_weight(*weight, place + ".weight");
  if (by_train != TurnMark::kNone && by_weight != TurnMark::kNone && by_train != by_weight) {
    throw DataError("",
                    place + ": train is " + train->dump() + " and weight is " + weight->dump() + "; keep one of them");
  }
  return by_train == TurnMark::kNone ? by_weight : by_train;
}

}  // namespace lora_train::data
