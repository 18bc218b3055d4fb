#include "lora_train/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file_ops.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train {
namespace {

inline constexpr int kMaxInterruptions = 1000;

/// Repeats a call that a signal interrupts, but not forever: endless interruptions are an error too.
template <typename Call>
auto retry_interrupted(const Call& call) {
  auto result = call();
  for (int i = 0; i < kMaxInterruptions && result < 0 && errno == EINTR; ++i) result = call();
  return result;
}

/// `what` says what could not be done if the call returns -1.
template <typename Call>
auto checked(const std::filesystem::path& path, const char* what, const Call& call) {
  const auto result = retry_interrupted(call);
  if (result < 0) fail_with(path, what);
  return result;
}

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  static thread_local std::random_device device;
  auto name = fmt::format(".tmp-{}-{}-{}", path.filename().string(), ::getpid(), device());
  return path.parent_path() / name;
}

}  // namespace

int close_file(int fd) { return file_ops().close(fd); }

void fail_with(const std::filesystem::path& path, const std::string& what, int code) {
  throw IoError(path.string(), "{}: {}", what, std::strerror(code));
}

FileReader::FileReader(std::filesystem::path path)
    : path_(std::move(path)),
      file_(checked(path_, "cannot open", [&] { return file_ops().open(path_.string(), O_RDONLY); })) {}

