// What may stand in the place of a model file.
#pragma once

#include <filesystem>

namespace lora_train::storage {

/// Call before opening a file of a model or adapter folder: opening a pipe would wait for ever, reading a device might
/// never end. Throws FormatError for a folder, a pipe, a socket or a device. Links are followed; a path that is not
/// there is left to whoever opens it.
void require_regular_file(const std::filesystem::path& path);

}  // namespace lora_train::storage
