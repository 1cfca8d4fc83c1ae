#include "store/hdf5_file.h"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mapped_pages.h"
#include "base/thread_pool.h"
#include "store/output_file.h"
#include "store/user_block.h"

namespace tercet {
namespace {

constexpr const char* kTensorsGroup = "tensors";
constexpr const char* kTextsGroup = "texts";
constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr uint64_t kSlackBytes = uint64_t{64} << 20;
constexpr uint64_t kStructureBytes = uint64_t{1} << 20;
constexpr hsize_t kMetadataBlockBytes = 64 << 10;
constexpr int kMaxGroupDepth = 8;
constexpr size_t kMaxGroups = 1000;

// Every call into the library is made under this lock: the library may be built without thread safety.
std::recursive_mutex& library_lock() {
  static std::recursive_mutex mutex;
  return mutex;
}
using LibraryGuard = std::lock_guard<std::recursive_mutex>;

// An identifier of the library, closed on destruction.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }

  hid_t get() const { return id_; }
  // Closes now; false when the library reports an error.
  bool reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    if (id < 0) return true;
    const LibraryGuard guard(library_lock());
    return close_(id) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  herr_t (*close_)(hid_t) = nullptr;
};

herr_t keep_innermost(unsigned, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 1;
}

// The reason that the library gives for its last failure.
std::string library_reason() {
  std::string reason = "unknown reason";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  constexpr std::string_view before = "error message = '";
  if (const size_t start = reason.find(before); start != std::string::npos) {
    reason.erase(0, start + before.size());
    reason.erase(std::min(reason.find('\''), reason.size()));
  }
  return reason;
}

// Calls of one file: each failure becomes an Error with the file's fault and path.
class Library {
 public:
  Library(Fault fault, std::string path) : fault_(fault), path_(std::move(path)) {
    const LibraryGuard guard(library_lock());
    // A file that cannot be closed on a full disk stays in the library's tables as a dangling entry, and the library's
    // own clean-up at exit would crash on it. Every other file is closed here, so that clean-up has nothing to do.
    [[maybe_unused]] static const herr_t no_clean_up_at_exit = H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }

  template <class T>
  T check(T result, const char* action) const {
    if (result < 0) fail(action);
    return result;
  }

  Handle own(hid_t id, herr_t (*close)(hid_t), const char* action) const { return Handle(check(id, action), close); }

  [[noreturn]] void fail(const char* action) const {
    throw Error(fault_, fmt::format("HDF5 cannot {}: {}", action, library_reason()), path_,
                fault_ == Fault::run ? "check the disk's free space and permissions"
                                     : "copy the file again from where it is whole");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(fault_, what, path_, "give a file that tercet wrote");
  }

  const std::string& path() const { return path_; }

 private:
  Fault fault_;
  std::string path_;
};

Handle make_16_bit_float(const Library& library, size_t sign, size_t exponent_bits, size_t mantissa_bits, size_t bias) {
  const char* action = "describe a 16-bit float";
  Handle type = library.own(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, action);
  library.check(H5Tset_fields(type.get(), sign, mantissa_bits, exponent_bits, 0, mantissa_bits), action);
  library.check(H5Tset_size(type.get(), 2), action);
  library.check(H5Tset_ebias(type.get(), bias), action);
  return type;
}

constexpr std::array kDTypes = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8};

// The HDF5 type of each DType.
class FileTypes {
 public:
  explicit FileTypes(const Library& library) {
    for (const DType dtype : kDTypes) types_[static_cast<size_t>(dtype)] = make(library, dtype);
  }

  hid_t of(DType dtype) const { return types_[static_cast<size_t>(dtype)].get(); }

  std::optional<DType> dtype_of(hid_t type) const {
    for (const DType dtype : kDTypes)
      if (H5Tequal(type, of(dtype)) > 0) return dtype;
    return std::nullopt;
  }

