// Changes that a record of calls makes, and the trees that a crash may leave of them.
#include "file_model.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "folder_test.hpp"

namespace trireme::test {

namespace fs = std::filesystem;

using Kind = Call::Kind;

Tree Tree::Of(const std::string& folder) {
  Tree tree;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      tree.items[name] = {'l', fs::read_symlink(entry.path()).string()};
    } else if (entry.is_directory()) {
      tree.items[name] = {'d', {}};
    } else {
      tree.items[name] = {'f', ReadBytes(entry.path())};
    }
  }
  return tree;
}

void Tree::Make(const std::string& folder) const {
  for (const auto& [name, item] : items) {
    const std::string path = folder + "/" + name;
    if (item.kind == 'd') {
      fs::create_directory(path);
    } else if (item.kind == 'l') {
      fs::create_symlink(item.text, path);
    } else {
      std::ofstream(path, std::ios::binary) << item.text;
    }
  }
}

std::string Tree::Key() const {
  std::string key;
  for (const auto& [name, item] : items) {
    key += name + '\0' + item.kind + std::to_string(item.text.size()) + ':' + item.text;
  }
  return key;
}

std::string Tree::Describe() const {
  std::string text;
  for (const auto& [name, item] : items) {
    text += "    " + name;
    if (item.kind == 'l') text += " -> " + item.text;
    if (item.kind == 'd') text += "/";
    if (item.kind == 'f') {
      const auto zeros =
          static_cast<std::size_t>(std::count(item.text.begin(), item.text.end(), 0));
      text += " (" + std::to_string(item.text.size()) + " bytes, " + std::to_string(zeros) +
              " of them zero)";
    }
    text += "\n";
  }
  return text;
}

FileModel::FileModel(const Tree& start, const std::vector<Call>& calls) {
  Add('d');
  for (const auto& [path, item] : start.items) {
    const int object = Add(item.kind, item.text);
    const Entry at = Find(path);
    now_[static_cast<std::size_t>(at.folder)].names[at.name] = object;
  }
  start_ = now_;
  for (const Call& call : calls) Apply(call, calls_++);
}

int FileModel::Add(char kind, const std::string& text) {
  now_.push_back({kind, text, {}});
  start_.push_back(now_.back());
  return static_cast<int>(now_.size()) - 1;
}

FileModel::Entry FileModel::Find(const std::string& path) const {
  Entry entry{0, {}, 0};
  std::istringstream parts(path);
  for (std::string name; std::getline(parts, name, '/');) {
    if (entry.object < 0 || now_[static_cast<std::size_t>(entry.object)].kind != 'd') {
      throw std::runtime_error("the record names " + path + ", whose folder it never made");
    }
    const auto& names = now_[static_cast<std::size_t>(entry.object)].names;
    const auto found = names.find(name);
    entry = {entry.object, name, found == names.end() ? -1 : found->second};
  }
  return entry;
}

void FileModel::ApplyEntries(const std::vector<Entry>& entries, Objects& objects) {
  for (const Entry& entry : entries) {
    auto& names = objects[static_cast<std::size_t>(entry.folder)].names;
    if (entry.object < 0) {
      names.erase(entry.name);
    } else {
      names[entry.name] = entry.object;
    }
  }
}

void FileModel::ChangeEntries(std::size_t index, std::vector<Entry> entries) {
  ApplyEntries(entries, now_);
  Change change;
  change.call = index;
  change.entries = std::move(entries);
  changes_.push_back(std::move(change));
}

void FileModel::Sync(int object, std::size_t index) {
  for (Change& change : changes_) {
    if (change.synced != kNever) continue;
    bool done = !change.entries.empty() || change.file == object;
    for (Entry& entry : change.entries) {
      entry.synced = entry.synced || entry.folder == object;
      done = done && entry.synced;
    }
    if (done) change.synced = index;
  }
}

void FileModel::Apply(const Call& call, std::size_t index) {
  Entry at = Find(call.path);
  const auto require = [&](const Entry& entry, const std::string& path) {
    if (entry.object >= 0) return;
    throw std::runtime_error(std::string("the record has a ") + NameOf(call.kind) + " of " + path +
                             ", which it never made");
  };
  switch (call.kind) {
    case Kind::kCreate:
    case Kind::kMakeFolder:
    case Kind::kSymlink:
      at.object = Add(call.kind == Kind::kCreate    ? 'f'
                      : call.kind == Kind::kSymlink ? 'l'
                                                    : 'd',
                      call.other);
      return ChangeEntries(index, {at});
    case Kind::kLink: {
      const Entry from = Find(call.other);
      require(from, call.other);
      at.object = from.object;
      return ChangeEntries(index, {at});
    }
    case Kind::kRename: {
      require(at, call.path);
      Entry to = Find(call.other);
      to.object = std::exchange(at.object, -1);
      return ChangeEntries(index, {at, to});
    }
    case Kind::kRemove:
      require(at, call.path);
      at.object = -1;
      return ChangeEntries(index, {at});
    case Kind::kSync:
      require(at, call.path);
      return Sync(at.object, index);
    default:
      require(at, call.path);
  }
  Change change;
  change.call = index;
  change.file = at.object;
  change.is_write = call.kind == Kind::kWrite;
  change.offset = call.offset;
  change.data = call.data;
  changes_.push_back(std::move(change));
}

std::vector<int> FileModel::Limits(std::size_t calls) const {
  std::vector<int> limits;
  for (const Change& change : changes_) {
    if (change.call >= calls || change.synced < calls) continue;
    limits.push_back(change.is_write ? 4 : 2);
  }
  return limits;
}

void FileModel::ApplyContent(const Change& change, int choice, std::string& text) {
  if (choice == 0) return;
  const auto offset = static_cast<std::size_t>(change.offset);
  if (!change.is_write) {
    text.resize(offset);
    return;
  }
  const std::size_t size = choice == 2 ? change.data.size() / 2 : change.data.size();
  if (text.size() < offset + size) text.resize(offset + size);
  if (choice != 3) text.replace(offset, size, change.data, 0, size);
}

bool FileModel::List(const Objects& objects, int folder, const std::string& prefix,
                     std::vector<int>& uses, Tree& tree) {
  for (const auto& [name, index] : objects[static_cast<std::size_t>(folder)].names) {
    const Object& object = objects[static_cast<std::size_t>(index)];
    tree.items[prefix + name] = {object.kind, object.text};
    if (object.kind != 'd') continue;
    if (++uses[static_cast<std::size_t>(index)] > 1) return false;
    if (!List(objects, index, prefix + name + "/", uses, tree)) return false;
  }
  return true;
}

Tree FileModel::After(std::size_t calls, const std::vector<int>& choices, bool& sane) const {
  Objects objects = start_;
  std::size_t at = 0;
  for (const Change& change : changes_) {
    if (change.call >= calls) break;
    const int choice = change.synced < calls ? 1 : choices.at(at++);
    if (change.entries.empty()) {
      ApplyContent(change, choice, objects[static_cast<std::size_t>(change.file)].text);
    } else if (choice != 0) {
      ApplyEntries(change.entries, objects);
    }
  }
  Tree tree;
  std::vector<int> uses(objects.size());
  sane = List(objects, 0, {}, uses, tree);
  return tree;
}

}  // namespace trireme::test
