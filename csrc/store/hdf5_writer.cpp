#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/checked.h"
#include "store/hdf5_file.h"
#include "store/hdf5_library.h"
#include "store/output_file.h"
#include "store/user_block.h"

namespace tercet {

using namespace hdf5;

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr uint64_t kSlackBytes = uint64_t{64} << 20;
constexpr uint64_t kStructureBytes = uint64_t{1} << 20;
constexpr hsize_t kMetadataBlockBytes = 64 << 10;

bool valid_key(std::string_view key) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !key.empty() && key.size() <= 255 && key != "." && key != ".." && std::all_of(key.begin(), key.end(), allowed);
}

// Checks that a tensor's name is a path of groups that HDF5 keeps as it is.
void check_path_name(const std::string& name, const std::string& where) {
  size_t begin = 0;
  int depth = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || ++depth > kMaxGroupDepth)
      fail_run(fmt::format("the tensor name \"{}\" cannot be a path in an HDF5 file", name), where,
               "use names without empty, '.' or '..' parts");
    begin = end + 1;
  }
}

}  // namespace

class Hdf5Writer::Impl {
 public:
  Impl(const std::string& path, uint64_t expected_bytes);
  ~Impl();

  void create(const TensorInfo& info);
  void write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype, const void* source);
  void set_text(const std::string& key, std::string_view text);
  void finish();

 private:
  struct Slot {
    TensorInfo info;
    uint64_t offset = 0;
    Coverage coverage;
  };

  Handle make_file() const;
  Handle make_group(hid_t parent, const char* name) const;
  void make_parent_groups(const std::string& name);
  // Creates a contiguous dataset and returns the offset of its elements in the file.
  uint64_t make_dataset(hid_t parent, const char* name, hid_t type, const std::vector<int64_t>& shape, uint64_t bytes);
  void close_library();

  OutputFile output_;
  Library library_;
  uint64_t block_bytes_;
  uint64_t stored_bytes_ = 0;
  std::optional<FileTypes> types_;
  Handle file_;
  Handle tensors_;
  Handle texts_;
  std::map<std::string, Handle> groups_;
  std::set<std::string> keys_;
  std::unordered_map<std::string, Slot> slots_;
  bool finished_ = false;
};

Hdf5Writer::Impl::Impl(const std::string& path, uint64_t expected_bytes)
    : output_(path),
      library_(Fault::run, path),
      block_bytes_(user_block_bytes(checked_add(expected_bytes + expected_bytes / 8, kSlackBytes))) {
  const LibraryGuard guard(library_lock());
  types_.emplace(library_);
  file_ = make_file();
  tensors_ = make_group(file_.get(), kTensorsGroup);
  texts_ = make_group(file_.get(), kTextsGroup);
  output_.reserve(checked_add(block_bytes_ + kStructureBytes, expected_bytes));
}

Hdf5Writer::Impl::~Impl() {
  const LibraryGuard guard(library_lock());
  groups_.clear();
  tensors_.reset();
  texts_.reset();
  file_.reset();
  types_.reset();
}

Handle Hdf5Writer::Impl::make_file() const {
  const char* action = "create the file";
  const Handle access = library_.own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, action);
  library_.check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18), action);
  library_.check(H5Pset_file_locking(access.get(), false, true), action);
  library_.check(H5Pset_meta_block_size(access.get(), kMetadataBlockBytes), action);
  library_.check(H5Pset_small_data_block_size(access.get(), 0), action);
  const Handle creation = library_.own(H5Pcreate(H5P_FILE_CREATE), H5Pclose, action);
  library_.check(H5Pset_userblock(creation.get(), block_bytes_), action);
  library_.check(H5Pset_obj_track_times(creation.get(), false), action);
  return library_.own(H5Fcreate(output_.temporary().c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose,
                      action);
}

Handle Hdf5Writer::Impl::make_group(hid_t parent, const char* name) const {
  const char* action = "create a group";
  const Handle creation = library_.own(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, action);
  library_.check(H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED), action);
  library_.check(H5Pset_obj_track_times(creation.get(), false), action);
  return library_.own(H5Gcreate2(parent, name, H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Gclose, action);
}

void Hdf5Writer::Impl::make_parent_groups(const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string group = name.substr(0, slash);
    if (slots_.contains(group))
      fail_run(fmt::format("\"{}\" is both a tensor and a group of tensors", group), output_.path(),
               "rename one of them");
    if (!groups_.contains(group)) groups_.emplace(group, make_group(tensors_.get(), group.c_str()));
  }
}

uint64_t Hdf5Writer::Impl::make_dataset(hid_t parent, const char* name, hid_t type, const std::vector<int64_t>& shape,
                                        uint64_t bytes) {
  const char* action = "create a dataset";
  const uint64_t total = checked_add(stored_bytes_, bytes);
  TERCET_REQUIRE(total + kStructureBytes <= user_block_capacity(block_bytes_),
                 "{} bytes are more than the file {} was created for", total, output_.path());
  stored_bytes_ = total;
  const Handle creation = library_.own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, action);
  library_.check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), action);
  library_.check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), action);
  library_.check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), action);
  library_.check(H5Pset_obj_track_times(creation.get(), false), action);
  const Handle link = library_.own(H5Pcreate(H5P_LINK_CREATE), H5Pclose, action);
  library_.check(H5Pset_char_encoding(link.get(), H5T_CSET_UTF8), action);
  const std::vector<hsize_t> dimensions(shape.begin(), shape.end());
  const Handle space =
      library_.own(shape.empty() ? H5Screate(H5S_SCALAR)
                                 : H5Screate_simple(static_cast<int>(shape.size()), dimensions.data(), nullptr),
                   H5Sclose, action);
  const Handle dataset = library_.own(
      H5Dcreate2(parent, name, type, space.get(), link.get(), creation.get(), H5P_DEFAULT), H5Dclose, action);
  if (bytes == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) library_.fail(action);
  return offset;
}

