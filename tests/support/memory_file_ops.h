// A file system in memory that knows what a power loss may leave of it.
//
// What is promised: fsync of a file makes its bytes durable, fsync of a folder the names in it. All else that was done
// since may be on the disk or not, each operation for itself and in any order; a write may be there in part. A rename
// within a folder is one operation.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lora_train/base/file_ops.h"

namespace lora_train::testing_support {

class MemoryFileOps : public FileOps {
 public:
  MemoryFileOps() : nodes_(1) { nodes_[0].is_folder = true; }

  /// Called after every operation that changes something.
  std::function<void()> after_change;

  /// A disk as it may be found after the power was lost now.
  MemoryFileOps after_power_loss(std::mt19937_64& random) const {
    MemoryFileOps found;
    found.nodes_.assign(nodes_.begin(), nodes_.end());
    for (Node& node : found.nodes_) node.lose_power(random);
    return found;
  }

  /// The bytes of a file, to be damaged. Null when there is none.
  std::string* bytes(const std::string& path) {
    const int node = find(path);
    return node < 0 ? nullptr : &nodes_[static_cast<std::size_t>(node)].data;
  }

  int open(const std::string& path, int flags) override {
    int node = find(path);
    if (node >= 0 && (flags & O_EXCL) != 0) return refuse(EEXIST);
    if (node < 0) {
      if ((flags & O_CREAT) == 0 || parent_of(path) < 0) return refuse(ENOENT);
      node = add_node(path, false);
    }
    descriptors_.push_back({node, 0});
    return static_cast<int>(descriptors_.size()) - 1;
  }
  std::ptrdiff_t read(int fd, void* buffer, std::size_t size) override {
    auto& [node, offset] = at(fd);
    const std::string& data = nodes_[static_cast<std::size_t>(node)].data;
    const std::size_t count = std::min(size, data.size() - std::min(data.size(), offset));
    std::memcpy(buffer, data.data() + offset, count);
    offset += count;
    return static_cast<std::ptrdiff_t>(count);
  }
  std::ptrdiff_t write(int fd, const void* bytes, std::size_t size) override {
    auto& [node, offset] = at(fd);
    change_file(node, {Change::kWrite, offset, std::string(static_cast<const char*>(bytes), size)});
    offset += size;
    return static_cast<std::ptrdiff_t>(size);
  }
  int allocate(int fd, std::size_t size) override {
    const int node = at(fd).node;
    if (nodes_[static_cast<std::size_t>(node)].data.size() < size) change_file(node, {Change::kResize, size, ""});
    return 0;
  }
  int truncate(int fd, std::size_t size) override {
    change_file(at(fd).node, {Change::kResize, size, ""});
    return 0;
  }
  int sync(int fd) override {
    nodes_[static_cast<std::size_t>(at(fd).node)].sync();
    return done();
  }
  int close(int) override { return 0; }
  int rename(const std::string& from, const std::string& to) override {
    const int node = find(from);
    if (node < 0) return refuse(ENOENT);
    const int replaced = find(to);
    if (replaced >= 0 && nodes_[static_cast<std::size_t>(replaced)].is_folder) return refuse(ENOTEMPTY);
    return change_folder(to, {{name_of(from), -1}, {name_of(to), node}});
  }
  int exchange(const std::string& one, const std::string& other) override {
    const int a = find(one), b = find(other);
    if (a < 0 || b < 0) return refuse(ENOENT);
    return change_folder(one, {{name_of(one), b}, {name_of(other), a}});
  }
  int unlink(const std::string& path) override {
    const int node = find(path);
    if (node < 0) return refuse(ENOENT);
    if (nodes_[static_cast<std::size_t>(node)].is_folder) return refuse(EISDIR);
    return change_folder(path, {{name_of(path), -1}});
  }
  int make_folder(const std::string& path) override {
    if (find(path) >= 0) return refuse(EEXIST);
    if (parent_of(path) < 0) return refuse(ENOENT);
    add_node(path, true);
    return 0;
  }
  int remove_folder(const std::string& path) override {
    const int node = find(path);
    if (node < 0) return refuse(ENOENT);
    if (!nodes_[static_cast<std::size_t>(node)].names.empty()) return refuse(ENOTEMPTY);
    return change_folder(path, {{name_of(path), -1}});
  }
  int list(const std::string& path, std::vector<std::string>& names) override {
    const int node = find(path);
    if (node < 0) return refuse(ENOENT);
    for (const auto& [name, child] : nodes_[static_cast<std::size_t>(node)].names) names.push_back(name);
    return 0;
  }
  int kind(const std::string& path, PathKind& kind) override {
    const int node = find(path);
    kind = node < 0                                           ? PathKind::kNone
           : nodes_[static_cast<std::size_t>(node)].is_folder ? PathKind::kFolder
                                                              : PathKind::kFile;
    return 0;
  }
  int free_bytes(const std::string&, std::uint64_t& bytes) override {
    bytes = 1U << 30;
    return 0;
  }

