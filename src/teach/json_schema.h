// JSON Schema, by valijson.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace lora_train::teach {

/// Thread-safe for concurrent const calls.
class JsonSchema {
 public:
  /// Throws IoError if the file cannot be read, ConfigError if it is no schema or refers to another file.
  explicit JsonSchema(const std::filesystem::path& file);
  ~JsonSchema();

  /// Whether a text is JSON that fits.
  bool fits(const std::string& text) const;

 private:
  struct Schema;
  std::unique_ptr<Schema> schema_;
};

}  // namespace lora_train::teach
