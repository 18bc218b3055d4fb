// tables/TOOL.txt says what becomes of files of each tool, and profile.txt what a profile says of single keys of them. A
// case is some lines, with what is said of them indented below:
//
//   @ chat.jsonl {...}       a line of a file in the working directory; "@ chat.jsonl*30" are 30 such lines. In a block
//                            of its own: for all following cases
//   lora_r: 8                a line of the tool's file. Only the first case is a whole file: all others stand for that
//                            file, with these lines instead of its own for the same keys,
//   - adapter                and without this one. Lines may be beside each other: lora_r: 8 | - adapter
//   = axolotl/full.yml       instead: a file of tests/integration/convert
//
//     lora_r: 8 | seed: 7    lines of the profile, unless the first case has them
//     - num_epochs           lines that only the first case has, if nothing stands in their place
//     dropped KEYS: REASON   likewise: refused, note, warning and error; and kept or renamed, if the profile does not
//                            show it
//
// LORA_TRAIN_WRITE_EXPECTED=1 writes what is said into the tables; read the difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"
#include "lora_train/data/first_examples.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;
using testing_support::lines_of;
using testing_support::ProfileText;
using testing_support::TemporaryFolder;
using Lines = std::vector<std::string>;

const fs::path kSamples = "tests/integration/convert";

