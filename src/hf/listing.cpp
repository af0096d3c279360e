// Lists the tensors of model folders, copies companions, and creates folders.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostIndexBytes = std::int64_t{100} << 20;
constexpr std::int64_t kMostListingBytes = std::int64_t{256} << 20;
constexpr std::size_t kMostDimensions = 32;
constexpr const char* kParameters = "total_parameters";

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The contents of kIndexFile.
struct Index {
  std::map<std::string, std::string> files;  // file of each tensor
  std::int64_t parameters = 0;
};

// total_parameters, which newer versions of transformers write; 0: not given.
std::int64_t CountedParameters(const nlohmann::json& json, const std::string& path) {
  if (!json.contains("metadata") || !json.at("metadata").is_object()) return 0;
  const deck::JsonObject metadata(json.at("metadata"), path + ": metadata");
  return metadata.Has(kParameters) ? metadata.Integer(kParameters) : 0;
}

Index ReadIndex(const std::string& path) {
  RefuseForeignFile(path);
  const nlohmann::json json =
      deck::ParseJson(ReadText(path, kMostIndexBytes), path, kMostIndexBytes);
  const deck::JsonObject index(json, path);
  static_cast<void>(index.Object("weight_map"));
  const nlohmann::json& list = json.at("weight_map");
  const deck::JsonObject map(list, path + ": weight_map");
  Index found{.files = {}, .parameters = CountedParameters(json, path)};
  for (const auto& [tensor, value] : list.items()) {
    const std::string& file = map.Text(tensor);
    const bool plain = file.find('/') == std::string::npos && file.ends_with(".safetensors");
    if (!plain) {
      throw InputError(
          fmt::format("{}: weight_map: {}: the name of a safetensors file in the same "
                      "folder expected, {} found",
                      path, deck::Shown(tensor), deck::Brief(value)));
    }
    found.files[tensor] = file;
  }
  return found;
}

// Throws unless the index and the files agree on every tensor.
void CheckIndex(const std::string& path, std::map<std::string, std::string> index,
                const Listing& listing) {
  for (const ListedFile& file : listing.files) {
    for (const checkpoint::StoredTensor& tensor : file.contents.tensors) {
      const auto found = index.find(tensor.name);
      if (found == index.end()) {
        throw InputError(fmt::format("{}: weight_map lacks {}, which {} holds", path,
                                     deck::Shown(tensor.name), file.name));
      }
      if (found->second != file.name) {
        throw InputError(fmt::format("{}: weight_map: {} in {} expected, but {} holds it", path,
                                     deck::Shown(tensor.name), deck::Shown(found->second),
                                     file.name));
      }
      index.erase(found);
    }
  }
  if (index.empty()) return;
  throw InputError(fmt::format("{}: weight_map: {} in {} expected, but it is not there", path,
                               deck::Shown(index.begin()->first),
                               deck::Shown(index.begin()->second)));
}

}  // namespace

Error NotAModel(const std::string& folder, const std::string& lacks) {
  // A kind of folder, recognised by a file's name. says: error text with folder {0} and file {1}.
  struct Sign {
    bool (*is)(const std::string& name);
    const char *says, *hint;
  };
  static const std::array<Sign, 5> signs = {
      {{[](const std::string& name) { return name.starts_with("adapter_"); },
        "{0}: is an adapter (LoRA or the like: {1}), not a model",
        "Merge it into its model in Python: AutoPeftModelForCausalLM.from_pretrained(FOLDER)"
        ".merge_and_unload().save_pretrained(NEW)."},
       {[](const std::string& name) {
          return name.starts_with("model-") && name.ends_with(".safetensors");
        },
        "{0}: its weights lie in several files ({1}), but model.safetensors.index.json is missing",
        "It says which file holds which tensor: fetch it, too."},
       {[](const std::string& name) {
          return name.starts_with("pytorch_model") || name.ends_with(".pth") ||
                 name.ends_with(".msgpack") || name == "tf_model.h5";
        },
        "{0}: its weights are pickled or another library's ({1}), which is not read",
        "Write them anew in Python: AutoModelForCausalLM.from_pretrained(FOLDER)"
        ".save_pretrained(NEW)."},
       {[](const std::string& name) { return name.ends_with(".gguf"); },
        "{0}: holds a model in GGUF, llama.cpp's format ({1}), which is not read",
        "Take the folder with config.json and safetensors that it was made from."},
       {[](const std::string& name) {
          return name.ends_with(".safetensors") && name != kSingleFile;
        },
        "{0}: holds {1}, which is not the name of a model's weights",
        "Those are model.safetensors, or several files with model.safetensors.index.json."}}};
  const std::vector<std::string> names = NamesIn(folder);
  const bool weights =
      std::ranges::count(names, kSingleFile) + std::ranges::count(names, kIndexFile) > 0;
  for (const Sign& sign : signs) {
    if (weights && &sign != &signs.front()) break;
    const auto found = std::find_if(names.begin(), names.end(), sign.is);
    if (found == names.end()) continue;
    return InputError(fmt::format(fmt::runtime(sign.says), folder, deck::Shown(*found)), sign.hint);
  }
  return InputError(fmt::format("{}: {}", folder, lacks),
                    "Name a model folder of Hugging Face with hf.path, and check that the download "
                    "is complete.");
}

