// lora-train compare: runs side by side, from their output folders.
#include <filesystem>

#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/report/comparison.h"
#include "lora_train/report/run_page.h"
#include "open_model.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

/// A folder behind --csv was meant as a DIR.
void take_back_folder(std::string& file, std::vector<std::string>& folders) {
  if (file.empty() || !fs::is_directory(file)) return;
  folders.push_back(file);
  file.clear();
}

}  // namespace

int run_compare(const std::vector<std::string>& arguments) {
  CommandParser parser("compare",
                       "Shows the results of runs and the profile keys that differ, side by side. A DIR is the "
                       "output_dir of a run, or a "
                       "folder of such folders.");
  std::vector<std::string> folders, columns;
  std::string sort_key, csv_file, html_file;
  bool is_reversed = false, writes_reports = false;
  parser.app().add_option("DIR", folders, "output folders of runs, or folders that contain some");
  parser.app()
      .add_option("--sort", sort_key,
                  "sort by a column, such as eval_loss, tokens_per_s or learning_rate; -KEY: largest first")
      ->type_name("KEY");
  parser.app().add_flag("--reverse", is_reversed, "with --sort: largest first");
  parser.app()
      .add_option("--columns", columns,
                  "the columns to show, such as learning_rate,eval_loss: results and keys of the profile")
      ->type_name("A,B,C")
      ->delimiter(',')
      ->allow_extra_args(false);
  const CLI::Option* const csv =
      parser.app().add_option("--csv", csv_file, "write CSV to FILE, or to stdout")->expected(0, 1)->type_name("FILE");
  parser.app().add_option("--html", html_file, "write a page with all curves, for a browser")->type_name("FILE");
  parser.app().add_flag(
      "--report", writes_reports,
      "write report.html and curves.png of each run anew, such as for a run that is going on or was killed");
  if (!parser.parse(arguments)) return 0;
  take_back_folder(csv_file, folders);
  const bool prints_csv = csv->count() > 0 && csv_file.empty();
  if (folders.empty()) parser.refuse("DIR", "missing; expected one or more folders.");
  if (prints_csv && parser.common().json) parser.refuse("--csv", "cannot share stdout with --json; give --csv a FILE.");
  if (is_reversed && sort_key.empty()) parser.refuse("--reverse", "needs --sort KEY, whose order it reverses.");
  parser.refuse_special_file("--csv", csv_file);
  parser.refuse_special_file("--html", html_file);
  refuse_foreign("compare", csv_file, report::is_comparison_csv);
  refuse_foreign("compare", html_file, report::is_comparison_page);

  report::Comparison comparison = report::compare_runs(find_all_runs(folders));
  for (const auto& run : comparison.runs) {
    if (writes_reports) report::write_report(run.folder);
  }
  if (!columns.empty()) report::choose_columns(comparison, columns);
  if (is_reversed) sort_key = sort_key.starts_with("-") ? sort_key.substr(1) : "-" + sort_key;
  if (!sort_key.empty()) report::sort_runs(comparison, sort_key);
  if (!csv_file.empty()) write_result(csv_file, report::comparison_csv(comparison));
  if (!html_file.empty()) write_result(html_file, report::comparison_page(comparison));
  if (parser.common().json) {
    print_text(report::comparison_json(comparison));
  } else if (prints_csv) {
    print_text(report::comparison_csv(comparison));
  } else {
    print_raw(report::comparison_table(comparison, stdout_width(), stdout_has_color()));
  }
  return 0;
}

}  // namespace lora_train::cli