 private:
  static Handle make(const Library& library, DType dtype) {
    const auto copy = [&](hid_t type) { return library.own(H5Tcopy(type), H5Tclose, "copy a type"); };
    switch (dtype) {
      case DType::f64:
        return copy(H5T_IEEE_F64LE);
      case DType::f32:
        return copy(H5T_IEEE_F32LE);
      case DType::i64:
        return copy(H5T_STD_I64LE);
      case DType::i32:
        return copy(H5T_STD_I32LE);
      case DType::u8:
        return copy(H5T_STD_U8LE);
      case DType::bf16:
        return make_16_bit_float(library, 15, 8, 7, 127);
      case DType::f16:
        return make_16_bit_float(library, 15, 5, 10, 15);
    }
    return {};
  }

  std::array<Handle, kDTypes.size()> types_;
};

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

namespace {

// Where a dataset's elements lie in the file.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What the library finds in a verified file.
struct Contents {
  std::vector<TensorInfo> tensors;
  std::vector<Extent> tensor_extents;
  std::vector<std::string> text_keys;
  std::vector<Extent> text_extents;
};

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// Walks the two groups of a file through the library; reads no elements.
class ContentsReader {
 public:
  // `before` is the state of the file before it was verified.
  ContentsReader(const std::string& path, const UserBlock& block, const struct stat& before)
      : library_(Fault::input, path), types_(library_), block_(block) {
    const char* action = "open the file";
    const Handle access = library_.own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, action);
    library_.check(H5Pset_file_locking(access.get(), false, true), action);
    file_ = library_.own(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose, action);
    void* descriptor = nullptr;
    library_.check(H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &descriptor), action);
    struct stat now {};
    if (::fstat(*static_cast<int*>(descriptor), &now) != 0) fail_errno("cannot read the file's state", path);
    if (!same_file(before, now))
      fail_run("the file was replaced while it was being opened", path, "run the command again");
  }

  Contents read() {
    const Handle tensors = open_group(file_.get(), kTensorsGroup);
    read_tensors(tensors.get(), "", 0);
    const Handle texts = open_group(file_.get(), kTextsGroup);
    const hsize_t count = links(texts.get());
    for (hsize_t i = 0; i < count; ++i) read_text(texts.get(), i);
    return std::move(contents_);
  }

 private:
  Handle open_group(hid_t parent, const char* name) const {
    return library_.own(H5Gopen2(parent, name, H5P_DEFAULT), H5Gclose, "open a group");
  }

  hsize_t links(hid_t group) const {
    H5G_info_t info{};
    library_.check(H5Gget_info(group, &info), "list a group");
    return info.nlinks;
  }

  std::string link_name(hid_t group, hsize_t index) const {
    const char* action = "read a name";
    H5L_info_t info{};
    library_.check(H5Lget_info_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, index, &info, H5P_DEFAULT), action);
    if (info.type != H5L_TYPE_HARD) library_.refuse("a link that is not a dataset or group of this file");
    const ssize_t length = library_.check(
        H5Lget_name_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, index, nullptr, 0, H5P_DEFAULT), action);
    std::string name(static_cast<size_t>(length) + 1, '\0');
    library_.check(
        H5Lget_name_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, index, name.data(), name.size(), H5P_DEFAULT),
        action);
    name.pop_back();
    return name;
  }

  Handle open_object(hid_t group, hsize_t index) const {
    return library_.own(H5Oopen_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, index, H5P_DEFAULT), H5Oclose,
                        "open an object");
  }

  void read_tensors(hid_t group, const std::string& prefix, int depth) {
    if (depth > kMaxGroupDepth) library_.refuse("groups nested too deep");
    // A group may be linked many times.
    if (++groups_ > kMaxGroups) library_.refuse(fmt::format("more than {} groups", kMaxGroups));
    const hsize_t count = links(group);
    for (hsize_t i = 0; i < count; ++i) {
      const std::string name = prefix + link_name(group, i);
      const Handle object = open_object(group, i);
      const H5I_type_t kind = H5Iget_type(object.get());
      if (kind == H5I_GROUP) {
        read_tensors(object.get(), name + "/", depth + 1);
      } else if (kind == H5I_DATASET) {
        read_tensor(object.get(), name);
      } else {
        library_.refuse(fmt::format("\"{}\" is neither a dataset nor a group", name));
      }
    }
  }

  void read_tensor(hid_t dataset, const std::string& name) {
    const Handle type = library_.own(H5Dget_type(dataset), H5Tclose, "read a type");
    const std::optional<DType> dtype = types_.dtype_of(type.get());
    if (!dtype) library_.refuse(fmt::format("the dataset \"{}\" has an element type that tercet does not use", name));
    if (contents_.tensors.size() == kMaxTensorsPerFile)
      library_.refuse(fmt::format("more than {} tensors", kMaxTensorsPerFile));
    TensorInfo info{name, *dtype, shape_of(dataset)};
    check_tensor_info(info, library_.path());
    contents_.tensor_extents.push_back(extent_of(dataset, name, static_cast<uint64_t>(info.bytes())));
    contents_.tensors.push_back(std::move(info));
  }

  void read_text(hid_t group, hsize_t index) {
    const std::string key = link_name(group, index);
    const Handle object = open_object(group, index);
    if (H5Iget_type(object.get()) != H5I_DATASET) library_.refuse(fmt::format("the text \"{}\" is not a dataset", key));
    const Handle type = library_.own(H5Dget_type(object.get()), H5Tclose, "read a type");
    if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
        !shape_of(object.get()).empty())
      library_.refuse(fmt::format("the text \"{}\" is not a fixed-length string", key));
    contents_.text_extents.push_back(extent_of(object.get(), key, H5Tget_size(type.get())));
    contents_.text_keys.push_back(key);
  }

  std::vector<int64_t> shape_of(hid_t dataset) const {
    const char* action = "read a shape";
    const Handle space = library_.own(H5Dget_space(dataset), H5Sclose, action);
    if (H5Sget_simple_extent_type(space.get()) == H5S_SCALAR) return {};
    const int rank = library_.check(H5Sget_simple_extent_ndims(space.get()), action);
    std::vector<hsize_t> dimensions(static_cast<size_t>(rank));
    library_.check(H5Sget_simple_extent_dims(space.get(), dimensions.data(), nullptr), action);
    std::vector<int64_t> shape;
    for (const hsize_t size : dimensions) {
      if (!std::in_range<int64_t>(size)) library_.refuse("a dataset of an impossible size");
      shape.push_back(static_cast<int64_t>(size));
    }
    return shape;
  }

  Extent extent_of(hid_t dataset, const std::string& name, uint64_t bytes) const {
    const Handle creation = library_.own(H5Dget_create_plist(dataset), H5Pclose, "read a layout");
    if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0)
      library_.refuse(fmt::format("the dataset \"{}\" is not contiguous", name));
    if (bytes == 0) return {};
    const haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF || offset < block_.block_bytes || bytes > block_.file_bytes ||
        offset > block_.file_bytes - bytes || H5Dget_storage_size(dataset) != bytes)
      library_.refuse(fmt::format("the elements of the dataset \"{}\" are not in the file", name));
    return {offset, bytes};
  }

  Library library_;
  FileTypes types_;
  const UserBlock& block_;
  Handle file_;
  Contents contents_;
  size_t groups_ = 0;
};

