"""Mutations of suite `durability` of scripts/mutation_check.py: (name, tests, edits). MUTANT in a replacement is whether this
mutation is on (an environment variable), so one build holds them all.

Tests: "BINARY FILTER" of googletest, or "FOLDER/test_FILE.py WORDS" of tests/integration (pytest -k WORDS). Every row of the table in
docs/durability.md has a mutation here, or in suite `saving`.
"""

FOLDERS, CHECKPOINT, LOOP = "src/storage/atomic_folder.cpp", "src/run_folder/checkpoint.cpp", "src/run/train_loop.cpp"
BUILD, RUN_FOLDER, STOP = "src/run/build_run.cpp", "src/run_folder/output_folder.cpp", "src/base/stop_request.cpp"
OUTPUT = "src/storage/model_output.cpp"
SAVER, RUNNING = "src/run/background_saver.cpp", "src/run/run_training.cpp"

SAVING = [
    ("not read back", "run_folder_test Durability.*", [
        (CHECKPOINT, "problem = verify(target); !", "problem = MUTANT ? std::string() : verify(target); !")]),
    ("not taken back", "run_folder_test Durability.*", [(CHECKPOINT, "    folder.take_back();", "    if (!MUTANT) folder.take_back();")]),
    ("fallback removes the target first", "run_folder_test Durability.*", [
        (FOLDERS, "  rename_path(target, old);\n", "  if (MUTANT) {\n    remove_tree(target);\n    return rename_path(temporary, target);\n  }\n"
         "  rename_path(target, old);\n")]),
    ("fallback leaves no name", "run_folder_test Durability.*", [
        (FOLDERS, "    rename_path(old, target);\n", "    if (!MUTANT) rename_path(old, target);\n")]),
    ("taken back without a sync", "run_folder_test Durability.*", [
        (FOLDERS, "  holds_replaced_ = false;\n  sync_folder", "  holds_replaced_ = false;\n  if (!MUTANT) sync_folder")]),
    ("bytes needed and free not told", "run_folder_test Durability.*", [
        ("src/base/file.cpp", "bytes) == 0) {\n    what +=", "bytes) == 0 && !MUTANT) {\n    what +=")]),
    ("no snapshot", "run_test BackgroundSaver.*", [
        (SAVER, "    snapshot_->parameters.values.copy_", "    if (!MUTANT) snapshot_->parameters.values.copy_")]),
    ("moments not in the snapshot", "run_test BackgroundSaver.*", [
        (SAVER, "    snapshot_->optimizer.copy_from", "    if (!MUTANT) snapshot_->optimizer.copy_from")]),
    ("save without a snapshot not settled", "run_test BackgroundSaver.*", [
        (SAVER, "  if (!snapshot_) saver_.settle();", "  if (!snapshot_ && !MUTANT) saver_.settle();")]),
    ("metrics.jsonl not synced first", "run_test BackgroundSaver.*", [
        (SAVER, "  if (path_kind(metrics)", "  if (!MUTANT && path_kind(metrics)")]),
    ("save_interval ignored", "run_test TrainLoop.*", [(LOOP, "    return interval && ", "    return interval && !MUTANT && ")]),
    ("max_failed_saves ignored", "run_test TrainLoop.*", [
        (LOOP, "      if (failed_saves_ >= run_.profile().run.max_failed_saves && ",
         "      if (failed_saves_ >= run_.profile().run.max_failed_saves && !MUTANT && ")]),
    ("no result without its checkpoint", "train/test_limits.py a_result_is_written", [
        (LOOP, "      rethrow_if_too_many(unsaved = finish_save());\n",
         "      rethrow_if_too_many(unsaved = finish_save());\n      if (MUTANT && unsaved) std::rethrow_exception(unsaved);\n")]),
    ("every failed save ends the run", "run_test TrainLoop.*", [
        (LOOP, "    } catch (const IoError&) {\n      if (", "    } catch (const IoError&) {\n      if (MUTANT || ")]),
    ("nothing saved before another error", "run_test TrainLoop.*", [
        (LOOP, "      if (is_state_worth_saving()) {\n        save_last_finished_step();", "      if (is_state_worth_saving()) {\n        if (!MUTANT) save_last_finished_step();")]),
    ("saved after a non-finite loss", "run_test TrainLoop.*", [
        (LOOP, "      return error.exit_code() != ExitCode::kNumeric;", "      return MUTANT || error.exit_code() != ExitCode::kNumeric;")]),
    ("full disk ends the run at once", "train/test_saving.py goes_on_while", [
        (LOOP, "    } catch (const IoError&) {\n", "    } catch (const IoError&) {\n      if (MUTANT) throw;\n")]),
]

