// What tests tell the stand-in for cuBLASLt, and learn from it.
#pragma once

#include "device/cublaslt_api.h"

namespace tercet::lt {

// Algorithms are numbered from 0; all of them give the same results.
struct FakeControl {
  int first = 0;       // that the heuristic offers; those after it follow
  int refused = -1;    // not usable any more
  int too_large = -1;  // needs more workspace than there is
  int last = -1;       // that ran
  int choices = 0;     // that the heuristic was asked for
  int checks = 0;
};

}  // namespace tercet::lt

// Of the library that dlopen gives for its path.
extern "C" tercet::lt::FakeControl* fake_cublaslt_control();