 private:
  struct Change {
    enum Kind { kWrite, kResize } kind;
    std::size_t place;  ///< offset, or the new size
    std::string bytes;
  };
  using NameChange = std::map<std::string, int>;  ///< name -> node; -1 takes the name away

  struct Node {
    bool is_folder = false;
    std::string data, durable_data;
    std::map<std::string, int> names, durable_names;
    std::vector<Change> changes;  ///< not synced
    std::vector<NameChange> name_changes;

    void sync() {
      durable_data = data;
      durable_names = names;
      changes.clear();
      name_changes.clear();
    }
    void lose_power(std::mt19937_64& random) {
      data = durable_data;
      names = durable_names;
      for (Change change : picked(changes, random)) {
        if (change.kind == Change::kWrite && random() % 4 == 0)
          change.bytes.resize(random() % (change.bytes.size() + 1));
        apply(change, data);
      }
      for (const NameChange& change : picked(name_changes, random)) apply(change, names);
      sync();
    }
  };

  struct Descriptor {
    int node;
    std::size_t offset;
  };

  /// Some of them; in any order, all or none more often than chance has it.
  template <typename Item>
  static std::vector<Item> picked(const std::vector<Item>& all, std::mt19937_64& random) {
    const auto mode = random() % 4;
    std::vector<Item> some;
    for (const Item& item : all) {
      if (mode == 0 || (mode > 1 && random() % 2 == 0)) some.push_back(item);
    }
    if (random() % 2 == 0) std::shuffle(some.begin(), some.end(), random);
    return some;
  }

  static void apply(const Change& change, std::string& data) {
    if (change.kind == Change::kResize) return data.resize(change.place);
    data.resize(std::max(data.size(), change.place + change.bytes.size()));
    data.replace(change.place, change.bytes.size(), change.bytes);
  }
  static void apply(const NameChange& change, std::map<std::string, int>& names) {
    for (const auto& [name, node] : change) {
      if (node < 0) names.erase(name);
    }
    for (const auto& [name, node] : change) {
      if (node >= 0) names[name] = node;
    }
  }

  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  int parent_of(const std::string& path) const { return find(path.substr(0, path.rfind('/'))); }

  int find(const std::string& path) const {
    int node = 0;
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty()) continue;
      const auto& names = nodes_[static_cast<std::size_t>(node)].names;
      const auto found = names.find(name);
      if (found == names.end()) return -1;
      node = found->second;
    }
    return node;
  }

  int add_node(const std::string& path, bool is_folder) {
    nodes_.push_back({});
    nodes_.back().is_folder = is_folder;
    const int node = static_cast<int>(nodes_.size()) - 1;
    change_folder(path, {{name_of(path), node}});
    return node;
  }

  int change_folder(const std::string& path, const NameChange& change) {
    Node& parent = nodes_[static_cast<std::size_t>(parent_of(path))];
    apply(change, parent.names);
    parent.name_changes.push_back(change);
    return done();
  }
  void change_file(int number, Change change) {
    Node& node = nodes_[static_cast<std::size_t>(number)];
    apply(change, node.data);
    node.changes.push_back(std::move(change));
    done();
  }

  Descriptor& at(int fd) { return descriptors_[static_cast<std::size_t>(fd)]; }
  int done() {
    if (after_change) after_change();
    return 0;
  }
  static int refuse(int code) {
    errno = code;
    return -1;
  }

  std::vector<Node> nodes_;  ///< 0 is the root
  std::vector<Descriptor> descriptors_;
};

}  // namespace lora_train::testing_support
