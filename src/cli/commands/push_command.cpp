// lora-train push: an adapter or a model to the Hugging Face hub.
#include "command_line.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/hub/push.h"
#include "output/standard_output.h"
#include "output/transfer_progress.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

std::string size_text_of(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void print_plan(const hub::PushPlan& plan, const std::string& target, bool json) {
  for (const hub::PushFile& file : plan.files) {
    if (json)
      print_line(to_line({{"path", file.path}, {"num_bytes", file.num_bytes}}));
    else
      print_line(string_printf("%10s  ", size_text_of(file.num_bytes).c_str()) + file.path);
  }
  log_info(plan.folder.string() + " would go to " + target + "; --dry-run sent nothing");
}

void print_push(const std::string& name, const hub::PushResult& result, bool json) {
  if (json) {
    print_line(to_line({{"url", result.url},
                        {"commit", result.commit},
                        {"num_files", result.num_files},
                        {"num_uploaded_bytes", result.num_uploaded_bytes},
                        {"is_new", result.is_new}}));
    return;
  }
  print_line(result.url);
  log_info(name + ": " +
           (result.num_files == 0 ? "the repository has all files already; no commit was made"
                                  : count_of(result.num_files, "file") + " in commit " + result.commit.substr(0, 12) +
                                        ", " + size_text_of(result.num_uploaded_bytes) + " of large files uploaded"));
}

}  // namespace

int run_push(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "push",
      "Uploads an adapter, a model, or the result of a run to the Hugging Face hub: creates the repository, "
      "private unless --public, uploads what it lacks, and makes one commit at the end. Reads HF_TOKEN "
      "(which must allow writing), HF_ENDPOINT and https_proxy.");
  std::string folder, name;
  bool is_dry = false;
  hub::PushRequest request;
  parser.app().add_option("folder", folder, "a PEFT adapter, a model, or output_dir of a run")->type_name("DIR");
  parser.app().add_option("name", name, "the repository")->type_name("ORG/NAME");
  parser.app().add_flag("--public", request.is_public, "everyone may see the repository");
  parser.app()
      .add_option("--revision", request.branch, "branch to commit to (default main); created if missing")
      ->type_name("NAME");
  parser.app().add_option("--message", request.message, "of the commit")->type_name("TEXT");
  parser.app().add_flag("--dry-run", is_dry, "list the files, and send nothing");
  if (!parser.parse(arguments)) return 0;
  if (folder.empty()) parser.refuse("DIR", "missing; expected an adapter, a model, or output_dir of a run.");
  const auto id = storage::parse_hub_id(name);
  if (!id || !id->revision.empty())
    parser.refuse("ORG/NAME", name.empty() ? "missing; expected a name such as my-name/my-adapter."
                                           : "got " + name + ", expected org/name; a branch is --revision.");
  if (!storage::parse_hub_id(name + "@" + request.branch))
    parser.refuse("--revision", "got " + request.branch + ", expected the name of a branch.");
  request.id = *id;
  request.plan = hub::plan_push(folder, name);
  if (request.message.empty()) request.message = "Upload with lora-train";
  if (!request.plan.skipped.empty()) log_info("not uploaded: " + join(request.plan.skipped));
  if (!request.plan.has_card) log_warning("there is no README.md: the repository will have no model card");
  if (is_dry) {
    print_plan(request.plan, name, parser.common().json);
    return 0;
  }
  const StopRequests stop_requests;
  hub::PushResult result;
  {
    TransferProgress progress(parser.common().quiet);
    request.progress = [&](std::uint64_t num_bytes, std::uint64_t total) { progress.update(num_bytes, total); };
    result = hub::push(request);
  }
  print_push(name, result, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
