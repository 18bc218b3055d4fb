// lora-train cache: the files of the token cache.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>

#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "lora_train/storage/atomic_folder.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string time_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

void list(const fs::path& folder, bool json) {
  const std::vector<data::CachedTable> tables = data::list_token_tables(folder);
  std::uint64_t total = 0;
  for (const data::CachedTable& table : tables) {
    total += table.num_bytes;
    if (json) {
      print_line(to_line({{"file", table.file.string()},
                          {"num_bytes", table.num_bytes},
                          {"last_used", table.last_used},
                          {"is_in_use", table.is_in_use}}));
    } else {
      print_line(time_text(table.last_used) + string_printf("  %10s  ", size_text(table.num_bytes).c_str()) +
                 table.file.filename().string() + (table.is_in_use ? "  in use" : ""));
    }
  }
  if (json) return;
  const std::uint64_t limit = data::token_cache_limit();
  print_line(folder.string() + ": " + std::to_string(tables.size()) + " tables, " + size_text(total) +
             (limit == data::kNoCacheLimit ? "; no limit" : " of at most " + size_text(limit)));
}

void clear(const fs::path& folder, std::int64_t used_before, bool json) {
  data::sweep_token_cache(folder);
  const data::DeletedTables deleted = data::shrink_token_cache(folder, 0, used_before);
  std::vector<data::CachedTable> left = data::list_token_tables(folder);
  std::erase_if(left, [&](const data::CachedTable& table) { return table.last_used >= used_before; });
  const auto num_in_use = std::ranges::count_if(left, [](const data::CachedTable& table) { return table.is_in_use; });
  const auto num_without_lock = std::ssize(left) - num_in_use;
  if (json) {
    print_line(to_line({{"folder", folder.string()},
                        {"num_deleted", deleted.num_tables},
                        {"num_bytes", deleted.num_bytes},
                        {"num_in_use", num_in_use},
                        {"num_without_lock", num_without_lock}}));
    return;
  }
  print_line(folder.string() + ": deleted " + std::to_string(deleted.num_tables) + " tables, " +
             size_text(deleted.num_bytes) +
             (num_in_use == 0 ? "" : "; " + std::to_string(num_in_use) + " in use stay") +
             (num_without_lock == 0 ? "" : "; " + std::to_string(num_without_lock) + " stay that cannot be locked"));
}

}  // namespace

int run_cache(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "cache",
      "Lists or deletes the token tables that runs share. LORA_TRAIN_CACHE_MAXSIZE (default 64G, 0 = no "
      "limit) limits their size: beyond it, a run deletes those that were not used for longest.");
  bool wants_list = false, wants_clear = false;
  std::string folder = data::user_token_cache().string();
  std::int64_t used_before = std::numeric_limits<std::int64_t>::max();
  parser.app().add_flag("--list", wants_list, "show the tables, least recently used first");
  parser.app().add_flag("--clear", wants_clear, "delete all tables that no run uses, and what killed runs left");
  const CLI::Option* const older_than =
      parser
          .add_parsed(
              "--older-than",
              [&](const std::string& text) {
                const auto age = parse_duration(text);
                if (!age || *age < 0) return false;
                const double now = static_cast<double>(std::time(nullptr));
                used_before = static_cast<std::int64_t>(std::ceil(std::max(now - *age, 0.0)));
                return true;
              },
              "an age such as 30d, 12h or 90m", "with --clear: keep the tables that were used in this time")
          ->type_name("TIME");
  const CLI::Option* const dir =
      parser.app()
          .add_option("--dir", folder,
                      "dataset_prepared_path or stage_dir of a profile (default ~/.cache/lora-train/tokens)")
          ->type_name("DIR");
  if (!parser.parse(arguments)) return 0;
  if (wants_list == wants_clear) parser.refuse("--list", "expected one of --list and --clear.");
  if (wants_list && older_than->count() > 0) parser.refuse("--older-than", "expected with --clear only.");
  if (folder.empty()) {
    parser.refuse("--dir", "missing, and neither XDG_CACHE_HOME nor HOME says where your cache is.");
  }
  if (dir->count() > 0 && !fs::is_directory(folder)) {
    parser.refuse("--dir", folder + (fs::exists(folder) ? " is not a folder." : " does not exist."));
  }
  if (folder == data::user_token_cache() && fs::exists(folder)) storage::make_private_folder(folder);
  wants_list ? list(folder, parser.common().json) : clear(folder, used_before, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
