#include "shard/communicator.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace tercet {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(std::span<double>) override {}
  void all_reduce_max(std::span<double>) override {}
  void all_reduce_sum(Stream&, const Tensor&) override {}
  void barrier() override {}
};

}  // namespace

std::unique_ptr<Communicator> single_communicator() { return std::make_unique<SingleCommunicator>(); }

void require_single_process() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::string_view(size) != "1")
      fail_input(fmt::format("{} processes were launched, but this build trains with one", size), name,
                 "start tercet without mpirun, or with -n 1");
  }
}

}  // namespace tercet