struct stat state_of(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) state = {};  // MappedFile reports why the file cannot be opened
  return state;
}

}  // namespace

class Hdf5Reader::Impl {
 public:
  Impl(const std::string& path, Hdf5Verify verify)
      : before_(state_of(path)), file_(path), block_(parse_user_block(file_.bytes(), path)), checked_(block_.chunks()) {
    check_chunks(0, block_.chunks(), verify);
    const LibraryGuard guard(library_lock());
    contents = ContentsReader(path, block_, before_).read();
  }

  std::span<const std::byte> elements(const Extent& extent, uint64_t first_byte, uint64_t bytes) {
    const uint64_t begin = extent.offset + first_byte;
    check_chunks((begin - block_.block_bytes) / kChunkBytes, ceil_div(begin + bytes - block_.block_bytes, kChunkBytes),
                 Hdf5Verify::all);
    return file_.bytes().subspan(begin, bytes);
  }

  void release(std::span<const std::byte> bytes) const { release_pages(file_, bytes); }

  // Checks the chunks of [begin, end) that have not been checked, or only those that hold structure.
  void check_chunks(size_t begin, size_t end, Hdf5Verify verify) {
    std::atomic<size_t> altered = std::numeric_limits<size_t>::max();
    thread_pool().for_ranges(static_cast<int64_t>(end - begin), 4, [&](int64_t from, int64_t to) {
      for (size_t i = begin + static_cast<size_t>(from); i < begin + static_cast<size_t>(to); ++i) {
        if (verify == Hdf5Verify::structure && block_.structure[i] == 0) continue;
        if (checked_[i].load(std::memory_order_acquire) != 0) continue;
        const auto chunk = block_.chunk(file_.bytes(), i);
        const bool whole = hash64(chunk) == block_.checksums[i];
        release_pages(file_, chunk);
        if (whole) {
          checked_[i].store(1, std::memory_order_release);
        } else {
          size_t lowest = altered.load();
          while (i < lowest && !altered.compare_exchange_weak(lowest, i)) {
          }
        }
      }
    });
    if (altered == std::numeric_limits<size_t>::max()) return;
    const uint64_t at = block_.block_bytes + altered * kChunkBytes;
    fail_input(fmt::format("the file is altered: bytes {} to {} do not match their checksum", at,
                           at + block_.chunk(file_.bytes(), altered).size()),
               file_.path(), "copy the file again from where it is whole");
  }