void Hdf5Writer::Impl::create(const TensorInfo& info) {
  TERCET_REQUIRE(!finished_, "the file {} is already finished", output_.path());
  check_tensor_info(info, output_.path());
  check_path_name(info.name, output_.path());
  if (slots_.contains(info.name) || groups_.contains(info.name))
    fail_run(fmt::format("the tensor name \"{}\" is used twice", info.name), output_.path(), "rename one of them");
  const LibraryGuard guard(library_lock());
  make_parent_groups(info.name);
  const uint64_t offset = make_dataset(tensors_.get(), info.name.c_str(), types_->of(info.dtype), info.shape,
                                       static_cast<uint64_t>(info.bytes()));
  slots_.emplace(info.name, Slot{info, offset, Coverage(info.elements())});
}

void Hdf5Writer::Impl::write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype,
                                  const void* source) {
  const auto found = slots_.find(name);
  TERCET_REQUIRE(found != slots_.end(), "the tensor {} was not declared in {}", name, output_.path());
  Slot& slot = found->second;
  TERCET_REQUIRE(convertible(source_dtype, slot.info.dtype), "{} elements cannot be written to {}",
                 dtype_name(source_dtype), slot.info.describe());
  slot.coverage.add(first, count, name);
  output_.write_elements(slot.offset + static_cast<uint64_t>(first) * dtype_size(slot.info.dtype), source_dtype, source,
                         slot.info.dtype, count);
}

void Hdf5Writer::Impl::set_text(const std::string& key, std::string_view text) {
  TERCET_REQUIRE(!finished_, "the file {} is already finished", output_.path());
  TERCET_REQUIRE(valid_key(key), "\"{}\" is not a key of a text", key);
  TERCET_REQUIRE(text.size() <= kMaxTextBytes, "the text {} has {} bytes, more than {}", key, text.size(),
                 kMaxTextBytes);
  TERCET_REQUIRE(text.find('\0') == std::string_view::npos, "the text {} holds a null byte", key);
  TERCET_REQUIRE(keys_.insert(key).second, "the text {} is set twice", key);
  const LibraryGuard guard(library_lock());
  const char* action = "create a text";
  const size_t bytes = std::max<size_t>(text.size(), 1);
  const Handle type = library_.own(H5Tcopy(H5T_C_S1), H5Tclose, action);
  library_.check(H5Tset_size(type.get(), bytes), action);
  library_.check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), action);
  library_.check(H5Tset_cset(type.get(), H5T_CSET_UTF8), action);
  const uint64_t offset = make_dataset(texts_.get(), key.c_str(), type.get(), {}, bytes);
  const std::string stored = text.empty() ? std::string(1, '\0') : std::string(text);
  output_.write_at(offset, std::as_bytes(std::span(stored)));
}

void Hdf5Writer::Impl::close_library() {
  const LibraryGuard guard(library_lock());
  const char* action = "write the file's structure";
  library_.check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), action);
  groups_.clear();
  tensors_.reset();
  texts_.reset();
  if (!file_.reset()) library_.fail(action);
}

void Hdf5Writer::Impl::finish() {
  TERCET_REQUIRE(!finished_, "the file {} is already finished", output_.path());
  std::vector<std::pair<uint64_t, uint64_t>> elements;
  for (const auto& [name, slot] : slots_) {
    TERCET_REQUIRE(slot.coverage.missing() == 0, "{} elements of the tensor {} were never written to {}",
                   slot.coverage.missing(), slot.info.describe(), output_.path());
    elements.emplace_back(slot.offset, static_cast<uint64_t>(slot.info.bytes()));
  }
  finished_ = true;
  close_library();
  std::vector<std::byte> block;
  {
    const MappedFile file(output_.temporary());
    block = make_user_block(file, block_bytes_, std::move(elements)).encode();
  }
  output_.write_at(0, block);
  output_.publish();
}

Hdf5Writer::Hdf5Writer(const std::string& path, uint64_t expected_bytes)
    : impl_(std::make_unique<Impl>(path, expected_bytes)) {}
Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::create(const TensorInfo& info) { impl_->create(info); }

void Hdf5Writer::write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype,
                            const void* source) {
  impl_->write_part(name, first, count, source_dtype, source);
}

void Hdf5Writer::write(const TensorInfo& info, DType source_dtype, const void* source) {
  impl_->create(info);
  impl_->write_part(info.name, 0, info.elements(), source_dtype, source);
}

void Hdf5Writer::set_text(const std::string& key, std::string_view text) { impl_->set_text(key, text); }

void Hdf5Writer::finish() { impl_->finish(); }

}  // namespace tercet
