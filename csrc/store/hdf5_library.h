// The HDF5 library behind Hdf5Writer and Hdf5Reader: identifiers that close themselves, failures as Errors, the types
// of elements, and what both sides of a file agree on. Only hdf5_writer.cpp and hdf5_reader.cpp include this.
#pragma once

#include <hdf5.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "store/tensor_file.h"

namespace tercet::hdf5 {

inline constexpr const char* kTensorsGroup = "tensors";
inline constexpr const char* kTextsGroup = "texts";
inline constexpr int kMaxGroupDepth = 8;

// Every call into the library is made under this lock: the library may be built without thread safety.
std::recursive_mutex& library_lock();
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

// Calls of one file: each failure becomes an Error with the file's fault and path.
class Library {
 public:
  Library(Fault fault, std::string path);

  template <class T>
  T check(T result, const char* action) const {
    if (result < 0) fail(action);
    return result;
  }

  Handle own(hid_t id, herr_t (*close)(hid_t), const char* action) const { return Handle(check(id, action), close); }

  [[noreturn]] void fail(const char* action) const;
  [[noreturn]] void refuse(const std::string& what) const;

  const std::string& path() const { return path_; }

 private:
  Fault fault_;
  std::string path_;
};

inline constexpr std::array kDTypes = {DType::f64, DType::f32, DType::bf16, DType::f16,
                                       DType::i64, DType::i32, DType::u8};

// The HDF5 type of each DType.
class FileTypes {
 public:
  explicit FileTypes(const Library& library);

  hid_t of(DType dtype) const { return types_[static_cast<size_t>(dtype)].get(); }
  // The DType of an HDF5 type, or nothing.
  std::optional<DType> dtype_of(hid_t type) const;

 private:
  std::array<Handle, kDTypes.size()> types_;
};

}  // namespace tercet::hdf5