RESUMING = [
    ("a step skipped on resume", "train/test_kill.py", [
        (LOOP, "*run_.plan, run_.state.step + 1,", "*run_.plan, run_.state.step + 1 + (MUTANT && run_.state.step > 0),")]),
    ("moments not restored", "train/test_kill.py", [
        ("src/run/background_saver.cpp", "  read_views(checkpoint / storage::kOptimizerFile", "  if (!MUTANT) read_views(checkpoint / storage::kOptimizerFile")]),
    ("sum of losses not restored", "train/test_output_folder.py mean_loss", [
        (BUILD, "  run.state = found.state;\n", "  run.state = found.state;\n  if (MUTANT) run.state.loss_sum = 0;\n")]),
    ("saved every 20 steps instead of 4", "train/test_kill.py", [
        (LOOP, "if (saves_.is_due(run_.state.step) || run_.state.step == interval_ends_at_ || evals_.has_new_best()) save", "if ((MUTANT ? run_.state.step % 20 == 0 : saves_.is_due(run_.state.step)) || run_.state.step == interval_ends_at_) save")]),
    ("changed data accepted", "train/test_saving.py changed_data", [
        (BUILD, "if (old.data != now.data && ", "if (old.data != now.data && !MUTANT && ")]),
    ("changed tokenizer accepted", "train/test_saving.py changed_tokenizer", [
        (BUILD, "if (old.tokenizer != now.tokenizer && ", "if (old.tokenizer != now.tokenizer && !MUTANT && ")]),
    ("changed template accepted", "train/test_saving.py changed_chat_template", [
        (BUILD, "if (old.chat_template != now.chat_template && ", "if (old.chat_template != now.chat_template && !MUTANT && ")]),
    ("changed base model accepted", "train/test_saving.py changed_base_model", [
        (BUILD, "if (old.model != now.model && ", "if (old.model != now.model && !MUTANT && ")]),
    ("changed profile accepted", "run_folder_test OutputFolder.*", [(RUN_FOLDER, "  if (refused.empty()) return;", "  if (MUTANT || refused.empty()) return;")]),
    ("file names of a manifest not checked", "run_folder_test Checkpoint.AManifest*", [
        ("src/run_folder/manifest.cpp", "if (const char* reason = why_not_file_name(name)) {", "if (const char* reason = MUTANT ? nullptr : why_not_file_name(name)) {")]),
    ("sizes of tensors not checked", "storage_test Safetensors.*", [
        ("src/storage/safetensors.cpp", "if (entry.end - entry.begin != bits / 8) {", "if (!MUTANT && entry.end - entry.begin != bits / 8) {")]),
    ("file names of an index not checked", "storage_test ModelWeights.*", [
        ("src/storage/model_weights.cpp", "if (const char* reason = why_not_file_name(file)) {", "if (const char* reason = MUTANT ? nullptr : why_not_file_name(file)) {")]),
    ("sizes in config.json not checked", "model_config_test ModelConfig.*", [
        ("src/model/families/config_reader.cpp", "  if (!is_in_range || value.get<std::int64_t>() < smallest)", "  if (!MUTANT && (!is_in_range || value.get<std::int64_t>() < smallest))")]),
    ("unknown keys of a profile accepted", "config_test MalformedProfile.*", [
        ("src/config/layers.cpp", "  findings_.mistake(value.place, name,\n                    fmt::format(\"unknown key.", "  if (!MUTANT) findings_.mistake(value.place, name,\n                    fmt::format(\"unknown key.")]),
    ("rank of an adapter not checked", "export_test MalformedAdapter.*", [
        ("src/lora/adapter_config.cpp", "    if (!is_rank) {", "    if (!MUTANT && !is_rank) {")]),
]