Listing Inspect(const std::string& folder) {
  const auto inspect = [&](const std::string& name) {
    return ListedFile{name, checkpoint::InspectTensorFile(folder + "/" + name)};
  };
  Listing listing;
  if (IsFile(folder + "/" + kSingleFile)) {
    listing.files.push_back(inspect(kSingleFile));
    return listing;
  }
  const std::string path = folder + "/" + kIndexFile;
  if (!IsFile(path))
    throw NotAModel(folder, fmt::format("holds neither {} nor {}", kSingleFile, kIndexFile));
  const Index index = ReadIndex(path);
  listing.indexed = true;
  listing.parameters = index.parameters;
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.files) names.insert(file);
  for (const std::string& name : names) {
    if (!IsFile(folder + "/" + name)) {
      throw InputError(
          fmt::format("{}/{}: is missing, but {} names it", folder, deck::Shown(name), kIndexFile),
          "Check that the download is complete.");
    }
    listing.files.push_back(inspect(name));
  }
  CheckIndex(path, index.files, listing);
  return listing;
}

std::string ToText(const Listing& listing) {
  nlohmann::json files = nlohmann::json::array();
  for (const ListedFile& file : listing.files) {
    nlohmann::json tensors = nlohmann::json::array();
    for (const checkpoint::StoredTensor& tensor : file.contents.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor.dtype},
                         {"shape", tensor.shape},
                         {"offset", tensor.offset},
                         {"bytes", tensor.bytes}});
    }
    files.push_back({{"name", file.name},
                     {"metadata", file.contents.metadata},
                     {"bytes", file.contents.bytes},
                     {"tensors", std::move(tensors)}});
  }
  return nlohmann::json{
      {"indexed", listing.indexed}, {kParameters, listing.parameters}, {"files", std::move(files)}}
      .dump(1);
}

Listing FromText(const std::string& text, const std::string& path) {
  const nlohmann::json json = deck::ParseJson(text, path, kMostListingBytes);
  const deck::JsonObject object(json, path);
  Listing listing;
  listing.indexed = object.Truth("indexed");
  listing.parameters = object.Has(kParameters) ? object.Integer(kParameters) : 0;
  for (const nlohmann::json& each : object.List("files")) {
    const deck::JsonObject file(each, path + ": files");
    ListedFile listed{file.Text("name"), {}};
    listed.contents.bytes = file.Integer("bytes");
    if (listed.name.find('/') != std::string::npos) {
      throw InputError(
          fmt::format("{}: files: name: {} is not a plain name", path, deck::Shown(listed.name)));
    }
    static_cast<void>(file.Object("metadata"));
    const deck::JsonObject metadata(each.at("metadata"), path + ": metadata");
    for (const auto& [name, value] : each.at("metadata").items()) {
      listed.contents.metadata[name] = metadata.Text(name);
    }
    for (const nlohmann::json& one : file.List("tensors")) {
      const deck::JsonObject tensor(one, path + ": tensors");
      listed.contents.tensors.push_back({tensor.Text("name"), tensor.Text("dtype"),
                                         tensor.Integers("shape", kMostDimensions),
                                         tensor.Integer("offset"), tensor.Integer("bytes")});
    }
    listing.files.push_back(std::move(listed));
  }
  return listing;
}

