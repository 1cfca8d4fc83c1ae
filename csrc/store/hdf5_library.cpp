#include "store/hdf5_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tercet::hdf5 {
namespace {

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

Handle make_16_bit_float(const Library& library, size_t sign, size_t exponent_bits, size_t mantissa_bits, size_t bias) {
  const char* action = "describe a 16-bit float";
  Handle type = library.own(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, action);
  library.check(H5Tset_fields(type.get(), sign, mantissa_bits, exponent_bits, 0, mantissa_bits), action);
  library.check(H5Tset_size(type.get(), 2), action);
  library.check(H5Tset_ebias(type.get(), bias), action);
  return type;
}

Handle make_type(const Library& library, DType dtype) {
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

}  // namespace

std::recursive_mutex& library_lock() {
  static std::recursive_mutex mutex;
  return mutex;
}

Library::Library(Fault fault, std::string path) : fault_(fault), path_(std::move(path)) {
  const LibraryGuard guard(library_lock());
  // A file that cannot be closed on a full disk stays in the library's tables as a dangling entry, and the library's
  // own clean-up at exit would crash on it. Every other file is closed here, so that clean-up has nothing to do.
  [[maybe_unused]] static const herr_t no_clean_up_at_exit = H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

void Library::fail(const char* action) const {
  throw Error(fault_, fmt::format("HDF5 cannot {}: {}", action, library_reason()), path_,
              fault_ == Fault::run ? "check the disk's free space and permissions"
                                   : "copy the file again from where it is whole");
}

void Library::refuse(const std::string& what) const {
  throw Error(fault_, what, path_, "give a file that tercet wrote");
}

FileTypes::FileTypes(const Library& library) {
  for (const DType dtype : kDTypes) types_[static_cast<size_t>(dtype)] = make_type(library, dtype);
}

std::optional<DType> FileTypes::dtype_of(hid_t type) const {
  for (const DType dtype : kDTypes)
    if (H5Tequal(type, of(dtype)) > 0) return dtype;
  return std::nullopt;
}

}  // namespace tercet::hdf5