  bool verified() const {
    return std::all_of(checked_.begin(), checked_.end(), [](const auto& flag) { return flag.load() != 0; });
  }
  size_t chunks() const { return block_.chunks(); }
  uint64_t file_bytes() const { return block_.file_bytes; }
  uint64_t checksum() const { return user_block_checksum(file_.bytes()); }

 private:
  struct stat before_;
  MappedFile file_;
  UserBlock block_;
  std::vector<std::atomic<uint8_t>> checked_;

 public:
  Contents contents;
};

Hdf5Reader::Hdf5Reader(const std::string& path, Hdf5Verify verify)
    : TensorSource(path), impl_(std::make_unique<Impl>(path, verify)) {
  for (const TensorInfo& info : impl_->contents.tensors) add(info);
}

Hdf5Reader::~Hdf5Reader() = default;

const std::vector<std::string>& Hdf5Reader::text_keys() const { return impl_->contents.text_keys; }

bool Hdf5Reader::has_text(std::string_view key) const {
  return std::find(text_keys().begin(), text_keys().end(), key) != text_keys().end();
}

std::string Hdf5Reader::text(std::string_view key) const {
  const auto found = std::find(text_keys().begin(), text_keys().end(), key);
  if (found == text_keys().end())
    fail_input(fmt::format("no text named \"{}\"", key), path(), "give a file of the right kind");
  const Extent extent = impl_->contents.text_extents[static_cast<size_t>(found - text_keys().begin())];
  const auto bytes = impl_->elements(extent, 0, extent.bytes);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

uint64_t Hdf5Reader::file_bytes() const { return impl_->file_bytes(); }

void Hdf5Reader::verify_all() const { impl_->check_chunks(0, impl_->chunks(), Hdf5Verify::all); }

bool Hdf5Reader::verified() const { return impl_->verified(); }

std::string Hdf5Reader::checksum() const { return fmt::format("{:016x}", impl_->checksum()); }

void Hdf5Reader::do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const {
  const DType stored = tensors()[index].dtype;
  const uint64_t size = dtype_size(stored);
  const auto bytes = impl_->elements(impl_->contents.tensor_extents[index], static_cast<uint64_t>(first) * size,
                                     static_cast<uint64_t>(count) * size);
  convert_elements(stored, bytes.data(), dtype, target, count);
  impl_->release(bytes);
}

}  // namespace tercet