std::string IndexText(const Listing& listing) {
  nlohmann::json map = nlohmann::json::object();
  std::int64_t bytes = 0;
  for (const ListedFile& file : listing.files) {
    for (const checkpoint::StoredTensor& tensor : file.contents.tensors) {
      map[tensor.name] = file.name;
      bytes += tensor.bytes;
    }
  }
  nlohmann::json metadata = {{"total_size", bytes}};
  if (listing.parameters > 0) metadata[kParameters] = listing.parameters;
  constexpr int kIndent = 2;
  return nlohmann::json{{"metadata", std::move(metadata)}, {"weight_map", std::move(map)}}.dump(
             kIndent) +
         "\n";
}

// Copying companions, and creating folders that appear complete or not at all.

namespace {

// Marks a folder that is not complete yet.
constexpr const char* kUnfinished = ".unfinished";

constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;  // limit of a companion

bool IsCompanion(const std::string& name) {
  constexpr std::array<const char*, 5> kEndings = {".json", ".txt", ".model", ".md", ".jinja"};
  constexpr std::array<const char*, 4> kBeginnings = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  if (name.ends_with(".index.json") || name == kListingFile) return false;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](const char* ending) { return name.ends_with(ending); }) ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](const char* beginning) { return name.starts_with(beginning); });
}

// Calls body(entry) for each companion in a folder. Returns the error if it cannot be listed.
template <typename Body>
std::error_code ForCompanions(const std::string& folder, const Body& body) {
  std::error_code error, ignored;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (IsCompanion(entry.path().filename().string()) && entry.is_regular_file(ignored))
      body(entry);
  }
  return error;
}

void RequireFree(const std::string& folder) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(folder, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(folder, ignored)) return;
  throw InputError(fmt::format("{}: is there already", folder),
                   "Name another folder, or move this one away.");
}

}  // namespace

void MakeFolder(const std::string& folder) {
  if (const int failure = MakeFolderDurably(folder); failure != 0) {
    throw RunError(fmt::format("{}: cannot be made: {}", folder, ErrorText(failure)));
  }
}

void WriteText(const std::string& path, const std::string& text) {
  std::error_code ignored;
  fs::remove(path, ignored);
  WriteTextDurably(path, text);
}

void CopyCompanions(const std::string& from, const std::string& to) {
  const std::error_code error = ForCompanions(from, [&](const fs::directory_entry& entry) {
    WriteText(to + "/" + entry.path().filename().string(),
              ReadText(entry.path().string(), kMostBytes));
  });
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", from, error.message()));
}

std::int64_t CompanionBytes(const std::string& folder) {
  std::int64_t bytes = 0;
  ForCompanions(folder, [&](const fs::directory_entry& entry) {
    std::error_code error;
    const std::uintmax_t size = entry.file_size(error);
    if (!error) bytes += static_cast<std::int64_t>(size);
  });
  return bytes;
}

void CopyRunPart(const std::string& from, const std::string& to) {
  const std::string source = from + "/" + kRunPart, target = to + "/" + kRunPart;
  std::error_code ignored;
  if (from.empty() || !fs::exists(source + "/" + kListingFile, ignored)) return;
  MakeFolder(target);
  CopyCompanions(source, target);
  const std::string listing = ReadText(source + "/" + kListingFile, kMostBytes);
  WriteText(target + "/" + kListingFile, listing);
}

void MakeFolderWhole(const comm::Communicator& world, const std::string& folder,
                     const std::function<void(const std::string& temporary)>& fill) {
  fs::path path = fs::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // for "out/"
  const std::string temporary = DraftName(path.string());
  std::error_code ignored;
  world.Together([&] {
    if (!world.IsRoot()) return;
    RequireFree(path.string());
    // A leftover of a killed run has the mark and is removed; anything else belongs to the user.
    std::error_code error;
    if (fs::exists(temporary + "/" + kUnfinished, ignored)) fs::remove_all(temporary, error);
    if (error) throw RunError(fmt::format("{}: cannot be removed: {}", temporary, error.message()));
    RequireFree(temporary);
    if (const int failure = MakeFolderDurably(temporary); failure != 0) {
      throw InputError(fmt::format("{}: cannot be made: {}", temporary, ErrorText(failure)));
    }
  });
  try {
    world.Together([&] {
      if (world.IsRoot()) WriteTextDurably(temporary + "/" + kUnfinished, "");
    });
    fill(temporary);
    world.Together([&] {
      if (!world.IsRoot()) return;
      fs::remove(temporary + "/" + kUnfinished);
      SyncPath(temporary);
      RenameDurably(temporary, path.string());
    });
  } catch (const AgreedError&) {  // thrown on all ranks
    if (world.IsRoot()) fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace trireme::hf
