// Model of a file system that keeps what POSIX promises and nothing more: a file's data and size
// last once the file is synced, an entry of a folder once the folder is synced. Whatever is not
// synced yet may or may not be there after a crash, each change by itself.
#ifndef TRIREME_TEST_FAULT_FILE_MODEL_HPP_
#define TRIREME_TEST_FAULT_FILE_MODEL_HPP_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "call_record.hpp"

namespace trireme::test {

// Contents of a folder: files, links and folders by relative path, a parent before its children.
struct Tree {
  struct Item {
    char kind = 'f';   // file, folder (d) or link (l)
    std::string text;  // a file's data, a link's target
    bool operator==(const Item&) const = default;
  };
  std::map<std::string, Item> items;

  static Tree Of(const std::string& folder);   // contents of a folder
  void Make(const std::string& folder) const;  // into an empty folder
  std::string Key() const;                     // equal for equal trees only
  std::string Describe() const;                // a line for each item
  bool operator==(const Tree&) const = default;
};

// Changes of objects by the calls of a record, in order.
class FileModel {
 public:
  // start: everything in it is on the disk. Throws std::runtime_error for a call on an object that
  // neither it nor the calls made.
  FileModel(const Tree& start, const std::vector<Call>& calls);

  // A number below the limit for each change that a crash after the first `calls` calls may lose:
  // 0 lost, 1 kept; of a write also 2: only its first half, 3: only the length that it gave.
  std::vector<int> Limits(std::size_t calls) const;
  // Tree after that crash. choices: one for each of Limits(calls). Sets `sane` to false for a
  // folder in two places, which no file system makes of these calls.
  Tree After(std::size_t calls, const std::vector<int>& choices, bool& sane) const;
  std::size_t Calls() const { return calls_; }

 private:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  struct Entry {
    int folder = 0;
    std::string name;
    int object = -1;      // -1: no such entry any more
    bool synced = false;  // the folder was synced since
  };
  struct Change {
    std::size_t call = 0;         // index of the call that made it
    std::size_t synced = kNever;  // index of the call that made it last
    // Of entries, all together:
    std::vector<Entry> entries;
    // Of a file's content, where there are no entries:
    int file = -1;
    bool is_write = false;
    std::int64_t offset = 0;  // of a write; else the new size
    std::string data;
  };
  struct Object {
    char kind = 'd';
    std::string text;                  // before the first call
    std::map<std::string, int> names;  // of a folder
  };
  using Objects = std::vector<Object>;

  int Add(char kind, const std::string& text = {});
  void Apply(const Call& call, std::size_t index);
  void Sync(int object, std::size_t index);
  Entry Find(const std::string& path) const;  // as all calls so far left it
  void ChangeEntries(std::size_t index, std::vector<Entry> entries);
  static void ApplyEntries(const std::vector<Entry>& entries, Objects& objects);
  static void ApplyContent(const Change& change, int choice, std::string& text);
  static bool List(const Objects& objects, int folder, const std::string& prefix,
                   std::vector<int>& uses, Tree& tree);

  Objects start_;  // objects made later have no names
  Objects now_;    // after the calls so far
  std::vector<Change> changes_;
  std::size_t calls_ = 0;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_FAULT_FILE_MODEL_HPP_
