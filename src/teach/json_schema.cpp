#include "json_schema.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>
#pragma GCC diagnostic pop

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::teach {

struct JsonSchema::Schema {
  valijson::Schema schema;
};

JsonSchema::JsonSchema(const std::filesystem::path& file) : schema_(std::make_unique<Schema>()) {
  const auto json = nlohmann::json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw ConfigError(file.string(), "is no JSON object, and so no JSON Schema");
  try {
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(valijson::adapters::NlohmannJsonAdapter(json), schema_->schema);
  } catch (const std::exception& error) {
    throw ConfigError(file.string(),
                      "cannot be used as a JSON Schema (draft 7, in one file): " + std::string(error.what()));
  }
}

JsonSchema::~JsonSchema() = default;

bool JsonSchema::fits(const std::string& text) const {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return false;
  return valijson::Validator().validate(schema_->schema, valijson::adapters::NlohmannJsonAdapter(json), nullptr);
}

}  // namespace lora_train::teach