STOPPING = [
    ("a stop saves nothing", "train/test_signals.py", [(LOOP, "    if (is_save_owed()) {\n      start_save();", "    if (!MUTANT && is_save_owed()) {\n      start_save();")]),
    ("a stop ends with 0", "train/test_signals.py", [
        (LOOP, "(is_done ? ExitCode::kDone : ExitCode::kStopped)", "(is_done || MUTANT ? ExitCode::kDone : ExitCode::kStopped)")]),
    ("a second signal waits", "base_test StopRequests*", [
        (STOP, "if (now - received_at_s >= deaf_s) ::_exit", "if (now - received_at_s >= deaf_s && !MUTANT) ::_exit")]),
    ("an ignored SIGHUP is taken", "base_test StopRequests*", [
        (STOP, "if (kSignals[i] == SIGHUP && ", "if (!MUTANT && kSignals[i] == SIGHUP && ")]),
    ("--max-time ignored", "train/test_output_folder.py before_step_1", [(RUNNING, "if (max_time && training.is_leader()) set", "if (!MUTANT && max_time && training.is_leader()) set")]),
]

FILES_OF_OTHERS = [
    ("any folder is a run", "run_folder_test OutputFolder.*", [
        (RUN_FOLDER, "  const bool is_run = storage::read_marker(folder).has_value();\n  const auto refuse",
         "  const bool is_run = MUTANT || storage::read_marker(folder).has_value();\n  const auto refuse")]),
    ("any checkpoint is ours", "run_folder_test Checkpoint.*", [
        (CHECKPOINT, "  if (path_kind(folder) != PathKind::kFolder) return false;\n  return starts",
         "  if (path_kind(folder) != PathKind::kFolder) return false;\n  return MUTANT || starts")]),
    ("links have a run's names", "run_folder_test OutputFolder.*", [
        (RUN_FOLDER, "(kind == expected && is_ours)", "((MUTANT || kind == expected) && is_ours)")]),
    ("the lock follows links", "run_folder_test FolderLock.*", [
        ("src/run_folder/folder_lock.cpp", "O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK", "O_CLOEXEC | (MUTANT ? 0 : O_NOFOLLOW) | O_NONBLOCK")]),
    ("the lock is not taken", "run_folder_test FolderLock.*", [
        ("src/run_folder/folder_lock.cpp", "if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) continue;", "if (MUTANT || ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) continue;")]),
    ("half-written files stay", "run_folder_test OutputFolder.*", [
        (RUN_FOLDER, "    storage::delete_temporaries(folder, storage::is_run_name, own", "    if (!MUTANT) storage::delete_temporaries(folder, storage::is_run_name, own")]),
    ("the replaced run is deleted at once", "run_folder_test *Run.*:OutputFolder.*", [
        ("src/run_folder/output_folder.cpp", "    move_all(folder, names, replaced);\n",
         "    if (MUTANT) {\n      for (const auto& name : names) discard(folder, name, folder);\n    } else\n      move_all(folder, names, replaced);\n")]),
    ("files of others go with a folder", "storage_test AtomicFolder.*", [
        (FOLDERS, "  return own ? own(folder)", "  return own && !MUTANT ? own(folder)")]),
    ("any folder is an output", "storage_test OutputFolder.*", [
        (OUTPUT, "!fs::is_empty(folder)) check_overwritten", "!fs::is_empty(folder) && !MUTANT) check_overwritten")]),
    ("two commands write to one place", "storage_test OutputFolder.*", [
        (OUTPUT, "    if (left.is_busy()) refuse_busy", "    if (left.is_busy() && !MUTANT) refuse_busy")]),
    ("any file is a token table", "data_test TokenCacheTest.*", [
        ("src/data/cache/token_cache.cpp", "if (has_name(name) && is_token_table(file)) files", "if (has_name(name) && (MUTANT || is_token_table(file))) files")]),
    ("compare replaces any file", "cli/test_compare.py only_a_file", [
        ("src/cli/output/standard_output.cpp", "  if (start.empty() || is_ours", "  if (MUTANT || start.empty() || is_ours")]),
    ("a command overwrites what it began", "run_folder_test OutputFolder.*", [(RUN_FOLDER, "  return is_same;\n", "  return is_same && !MUTANT;\n")]),
]

MUTATIONS = SAVING + RESUMING + STOPPING + FILES_OF_OTHERS
