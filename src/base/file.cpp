#include "lora_train/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"

namespace lora_train {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  const int code = errno;
  throw IoError(path.string(), what + ": " + std::strerror(code));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  static thread_local std::random_device device;
  auto name = ".tmp-" + path.filename().string() + "-" + std::to_string(::getpid()) + "-" + std::to_string(device());
  return path.parent_path() / name;
}

}  // namespace

FileReader::FileReader(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) fail(path_, "cannot open");
}

FileReader::~FileReader() { ::close(fd_); }

std::size_t FileReader::read(char* buffer, std::size_t size) {
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t got = ::read(fd_, buffer + filled, size - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot read");
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

FileHash hash_file(const std::filesystem::path& path) {
  FileReader file(path);
  Hasher hasher;
  FileHash out;
  std::string buffer(1 << 20, '\0');
  for (std::size_t got = buffer.size(); got == buffer.size(); out.num_bytes += got) {
    got = file.read(buffer.data(), buffer.size());
    hasher.update({buffer.data(), got});
  }
  out.hash = hasher.hex();
  return out;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFileWriter writer(path, bytes.size());
  writer.write(bytes);
  writer.commit();
}

AtomicFileWriter::AtomicFileWriter(std::filesystem::path path, std::size_t expected_bytes)
    : path_(std::move(path)), temporary_(temporary_sibling(path_)) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path_, "cannot create");
  if (expected_bytes == 0) return;
  int code = 0;
  do {
    code = ::posix_fallocate(fd_, 0, static_cast<off_t>(expected_bytes));
  } while (code == EINTR);
  if (code != 0 && code != EOPNOTSUPP && code != EINVAL) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
    fd_ = -1;
    errno = code;
    fail(path_, "cannot reserve " + std::to_string(expected_bytes) + " bytes");
  }
}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFileWriter::write(std::string_view bytes) {
  if (write_all(fd_, bytes) != bytes.size()) fail(path_, "cannot write");
}

void AtomicFileWriter::commit() {
  const off_t end = ::lseek(fd_, 0, SEEK_CUR);
  if (end < 0 || ::ftruncate(fd_, end) != 0) fail(path_, "cannot set the length");
  if (::fsync(fd_) != 0) fail(path_, "cannot sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot rename into place");
  ::close(fd_);
  fd_ = -1;
  sync_folder(path_.parent_path());
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

void sync_folder(const std::filesystem::path& folder) {
  const auto name = folder.empty() ? std::filesystem::path(".") : folder;
  const FileDescriptor fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || (::fsync(fd.get()) != 0 && errno != EINVAL)) fail(name, "cannot sync the folder");
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(path, "cannot open");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, "cannot read the size");
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    fail(path, "cannot read");
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (map == MAP_FAILED) fail(path, "cannot map into memory");
  data_ = {static_cast<const char*>(map), [size = size_](const char* data) {
             ::munmap(const_cast<char*>(data), size);
           }};
}

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + bytes) / page * page;
  if (begin < end) ::madvise(const_cast<char*>(data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace lora_train
