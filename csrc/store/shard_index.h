// The weights of a Hugging Face model folder: one file or a set of shards, safetensors or PyTorch.
#pragma once

#include <memory>
#include <string>

#include "store/tensor_file.h"

namespace tercet {

// Opens the first of these that `folder` holds: model.safetensors, model.safetensors.index.json, pytorch_model.bin,
// pytorch_model.bin.index.json. Says by log::info which one when there are several; TensorSource::path() is its path.
// An index maps tensor names to shards, each opened once: tensors come in the index's order, and those that are in a
// shard but not in the index are left out with a warning.
// Throws Error(Fault::input) when there is none, when an index names a shard that is not a plain file name or does not
// exist, when a mapped tensor is not in its shard, and for all that the readers of the files refuse.
std::unique_ptr<TensorSource> open_weights(const std::string& folder);

}  // namespace tercet
