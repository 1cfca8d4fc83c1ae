// The pickle of a PyTorch state dict. A pickle is a program; this reader knows the few instructions and names that a
// state dict consists of, refuses every other one by name, and never imports or calls anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tercet {

// A tensor as the pickle describes it: a strided view of a storage. All numbers are counted in elements and are not
// negative; they have not been compared with the storage's real size.
struct PickledTensor {
  std::string name;
  std::string storage_type;  // "HalfStorage", "FloatStorage", ...
  std::string storage_key;
  int64_t storage_elements = 0;
  int64_t offset = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // as many as dimensions
};

// The tensors of a pickled state dict (protocol 2), in the order of the dict: a dict or collections.OrderedDict from
// strings to tensors, plain or torch.nn.Parameter; a module's `_metadata` is ignored. `where` names the file in errors.
// Throws Error(Fault::input) for any other content, instruction or global name, and for a pickle of more than 32 MiB, 4
// M values, a stack of 100,000, or a string of 1 KiB, and for a malformed one.
std::vector<PickledTensor> parse_state_dict(std::string_view pickle, const std::string& where);

}  // namespace tercet
