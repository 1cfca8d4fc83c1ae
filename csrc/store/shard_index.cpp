#include "store/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "store/safetensors.h"
#include "store/torch_zip.h"

namespace tercet {
namespace {

enum class Format { safetensors, torch_zip };

struct Candidate {
  const char* name;
  Format format;
  bool index;
};

// In order of preference.
constexpr std::array kCandidates = {
    Candidate{"model.safetensors", Format::safetensors, false},
    Candidate{"model.safetensors.index.json", Format::safetensors, true},
    Candidate{"pytorch_model.bin", Format::torch_zip, false},
    Candidate{"pytorch_model.bin.index.json", Format::torch_zip, true},
};

constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;

std::unique_ptr<TensorSource> open_file(const std::string& path, Format format) {
  if (format == Format::safetensors) return std::make_unique<SafetensorsReader>(path);
  return std::make_unique<TorchZipReader>(path);
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

// Tensors of several files as one source.
class ShardedSource : public TensorSource {
 public:
  ShardedSource(const std::string& index_path, Format format) : TensorSource(index_path), format_(format) {
    const MappedFile file(index_path);
    if (file.size() > kMaxIndexBytes)
      fail_input(fmt::format("the index has {} bytes, more than {}", file.size(), kMaxIndexBytes), index_path,
                 "download the index again");
    const Json index = parse_json(file.text(), index_path);
    const Json* map = index.find("weight_map");
    if (map == nullptr || !map->is_object())
      fail_input("the index has no object \"weight_map\"", index_path, "download the index again");
    for (const auto& [name, shard] : map->as_object()) {
      if (!shard.is_string())
        fail_input(fmt::format("the index maps \"{}\" to {}, not to a file name", printable(name), shard.type_name()),
                   index_path, "download the index again");
      add_mapped(name, shard.as_string());
    }
    warn_of_unmapped();
  }

 private:
  struct Shard {
    std::unique_ptr<TensorSource> source;
    size_t mapped = 0;
  };

  void add_mapped(const std::string& name, const std::string& file) {
    Shard& shard = open_shard(file);
    const TensorInfo* info = shard.source->find(name);
    if (info == nullptr)
      fail_input(fmt::format("the tensor \"{}\" is not in {}, where the index says it is", printable(name), file),
                 path(), "download the model again");
    add(*info);
    shard.mapped += 1;
    owners_.push_back(shard.source.get());
  }

  Shard& open_shard(const std::string& file) {
    if (const auto found = shards_.find(file); found != shards_.end()) return found->second;
    if (!is_plain_file_name(file))
      fail_input(fmt::format("the index names the shard \"{}\", which is not a plain file name", printable(file)),
                 path(), "download the index again");
    if (shards_.size() == kMaxShards)
      fail_input(fmt::format("the index names more than {} shards", kMaxShards), path(), "download the index again");
    const std::string shard_path = (std::filesystem::path(path()).parent_path() / file).string();
    if (!std::filesystem::exists(shard_path))
      fail_input(fmt::format("the shard {} is missing", file), path(), "download the model again");
    return shards_.emplace(file, Shard{open_file(shard_path, format_), 0}).first->second;
  }

  void warn_of_unmapped() const {
    for (const auto& [file, shard] : shards_) {
      const TensorSource* source = shard.source.get();
      const auto& infos = source->tensors();
      const auto extra = std::find_if(infos.begin(), infos.end(),
                                      [&](const TensorInfo& info) { return !is_mapped(info.name, source); });
      if (extra != infos.end())
        log::warn("{}: {} tensors of {} are not in the index and are not read, {} first", path(),
                  infos.size() - shard.mapped, file, extra->name);
    }
  }

  bool is_mapped(const std::string& name, const TensorSource* source) const {
    const TensorInfo* info = find(name);
    return info != nullptr && owners_[static_cast<size_t>(info - tensors().data())] == source;
  }

  void do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const override {
    owners_[index]->read(tensors()[index].name, dtype, first, count, target);
  }

  Format format_;
  std::map<std::string, Shard> shards_;
  std::vector<const TensorSource*> owners_;
};

}  // namespace

std::unique_ptr<TensorSource> open_weights(const std::string& folder) {
  std::vector<const Candidate*> present;
  std::string names;
  for (const Candidate& candidate : kCandidates) {
    if (std::filesystem::exists(std::filesystem::path(folder) / candidate.name)) present.push_back(&candidate);
    names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (present.empty())
    fail_input("no weights in the folder", folder,
               fmt::format("give a Hugging Face model folder with one of {}", names));
  const Candidate& chosen = *present.front();
  const std::string path = (std::filesystem::path(folder) / chosen.name).string();
  for (size_t i = 1; i < present.size(); ++i)
    log::info("{}: reading {}; {} is not read", folder, chosen.name, present[i]->name);
  if (chosen.index) return std::make_unique<ShardedSource>(path, chosen.format);
  return open_file(path, chosen.format);
}

}  // namespace tercet
