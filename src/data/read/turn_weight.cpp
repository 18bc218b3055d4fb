#include "turn_weight.h"

#include <cmath>

#include "lora_train/base/error.h"
#include "row_fields.h"

namespace lora_train::data {
namespace {

float number_of(const Json& weight, const std::string& field) {
  constexpr auto kExpected = "0 (not trained) or a positive number";
  if (!weight.is_number()) {
    wrong_type(field, weight, kExpected);
  }
  const auto value = static_cast<float>(weight.get<double>());
  if (weight.get<double>() != 0.0 && !(std::isnormal(value) && value > 0)) {
    throw DataError("", field + " is " + weight.dump() + "; the weight of a turn is " + kExpected +
                            " from 1.2e-38 to 3.4e38. To weight whole datasets, set `weight` in the profile");
  }
  return std::abs(value);  // 0 for -0
}

}  // namespace

std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place) {
  const Json* train = optional_field(message, map, "train");
  const Json* weight = optional_field(message, map, "weight");
  if (optional_field(message, map, "train_detail") != nullptr) {
    throw DataError("",
                    place + ".train_detail is not supported: a turn is trained whole or not at all (train, weight)");
  }
  if (train != nullptr && !train->is_boolean()) {
    wrong_type(place + ".train", *train, "true or false");
  }
  std::optional<float> value;
  if (weight != nullptr) value = number_of(*weight, place + ".weight");
  if (train == nullptr) return value;
  if (value && train->get<bool>() != (*value > 0)) {
    throw DataError("",
                    place + ": train is " + train->dump() + " and weight is " + weight->dump() + "; keep one of them");
  }
  return value.value_or(train->get<bool>() ? 1.0F : 0.0F);
}

}  // namespace lora_train::data