class WorkingDirectory {
 public:
  explicit WorkingDirectory(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  ~WorkingDirectory() { fs::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  fs::path before_;
};

std::string key_of(const std::string& line) { return line.substr(0, line.find(':')); }

std::string name_of(ForeignTool tool) { return names_of(tool).at(static_cast<std::size_t>(tool)); }

struct Case {
  bool is_block = false;  ///< it begins one
  Lines given, said;

  /// What begins with `mark`, without it.
  Lines marked(const std::string& mark) const {
    Lines found;
    for (const auto& part : parts()) {
      if (part.starts_with(mark)) found.push_back(part.substr(mark.size()));
    }
    return found;
  }
  Lines source() const {
    Lines found = parts();
    std::erase_if(found, [](const std::string& line) { return std::string_view("@#=-").find(line[0]) != line.npos; });
    return found;
  }
  /// Lines beside each other are separate.
  Lines parts() const {
    Lines found;
    for (const auto& line : given) {
      const bool is_whole = line.starts_with("@") || line.starts_with("#");
      for (std::size_t begin = 0, end = 0; end != line.npos; begin = end + 3) {
        end = is_whole ? line.npos : line.find(" | ", begin);
        found.push_back(line.substr(begin, end - begin));
      }
    }
    return found;
  }
  bool is_about_a_file() const { return !source().empty() || !marked("- ").empty() || !marked("= ").empty(); }
};

class Table {
 public:
  explicit Table(const std::string& name) : file_(fs::absolute("tests/unit/convert/tables") / (name + ".txt")) {
    bool is_block = true;
    for (const auto& line : lines_of(read_file(file_))) {
      const bool is_said = line.starts_with("  ");
      if (!line.empty() && !is_said && (is_block || !cases_.back().said.empty())) cases_.push_back({is_block, {}, {}});
      is_block = line.empty();
      if (!is_block) (is_said ? cases_.back().said : cases_.back().given).push_back(line);
    }
  }

  std::vector<Case>& cases() { return cases_; }
  Lines samples() const {
    Lines names;
    for (const auto& each : cases_) {
      for (const auto& name : each.marked("= ")) names.push_back(name);
    }
    return names;
  }
  void write() const {
    std::string text;
    for (const auto& [is_block, given, said] : cases_) {
      text += is_block && !text.empty() ? "\n" : "";
      for (const auto* lines : {&given, &said}) text += join(*lines, "\n") + (lines->empty() ? "" : "\n");
    }
    std::ofstream(file_) << text;
  }

 private:
  fs::path file_;
  std::vector<Case> cases_;
};

/// What is said of a key.
struct Remark {
  std::string kind, key, text;
  bool operator==(const Remark&) const = default;
};

/// All that is said of a file, and the lines of its profile.
struct Account {
  Lines profile;
  std::vector<Remark> remarks;
};

/// "lora_r: 8 # lora_rank": the lines of a profile with their comments; a list of maps is one line.
Lines entries_of(const std::string& yaml) {
  struct Entry {
    std::string line, comment;
    Lines items = {};
  };
  std::vector<Entry> entries;
  for (const auto& line : lines_of(yaml)) {
    const std::size_t comment = std::min(line.find(" # "), line.size());
    if (line.starts_with("  - ")) {
      entries.back().items.push_back(line.substr(4));
    } else if (!line.empty() && !line.starts_with("#")) {
      entries.push_back({trimmed(line.substr(0, comment)), line.substr(comment)});
    }
  }
  Lines lines;
  for (const auto& [line, comment, items] : entries)
    lines.push_back(line + (items.empty() ? "" : " [" + join(items) + "]") + comment);
  return lines;
}

/// {"lora_r: 8", "lora_rank"}
std::pair<std::string, std::string> split_comment(const std::string& entry) {
  const std::size_t mark = entry.find(" # ");
  return {entry.substr(0, mark), mark == entry.npos ? "" : entry.substr(mark + 3)};
}

Account account_of(const Conversion& conversion) {
  Account account = {entries_of(conversion.yaml), {}};
  std::map<std::string, std::string> shown;  // by the key of the source that the comment names
  for (const auto& entry : account.profile) {
    const auto [line, comment] = split_comment(entry);
    std::string& outcome = shown[comment.empty() ? key_of(line) : comment];
    outcome += (outcome.empty() ? "" : ", ") + line;
  }
  for (const auto& [key, outcome, place] : conversion.kept) {
    if (shown[key] != key + ": " + outcome) account.remarks.push_back({"kept", key, outcome});
  }
  for (const auto& [key, outcome, place] : conversion.renamed) {
    if (shown[key] != outcome) account.remarks.push_back({"renamed", key, outcome});
  }
  for (const auto& [key, reason, place] : conversion.dropped) account.remarks.push_back({"dropped", key, reason});
  for (const auto& [key, advice, place] : conversion.refused) account.remarks.push_back({"refused", key, advice});
  for (const auto& note : conversion.notes)
    account.remarks.push_back({"note", key_of(note), note.substr(key_of(note).size() + 2)});
  return account;
}

/// A default that the profile spells out is also in the list of them, and the other way round.
void expect_same_defaults(const Conversion& conversion) {
  std::map<std::string, std::string> listed, commented;
  for (const auto& [key, value, reason] : conversion.defaults) listed[key + ": " + value] = reason;
  for (const auto& entry : entries_of(conversion.yaml)) {
    const auto [line, comment] = split_comment(entry);
    if (listed.contains(line) || comment.ends_with("'s default")) commented[line] = comment;
  }
  EXPECT_EQ(commented, listed);
}

/// The data that are on this machine are read as the profile says.
void expect_readable_data(const Profile& profile) {
  for (const auto* entries : {&profile.data.datasets, &profile.data.eval_datasets}) {
    for (const DatasetSpec& entry : *entries) {
      if (!fs::exists(entry.path)) continue;
      EXPECT_NO_THROW(data::look_at_first_examples(entry, {.is_model_known = false})) << entry.path;
    }
  }
}

Account checked_account(const Conversion& conversion) {
  const ProfileText files;
  EXPECT_EQ(files.error(conversion.yaml), "") << conversion.yaml;
  const Profile profile = files.load(conversion.yaml).profile;
  EXPECT_EQ(to_json(profile), to_json(files.load(conversion.json).profile));
  expect_readable_data(profile);
  expect_same_defaults(conversion);
  return account_of(conversion);
}

Account account_of_sample(const std::string& name, ForeignTool tool) {
  const WorkingDirectory here(kSamples);
  const Conversion conversion = convert_profile(name, std::nullopt);
  EXPECT_EQ(title_of(conversion.tool), title_of(tool)) << name;
  Account account = checked_account(conversion);
  account.remarks.insert(account.remarks.begin(), {"recognised", "by", conversion.recognised_by});
  return account;
}

/// What a profile with keys of other tools says, and what it sets.
Account account_of_profile(const std::string& file) {
  ProfileSources sources;
  sources.profiles = {file};
  sources.tool_of_key = tool_of_key;
  const LoadedProfile loaded = load_profile(sources);
  int num_left_out = 0;
  Account account = {entries_of(to_short_yaml(loaded, num_left_out)), {}};
  for (const auto& note : loaded.notes) account.remarks.push_back({"note", "", note});
  for (const auto& warning : loaded.warnings) account.remarks.push_back({"warning", "", warning});
  return account;
}

/// What `account` says and `base` does not, then what only `base` says.
template <class Items>
Items difference(const Items& base, const Items& account, const auto& has_same_subject, const auto& without) {
  Items items;
  for (const auto& item : account) {
    if (std::ranges::count(base, item) == 0) items.push_back(item);
  }
  const Items added = items;
  for (const auto& item : base) {
    const auto replaces = [&](const auto& other) { return has_same_subject(other, item); };
    if (std::ranges::count(account, item) == 0 && std::ranges::none_of(added, replaces)) items.push_back(without(item));
  }
  return items;
}

Account difference(const Account& base, const Account& account) {
  return {difference(
              base.profile, account.profile, [](auto& a, auto& b) { return key_of(a) == key_of(b); },
              [](auto& line) { return "- " + key_of(line); }),
          difference(
              base.remarks, account.remarks, [](auto& a, auto& b) { return a.kind == b.kind && a.key == b.key; },
              [](auto& remark) {
                return Remark{"- " + remark.kind, remark.key, ""};
              })};
}

/// As a table has it: short lines of a profile are beside each other, and so are keys with the same remark.
Lines lines_of(const Account& account) {
  constexpr std::size_t kWidth = 150;
  Lines lines;
  for (const auto& entry : account.profile) {
    const bool has_room = !lines.empty() && lines.back().size() + entry.size() < kWidth;
    has_room ? lines.back() += " | " + entry : lines.emplace_back("  " + entry);
  }
  std::vector<Remark> remarks;
  for (const auto& remark : account.remarks) {
    const auto same = std::ranges::find_if(
        remarks, [&](const Remark& other) { return other.kind == remark.kind && other.text == remark.text; });
    same == remarks.end() ? remarks.push_back(remark) : void(same->key += ", " + remark.key);
  }
  for (const auto& [kind, key, text] : remarks) {
    const std::string line = kind + " " + key + (key.empty() || text.empty() ? "" : ": ") + text;
    for (const auto& part : lines_of(line)) lines.push_back("  " + part);
  }
  if (lines.empty()) lines.emplace_back("  nothing else");
  return lines;
}

/// Runs the cases of a table.
class TableRunner {
 public:
  using Accounts = std::function<Account(const std::string&)>;
  /// `of_file`: what there is to say of a file in the working directory.
  explicit TableRunner(Accounts of_file, Accounts of_sample = {})
      : of_file_(std::move(of_file)), of_sample_(std::move(of_sample)) {}

  void check(Table table, std::size_t least_cases) {
    const bool writes = std::getenv("LORA_TRAIN_WRITE_EXPECTED") != nullptr;
    std::size_t num_cases = 0;
    for (auto& each : table.cases()) {
      SCOPED_TRACE(join(each.given, "\n"));
      if (!each.is_about_a_file()) {
        const Lines files = each.marked("@ ");
        files_.insert(files_.end(), files.begin(), files.end());
        continue;
      }
      const Lines said = lines_of(account_of(each));
      if (writes) each.said = said;
      EXPECT_EQ(join(each.said, "\n"), join(said, "\n"));
      ++num_cases;
    }
    EXPECT_GE(num_cases, least_cases);
    if (writes) table.write();
  }

 private:
  Account account_of(const Case& each) {
    if (const Lines samples = each.marked("= "); !samples.empty())
      return difference(base_account_, of_sample_(samples[0]));
    const bool is_first = base_.empty();
    if (is_first) base_ = each.source();
    const Account account = of_source(source(each), each.marked("@ "));
    if (is_first) base_account_ = account;
    return is_first || account.profile.empty() ? account : difference(base_account_, account);
  }

  std::string source(const Case& each) const {
    const Lines without = each.marked("- "), changed = each.source();
    std::string text;
    for (const auto& line : base_) {
      const auto is_same = [&](const std::string& other) { return key_of(other) == key_of(line); };
      if (std::ranges::none_of(changed, is_same) && std::ranges::count(without, key_of(line)) == 0) text += line + "\n";
    }
    return text + join(changed, "\n") + "\n";
  }

  static void write(const Lines& files) {
    for (const auto& line : files) {
      const std::size_t space = line.find(' '), star = line.find('*');
      const std::string name = line.substr(0, std::min(space, star));
      const int times = star < space ? std::stoi(line.substr(star + 1)) : 1;
      if (const fs::path folder = fs::path(name).parent_path(); !folder.empty()) fs::create_directories(folder);
      for (int i = 0; i < times; ++i) std::ofstream(name, std::ios::app) << line.substr(space + 1) << "\n";
    }
  }

  Account of_source(const std::string& text, const Lines& files) const {
    const TemporaryFolder folder;
    const WorkingDirectory here(folder.path());
    write(files_);
    write(files);
    std::ofstream("mine.yaml") << text;
    try {
      return of_file_("mine.yaml");
    } catch (const ConfigError& error) {
      return {{}, {{"error", "", error.what()}}};
    }
  }

  Accounts of_file_, of_sample_;
  Lines files_, base_;
  Account base_account_;
};

TEST(ProfileTable, SaysWhatBecomesOfKeysOfOtherTools) { TableRunner(account_of_profile).check(Table("profile"), 15); }

class ConversionTable : public testing::TestWithParam<ForeignTool> {};

TEST_P(ConversionTable, SaysWhatBecomesOfEachFile) {
  const auto of_file = [](const std::string& file) { return checked_account(convert_profile(file, GetParam())); };
  const auto of_sample = [](const std::string& name) { return account_of_sample(name, GetParam()); };
  TableRunner(of_file, of_sample).check(Table(name_of(GetParam())), 35);
}

TEST_P(ConversionTable, HasAllSamples) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(kSamples / name_of(GetParam())))
    files.insert(entry.path().lexically_relative(kSamples).string());
  const Lines samples = Table(name_of(GetParam())).samples();
  EXPECT_EQ(std::set<std::string>(samples.begin(), samples.end()), files);
  EXPECT_GE(samples.size(), 3u);
}

