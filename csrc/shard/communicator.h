// shard: who holds which bytes. Communicators join ranks; units are the pieces in which a model is held, sharded,
// offloaded, saved and optimised. A unit never knows what a layer is, and the model never knows how many ranks hold a
// unit.
#pragma once

#include <memory>
#include <span>

#include "device/device.h"

namespace tercet {

// Joins the ranks of a run. All ranks call the same operations in the same order. Sums are taken in the order of ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Replaces each value by its sum (or maximum) over ranks. Host memory.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<double> values) = 0;
  // Replaces a device tensor by its sum over ranks, queued on the stream.
  virtual void all_reduce_sum(Stream& stream, const Tensor& tensor) = 0;
  virtual void barrier() = 0;
};

// The communicator of a run of one process.
std::unique_ptr<Communicator> single_communicator();

// Throws Error(Fault::input) under an MPI launcher that started more than one process (Open MPI and MPICH's Hydra say
// so in the environment): this build has no communicator that joins them, and each would do the whole run.
void require_single_process();

}  // namespace tercet