std::size_t FileReader::read(char* buffer, std::size_t size) {
  std::size_t filled = 0;
  while (filled < size) {
    const auto got =
        checked(path_, "cannot read", [&] { return file_ops().read(file_.get(), buffer + filled, size - filled); });
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

std::string read_file(const std::filesystem::path& path) {
  FileReader file(path);
  std::string bytes;
  std::error_code error;
  if (const auto size = std::filesystem::file_size(path, error); !error) bytes.reserve(size);
  char buffer[1 << 16];
  for (;;) {
    const std::size_t got = file.read(buffer, sizeof buffer);
    bytes.append(buffer, got);
    if (got < sizeof buffer) return bytes;
  }
}

std::string read_start(const std::filesystem::path& path, std::size_t max_bytes) {
  FileReader file(path);
  std::string bytes(max_bytes, '\0');
  bytes.resize(file.read(bytes.data(), bytes.size()));
  return bytes;
}

FileHash hash_file(const std::filesystem::path& path, const std::function<void()>& after_each_mib) {
  FileReader file(path);
  Hasher hasher;
  FileHash out;
  constexpr std::size_t kPiece = 1 << 20;
  const std::unique_ptr<char[]> buffer(new char[kPiece]);  // not zeroed first
  for (std::size_t got = kPiece; got == kPiece; out.num_bytes += got) {
    got = file.read(buffer.get(), kPiece);
    hasher.update({buffer.get(), got});
    if (after_each_mib) after_each_mib();
  }
  out.hash = hasher.hex();
  return out;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFileWriter writer(path, bytes.size());
  writer.write(bytes);
  writer.commit();
}

FileWriter::FileWriter(std::filesystem::path path, std::size_t expected_bytes, std::filesystem::path shown)
    : path_(std::move(path)), shown_(shown.empty() ? path_ : std::move(shown)), expected_bytes_(expected_bytes) {
  fd_ = retry_interrupted([&] { return file_ops().open(path_.string(), O_WRONLY | O_CREAT | O_EXCL); });
  if (fd_ < 0) fail_with(shown_, errno == ENOENT ? "cannot create: its folder does not exist" : "cannot create", errno);
  try {
    if (expected_bytes_ > 0) reserve();
  } catch (...) {
    file_ops().close(fd_);
    file_ops().unlink(path_.string());
    throw;
  }
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  file_ops().close(fd_);
  file_ops().unlink(path_.string());
}

void FileWriter::reserve() {
  if (retry_interrupted([&] { return file_ops().allocate(fd_, expected_bytes_); }) == 0) return;
  const int code = errno;
  if (code == EOPNOTSUPP || code == ENOSYS || code == EINVAL) return;  // the file system cannot
  std::string what = "cannot reserve " + format_bytes(static_cast<double>(expected_bytes_));
  std::uint64_t bytes = 0;
  if (file_ops().free_bytes(path_.parent_path().string(), bytes) == 0) {
    what += fmt::format(" ({} are free)", format_bytes(static_cast<double>(bytes)));
  }
  fail_with(shown_, what, code);
}

void FileWriter::write(std::string_view bytes) {
  hasher_.update(bytes);
  num_written_ += bytes.size();
  while (!bytes.empty()) {
    const auto put = checked(shown_, "cannot write", [&] { return file_ops().write(fd_, bytes.data(), bytes.size()); });
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

FileHash FileWriter::finish() {
  if (num_written_ < expected_bytes_) {
    checked(shown_, "cannot set the length", [&] { return file_ops().truncate(fd_, num_written_); });
  }
  checked(shown_, "cannot sync", [&] { return file_ops().sync(fd_); });
  const int fd = std::exchange(fd_, -1);
  // After EINTR the descriptor is closed too; what was synced is on the disk.
  if (file_ops().close(fd) != 0 && errno != EINTR) {
    const int code = errno;
    file_ops().unlink(path_.string());
    fail_with(shown_, "cannot close", code);
  }
  return {num_written_, hasher_.hex()};
}

AtomicFileWriter::AtomicFileWriter(std::filesystem::path path, std::size_t expected_bytes)
    : path_(std::move(path)), writer_(temporary_sibling(path_), expected_bytes, path_) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (is_finished_ && !is_committed_) file_ops().unlink(writer_.path().string());
}

void AtomicFileWriter::commit() {
  writer_.finish();
  is_finished_ = true;
  rename_path(writer_.path(), path_);
  is_committed_ = true;
  sync_folder(path_.parent_path());
}

void sync_file(const std::filesystem::path& path) {
  const FileDescriptor file(
      checked(path, "cannot open to sync", [&] { return file_ops().open(path.string(), O_RDONLY); }));
  checked(path, "cannot sync", [&] { return file_ops().sync(file.get()); });
}

std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) break;
    done += static_cast<std::size_t>(put);
  }
  return done;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path), is_mapped_(true) {
  const Descriptor file(checked(path, "cannot open", [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  struct stat info {};
  int code = ::fstat(file.get(), &info) == 0 ? 0 : errno;
  if (code == 0 && S_ISDIR(info.st_mode)) code = EISDIR;
  size_ = code == 0 ? static_cast<std::size_t>(info.st_size) : 0;
  void* map = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (map == MAP_FAILED) code = errno;
  if (code != 0) fail_with(path, "cannot map into memory", code);
  if (map == nullptr) return;
  data_ = {static_cast<const char*>(map),
           [size = size_](const char* data) { ::munmap(const_cast<char*>(data), size); }};
}

MappedFile::MappedFile(std::filesystem::path path, std::string bytes) : path_(std::move(path)) {
  const auto shared = std::make_shared<const std::string>(std::move(bytes));
  data_ = {shared, shared->data()};
  size_ = shared->size();
}

MappedFile MappedFile::read(const std::filesystem::path& path) { return {path, read_file(path)}; }

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  if (!is_mapped_) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + bytes) / page * page;
  if (begin < end) ::madvise(const_cast<char*>(data()) + begin, end - begin, MADV_DONTNEED);
}

std::filesystem::path user_folder(const char* variable, const std::filesystem::path& folder) {
  const char* const named = std::getenv(variable);
  const char* const home = std::getenv("HOME");
  if (named != nullptr && std::filesystem::path(named).is_absolute())
    return std::filesystem::path(named) / "lora-train";
  return home == nullptr || *home == 0 ? std::filesystem::path() : std::filesystem::path(home) / folder / "lora-train";
}

PathKind path_kind(const std::filesystem::path& path) {
  PathKind kind = PathKind::kNone;
  checked(path, "cannot inspect", [&] { return file_ops().kind(path.string(), kind); });
  return kind;
}

std::vector<std::string> list_folder(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  checked(folder, "cannot list the folder", [&] {
    names.clear();
    return file_ops().list(folder.string(), names);
  });
  std::sort(names.begin(), names.end());
  return names;
}

void make_folder(const std::filesystem::path& folder) {
  checked(folder, "cannot create the folder", [&] { return file_ops().make_folder(folder.string()); });
}

void make_folders(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  const std::filesystem::path parent = folder.parent_path();
  if (!folder.has_filename()) return parent == folder ? void() : make_folders(parent);  // "runs/first/"
  if (path_kind(folder) == PathKind::kNone) {
    make_folders(parent);
    const int result = retry_interrupted([&] { return file_ops().make_folder(folder.string()); });
    if (result < 0 && errno != EEXIST) fail_with(folder, "cannot create the folder", errno);  // EEXIST: another run's
  }
  try {
    sync_folder(parent);
  } catch (const IoError& error) {
    log_warning(std::string(error.what()) + "; a power loss may lose the new folder");
  }
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  checked(to, "cannot rename into place", [&] { return file_ops().rename(from.string(), to.string()); });
}

bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other) {
  if (retry_interrupted([&] { return file_ops().exchange(one.string(), other.string()); }) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_with(other, "cannot rename into place", errno);
}

void remove_tree(const std::filesystem::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kNone) return;
  if (kind != PathKind::kFolder) {
    checked(path, "cannot delete", [&] { return file_ops().unlink(path.string()); });
    return;
  }
  for (const auto& name : list_folder(path)) remove_tree(path / name);
  remove_folder(path);
}

void remove_folder(const std::filesystem::path& folder) {
  checked(folder, "cannot delete the folder", [&] { return file_ops().remove_folder(folder.string()); });
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const FileDescriptor file(checked(name, "cannot open the folder to sync it",
                                    [&] { return file_ops().open(name.string(), O_RDONLY | O_DIRECTORY); }));
  // EINVAL: a file system whose folders cannot be synced.
  if (retry_interrupted([&] { return file_ops().sync(file.get()); }) != 0 && errno != EINVAL) {
    fail_with(name, "cannot sync the folder", errno);
  }
}

const char* why_not_file_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.find_first_of("/\\") != std::string_view::npos) return "holds a path separator";
  if (name.find("..") != std::string_view::npos) return "holds \"..\"";
  if (name.front() == '-') return "starts with a dash";
  if (name.front() == '.') return "starts with a dot";
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "holds a control character";
  }
  return nullptr;
}

}  // namespace lora_train
