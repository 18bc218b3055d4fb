// What docs/durability.md promises of checkpoints, held against faults of the disk, power losses, damage and full disks.
// Amounts: those of CI; LORA_TRAIN_TORTURE=1 takes those of scripts/torture.sh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/storage/run_names.h"
#include "support/faulty_file_ops.h"
#include "support/memory_file_ops.h"
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;
using testing_support::Fault;
using testing_support::FaultyFileOps;
using testing_support::MemoryFileOps;
using testing_support::ScopedFileOps;
using testing_support::SmallCheckpoint;
using testing_support::TemporaryFolder;

constexpr std::int64_t kKeep = 2;

#ifdef __SANITIZE_ADDRESS__  // ten times slower; a plain build tries every operation
constexpr std::size_t kStride = 8;
#else
constexpr std::size_t kStride = 1;
#endif

std::size_t amount(std::size_t in_ci, std::size_t in_torture) {
  return std::getenv("LORA_TRAIN_TORTURE") != nullptr ? in_torture : in_ci;
}

/// Thousands of them are expected.
class Durability : public ::testing::Test {
 protected:
  Durability() { set_log_level(LogLevel::kOff); }
  ~Durability() override { set_log_level(LogLevel::kInfo); }
};

void save_in_memory(const fs::path& folder, std::int64_t step) {
  const SmallCheckpoint made(step);
  save(folder, made.contents());
}

/// The step of the newest good checkpoint, whose bytes are those of that step; 0 when there is none. As a resume does it.
std::int64_t resume(const fs::path& folder) {
  const auto found = newest_good(folder);
  if (!found) return 0;
  const std::int64_t step = describe(*found).state.step;
  const SmallCheckpoint made(step);
  for (const auto& file : made.contents().files) {
    if (file.tensors.empty()) {
      EXPECT_EQ(read_file(*found / file.name), file.text);
      continue;
    }
    const storage::SafetensorsFile read(MappedFile::read(*found / file.name));
    for (const auto& tensor : file.tensors) EXPECT_EQ(read.bytes(*read.find(tensor.name)), tensor.bytes);
  }
  return step;
}

bool sweeps_clean(const fs::path& folder) {
  storage::delete_temporaries(folder, storage::is_run_name);
  for (const auto& name : list_folder(folder)) {
    if (name.starts_with(".tmp-")) return false;
  }
  return true;
}

// ---- faults ----------------------------------------------------------------------------------------------------------

struct Outcome {
  std::int64_t saved = 0;  ///< the newest step that is known to be on the disk
  bool has_failed = false;
};

/// Onto checkpoint-1 and checkpoint-2.
Outcome save_rotate_resume(const fs::path& folder, std::int64_t step) {
  Outcome outcome{2};
  try {
    save_in_memory(folder, step);
    outcome.saved = step;
    rotate(folder, step, kKeep, std::nullopt);
    delete_after(folder, step);
    outcome.has_failed = resume(folder) != step;
  } catch (const Error& error) {
    EXPECT_NE(error.exit_code(), ExitCode::kInternal) << error.what();
    outcome.has_failed = true;
  }
  return outcome;
}

/// In memory, where there is such a folder: thousands of saves.
fs::path fast_folder() { return fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path(); }

struct Kind {
  const char* name;
  std::int64_t step;
  bool can_exchange = true;
};

/// Returns the number of operations.
std::size_t run_with(Fault fault, std::size_t at, bool from_then_on, const Kind& kind) {
  const std::string what = "fault " + std::to_string(static_cast<int>(fault)) + " at " + std::to_string(at) +
                           (from_then_on ? " and from then on" : "");
  const TemporaryFolder folder(fast_folder());
  for (const std::int64_t earlier : {1, 2, 9}) save_in_memory(folder.path(), earlier);
  // Damaged: passed over, and deleted once there is a newer one.
  fs::remove(folder / "checkpoint-9" / storage::kManifestFile);
  FaultyFileOps faulty(file_ops());
  faulty.can_exchange = kind.can_exchange;
  faulty.arm(fault, at, from_then_on);
  Outcome outcome;
  {
    const ScopedFileOps scope(faulty);
    outcome = save_rotate_resume(folder.path(), kind.step);
  }
  EXPECT_GE(resume(folder.path()), outcome.saved) << what;
  for (const auto& found : list(folder.path())) {
    EXPECT_TRUE(storage::checkpoint_step(found) == 9 || verify(found).empty()) << what << ": half has a good name";
  }
  const bool is_harmless =
      fault == Fault::kNone || fault == Fault::kShort || (fault == Fault::kInterrupted && !from_then_on);
  if (is_harmless) {
    EXPECT_FALSE(outcome.has_failed) << what;
    EXPECT_EQ(list(folder.path()).size(), 2U) << what;
  }
  EXPECT_TRUE(sweeps_clean(folder.path())) << what;
  save_in_memory(folder.path(), 4);
  EXPECT_EQ(resume(folder.path()), 4) << what;
  return faulty.num_operations();
}

