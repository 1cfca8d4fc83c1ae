// The runs of a comparison as they are read.
#pragma once

#include <string>
#include <vector>

#include "train/run_folder.h"
#include "train/run_logs.h"

namespace tercet {

struct ComparedRun {
  std::string label;  // as much of the path's end as tells the runs apart
  std::string path;
  RunRecord record;
  LogColumns metrics;  // lines of evaluations have the tokens_seen of the step before them
  LogColumns timings;
};

// Throws what compare_runs() throws.
std::vector<ComparedRun> read_compared_runs(const std::vector<std::string>& folders);

struct InputFile {
  std::string path;  // without a weight
  std::string hash;
};

// The files that a setting names, as the run's record has them; none when it names no input.
std::vector<InputFile> input_files(const RunRecord& record, const std::string& setting);

}  // namespace tercet