TEST_P(ConversionTable, AnyMixOfKeysGivesAProfileWithoutContradictions) {
  Table table(name_of(GetParam()));
  Lines sources;
  for (const auto& each : table.cases()) {
    const auto is_refused = [](const std::string& line) { return line.starts_with("  refused"); };
    if (std::ranges::none_of(each.said, is_refused)) sources.push_back(join(each.source(), "\n"));
  }
  for (const auto& name : table.samples()) sources.push_back(read_file(kSamples / name));
  std::map<std::string, std::vector<Value>> values;  // of each key
  for (const auto& source : sources) {
    for (const auto& [key, value] : parse_yaml(source, {"source", 0}).members) values[key].push_back(value);
  }
  ASSERT_GT(values.size(), 60u);
  // A file only merges without data, new tokens need an adapter, and the rows' names of evaluation data are not the samples'.
  for (const char* key :
       {"export_dir", "adapter_name_or_path", "tokens", "add_tokens", "add_special_tokens", "eval_dataset"})
    values.erase(key);
  if (GetParam() == ForeignTool::kLlamaFactory) {
    values["eval_dataset"] = {text_value("sum_chats")};
    values["adapter_name_or_path"] = {text_value("saves/earlier")};
  }
  const ProfileText files;
  const WorkingDirectory here(kSamples);
  std::mt19937 draw(7);
  for (int i = 0; i < 100; ++i) {
    Value mix = map_value({});
    for (const auto& [key, given] : values) {
      if (draw() % 10 < 4) mix.members.push_back({key, given[draw() % given.size()]});
    }
    const Conversion conversion = convert_profile(files.write("source.json", to_json_text(mix)), GetParam());
    EXPECT_EQ(files.error(conversion.yaml, {"model=m", "datasets=[d]"}), "") << to_json_text(mix);
  }
}

INSTANTIATE_TEST_SUITE_P(EachTool, ConversionTable,
                         testing::Values(ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl),
                         [](const auto& instance) { return name_of(instance.param); });

}  // namespace
}  // namespace lora_train