using Faults = std::vector<std::pair<Fault, bool>>;  ///< whether from then on

void fail_every_operation(const Kind& kind, const Faults& faults) {
  const std::size_t num_operations = run_with(Fault::kNone, 0, false, kind);
  EXPECT_GT(num_operations, 50U);
  std::size_t num_runs = 0;
  for (std::size_t at = 0; at < num_operations && !::testing::Test::HasFailure(); at += kStride) {
    for (const auto& [fault, from_then_on] : faults) {
      run_with(fault, at, from_then_on, kind);
      ++num_runs;
    }
  }
  std::printf("durability: %s: %zu file operations, every %zu. x %zu faults = %zu runs\n", kind.name, num_operations,
              kStride, faults.size(), num_runs);
}

const Faults kAllFaults = {{Fault::kIoError, false},   {Fault::kNoSpace, false},   {Fault::kInterrupted, false},
                           {Fault::kDamaged, false},   {Fault::kShort, false},     {Fault::kCrashBefore, true},
                           {Fault::kCrashAfter, true}, {Fault::kIoError, true},    {Fault::kNoSpace, true},
                           {Fault::kShort, true},      {Fault::kInterrupted, true}};

TEST_F(Durability, AFaultAtAnyOperationLeavesTheOldOrTheNewCheckpoint) {
  fail_every_operation({"a new checkpoint", 3}, kAllFaults);
}

TEST_F(Durability, AFaultWhileOneOfTheSameStepIsReplacedToo) {
  fail_every_operation({"one of the same step", 2}, kAllFaults);
}

/// There the old one has no name for a moment, so a crash may lose it; an error may not.
TEST_F(Durability, AnErrorWhereFoldersCannotBeExchangedToo) {
  fail_every_operation({"one of the same step, without exchange", 2, /*can_exchange=*/false},
                       {{Fault::kIoError, false}, {Fault::kDamaged, false}});
}

// ---- power loss ------------------------------------------------------------------------------------------------------

const fs::path kRun = "/runs/first", kLog = kRun / "metrics.jsonl";

std::string log_lines(std::int64_t steps) {
  std::string lines;
  for (std::int64_t step = 1; step <= steps; ++step) lines += "step " + std::to_string(step) + "\n";
  return lines;
}

/// A log of all steps so far, which nobody has synced.
void write_log(std::int64_t steps) {
  const int fd = file_ops().open(kLog.string(), O_WRONLY | O_CREAT);
  const std::string lines = log_lines(steps);
  file_ops().write(fd, lines.data(), lines.size());
  file_ops().close(fd);
}

/// Four saves, the last over one of the same step, with rotation; `look` is called after every change of the disk with the
/// newest step whose save() has returned.
void save_four_times(MemoryFileOps& disk, const std::function<void(std::int64_t)>& look) {
  const ScopedFileOps scope(disk);
  std::int64_t saved = 0;
  make_folders(kRun);
  disk.after_change = [&] { look(saved); };
  for (const std::int64_t step : {1, 2, 3, 4, 4}) {
    write_log(step);
    const SmallCheckpoint made(step);
    save(kRun, made.contents(), {kLog});
    saved = step;
    look(saved);
    rotate(kRun, step, kKeep, std::nullopt);
    delete_after(kRun, step);
  }
  disk.after_change = nullptr;
}

TEST_F(Durability, APowerLossNeverTakesACommittedCheckpoint) {
  std::size_t num_points = 0;
  MemoryFileOps counted;
  save_four_times(counted, [&](std::int64_t) { ++num_points; });
  const std::size_t num_states = amount(2000, 100'000);
  const std::size_t per_point = num_states / num_points + 1;
  std::mt19937_64 random(1);
  std::size_t num_looked_at = 0, num_newer = 0;
  MemoryFileOps disk;
  save_four_times(disk, [&](std::int64_t saved) {
    for (std::size_t i = 0; i < per_point && !HasFailure(); ++i) {
      MemoryFileOps found = disk.after_power_loss(random);
      const ScopedFileOps scope(found);
      const std::int64_t step = resume(kRun);
      EXPECT_GE(step, saved) << "state " << num_looked_at;
      EXPECT_TRUE(step == 0 || read_file(kLog).starts_with(log_lines(step))) << "lines before it are missing";
      num_newer += step > saved;
      ++num_looked_at;
      EXPECT_TRUE(step == 0 || sweeps_clean(kRun));
    }
  });
  std::printf("durability: %zu states after a power loss at %zu moments; the checkpoint under way was there in %zu\n",
              num_looked_at, num_points, num_newer);
  EXPECT_GE(num_looked_at, num_states);
}

TEST_F(Durability, APowerLossAfterASaveThatWasReadBackWrongLeavesTheOldCheckpoint) {
  std::mt19937_64 random(2);
  for (const bool can_exchange : {true, false}) {
    MemoryFileOps disk;
    FaultyFileOps faulty(disk);
    faulty.can_exchange = can_exchange;
    const ScopedFileOps scope(faulty);
    make_folders(kRun);
    for (const std::int64_t step : {1, 2}) save_in_memory(kRun, step);
    for (const std::int64_t step : {2, 3}) {  // over one of the same step, and a new one
      faulty.arm(Fault::kDamaged, 0, /*from_then_on=*/true);
      EXPECT_THROW(save_in_memory(kRun, step), IoError);
      faulty.arm(Fault::kNone);
      for (int state = 0; state < 100; ++state) {
        MemoryFileOps found = disk.after_power_loss(random);
        const ScopedFileOps after(found);
        ASSERT_EQ(list(kRun).size(), 2U) << "step " << step << ", state " << state;
        ASSERT_EQ(resume(kRun), 2) << "step " << step << ", state " << state;
      }
    }
  }
}

// ---- damage ----------------------------------------------------------------------------------------------------------

std::string damage(std::string& bytes, std::mt19937_64& random) {
  const std::size_t place = random() % bytes.size();
  switch (random() % 4) {
    case 0: bytes.resize(place); return "cut at " + std::to_string(place);
    case 1: bytes.insert(place, 1, '\0'); return "a byte more at " + std::to_string(place);
    default:
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << random() % 8));
      return "a bit flipped in byte " + std::to_string(place);
  }
}

