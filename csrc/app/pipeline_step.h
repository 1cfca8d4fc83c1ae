// How far a step of a pipeline is, told from what it has written.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "train/run_folder.h"

namespace tercet {

// What files are called in the record of a step, by path; others go by their paths.
using RecordedNames = std::map<std::string, std::string>;

// The paths of all files that a command reads.
std::vector<std::string> files_read(const Invocation& invocation);

// The record that a step keeps when it begins now. Throws Error(Fault::input) when a file cannot be read.
RunRecord record_of(const Invocation& invocation, const RecordedNames& names);

enum class StepState {
  absent,    // never begun
  begun,     // with these settings and inputs, but for what a resumed run may change
  finished,  // with these settings and inputs, but for cadences
  changed,   // begun or finished with others
};

struct StepStatus {
  StepState state = StepState::absent;
  std::vector<std::string> changes;  // "--lr was 1e-05 and is 2e-05"
};

// Of a training step, from its run folder.
StepStatus step_status(const std::string& folder, const RunRecord& now);

// Of the evaluation, from the file of its figures, in which with_record() has put its record.
StepStatus evaluation_status(const std::string& path, const RunRecord& now);
Json with_record(Json figures, const RunRecord& record);

}  // namespace tercet
