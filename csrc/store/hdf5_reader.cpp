#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/checked.h"
#include "base/file.h"
#include "base/mapped_pages.h"
#include "base/thread_pool.h"
#include "store/hdf5_file.h"
#include "store/hdf5_library.h"
#include "store/user_block.h"

namespace tercet {

using namespace hdf5;

namespace {

constexpr size_t kMaxGroups = 1000;

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