TEST_F(Durability, DamageIsNoticedAndTheOlderCheckpointTaken) {
  MemoryFileOps disk;
  const ScopedFileOps scope(disk);
  make_folder("/run");
  for (const std::int64_t step : {1, 2}) save_in_memory("/run", step);
  const std::vector<std::string> names = list_folder("/run/checkpoint-2");
  std::mt19937_64 random(1);
  const std::size_t num_damages = amount(500, 10'000);
  for (std::size_t i = 0; i < num_damages && !HasFailure(); ++i) {
    const std::string& name = names[random() % names.size()];
    std::string& bytes = *disk.bytes("/run/checkpoint-2/" + name);
    const std::string good = bytes;
    const std::string what = damage(bytes, random);
    EXPECT_NE(verify("/run/checkpoint-2"), "") << name << ": " << what;
    EXPECT_EQ(resume("/run"), 1) << name << ": " << what;
    bytes = good;
  }
  EXPECT_EQ(resume("/run"), 2);
  std::printf("durability: %zu damaged checkpoints\n", num_damages);
}

// ---- a disk that is full ---------------------------------------------------------------------------------------------

/// A tmpfs of its own; is_mounted is false where mounting is not allowed.
class SmallDisk {
 public:
  explicit SmallDisk(std::size_t num_bytes) {
    const std::string options = "size=" + std::to_string(num_bytes);
    is_mounted_ = ::mount("lora-train-test", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_mounted() const { return is_mounted_; }
  const fs::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool is_mounted_ = false;
};

std::size_t used_bytes(const fs::path& folder) {
  struct statvfs info {};
  ::statvfs(folder.c_str(), &info);
  return (info.f_blocks - info.f_bfree) * info.f_frsize;
}

TEST_F(Durability, AFullDiskIsAClearMessageAndTheEarlierCheckpointStays) {
  constexpr std::size_t kNumValues = 16 * 1024;  // 320 KiB in all
  constexpr std::size_t kNumSizes = 64;
  const SmallCheckpoint first(1, kNumValues), second(2, kNumValues);
  std::size_t need = 0;
  {
    const SmallDisk large(std::size_t{64} << 20);
    if (!large.is_mounted()) GTEST_SKIP() << "mounting a tmpfs is not allowed here";
    save(large.path(), first.contents());
    need = used_bytes(large.path());
  }
  std::size_t num_full = 0, num_told = 0;
  for (std::size_t i = 0; i < kNumSizes; ++i) {
    const SmallDisk disk(need + need * 12 * i / (10 * (kNumSizes - 1)));
    ASSERT_TRUE(disk.is_mounted());
    save(disk.path(), first.contents());
    try {
      save(disk.path(), second.contents());
      EXPECT_EQ(newest_good(disk.path())->filename(), "checkpoint-2");
    } catch (const IoError& error) {
      ++num_full;
      const std::string message = error.what();
      EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
      num_told +=
          message.find("cannot reserve ") != std::string::npos && message.find(" are free)") != std::string::npos;
      EXPECT_EQ(newest_good(disk.path())->filename(), "checkpoint-1");
      EXPECT_EQ(list_folder(disk.path()).size(), 1U) << "nothing of the failed save stays";
    }
  }
  std::printf("durability: %zu disks of 0 to 120%% of the need, %zu of them too small\n", kNumSizes, num_full);
  EXPECT_GT(num_full, kNumSizes / 2);
  EXPECT_GT(num_told, num_full / 2) << "others have no room for the folder itself";
  EXPECT_LT(num_full, kNumSizes);
}

}  // namespace
}  // namespace lora_train::run_folder
