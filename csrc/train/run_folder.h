// The folder of one training run: who may write into it, and the files that every step writes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace tercet {

// A folder for results, which keeps other processes out while it lives: flock on FOLDER/.lock.
class OutputFolder {
 public:
  // Creates it, and those above it, where it is missing. Throws Error(Fault::input) that names --out when that fails,
  // and when another process holds it.
  explicit OutputFolder(const std::string& path);
  // Removes what was created, when nothing else is there, unless keep() was called.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  void keep() { kept_ = true; }

 private:
  void lock();
  void undo() const;

  std::string path_;
  std::string first_created_;  // the outermost folder that was created; empty: none
  bool lock_created_ = false;
  bool kept_ = false;
  int fd_ = -1;
};

// Names in either object whose values differ, and "NAME was 1 and is 2" about one of them.
std::vector<std::string> differing(const Json& before, const Json& now);
std::string was_and_is(const std::string& name, const Json& before, const Json& now);

struct RunFolderOptions {
  std::string path;
  std::string step;  // "sft", "reward" or "ppo"
  bool resume = false;
  bool overwrite = false;
  bool tensorboard = false;  // metrics and timings also go to RUN/tensorboard/events.out.tfevents.tercet
};

// An open run folder. Holds a lock on it (flock on RUN/.lock) while it lives. It changes nothing in the folder, and
// leaves nothing when it is destroyed, until write_or_check_config() begins the run; from then on messages go to
// RUN/logs/rank-000.log. Not for concurrent use.
class RunFolder {
 public:
  // Creates the folder, or opens it under --resume / --overwrite. Throws Error(Fault::input): it holds a run and
  // neither flag is given; --resume without a run, or a run of another step; it holds files but no run; in use by
  // another process.
  explicit RunFolder(const RunFolderOptions& options);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const;
  std::string file(const std::string& name) const;  // path + "/" + name

  // On a resumed run compares with its config.toml: settings may differ only in lengths, cadences and logs (steps,
  // epochs, eval-every, save-every, keep, log-every, tensorboard, threads); other differences and other input hashes
  // are an Error(Fault::input) that names them. `input_hashes` is {name: hash}.
  void check_config(const Json& settings, const Json& input_hashes) const;

  // check_config(), then begins the run: --overwrite deletes the files of the old one and leaves all others, and
  // config.toml is written: every setting (flag name, value), the hash of every input file, the version.
  void write_or_check_config(const Json& settings, const Json& input_hashes);

  // Keeps what resuming needs: a hard link to `source`, or a copy across file systems, under inputs/<name>. Returns its
  // path. One that is already there is kept.
  std::string keep_input(const std::string& source, const std::string& name);

  // One line of metrics.jsonl: names of facts/rlhf.md section 3, `step` first; no clock in it.
  void metrics(const Json& line);
  // One line of timings.jsonl: seconds, rates, memory.
  void timings(const Json& line);
  // One line of samples.jsonl.
  void sample(const Json& line);

  // Sizes in bytes of the logs now, {"metrics.jsonl": n, ...}, flushed to disk, to be stored in a checkpoint; and
  // cutting them back to such sizes on resume. Throws Error(Fault::input) when a log is shorter than that, which
  // require_logs() finds out without a change. Event files of TensorBoard are among them while they are written; one
  // that `positions` does not know is begun anew.
  Json log_positions();
  void require_logs(const Json& positions) const;
  void truncate_logs(const Json& positions);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What config.toml says about a run.
struct RunRecord {
  std::string step;
  std::string version;
  Json settings = Json::object();
  Json input_hashes = Json::object();
};

// Throws Error(Fault::input) when the folder holds no run or its config.toml cannot be read.
RunRecord read_run_record(const std::string& folder);

// Whether the folder holds a run, begun or finished.
bool holds_run(const std::string& folder);

// Whether a run has come to its end, which writing its report is.
bool holds_finished_run(const std::string& folder);

// The settings that a resumed run may change: its length, and cadences, logs and threads.
bool is_length(const std::string& setting);
bool is_cadence(const std::string& setting);

// Whether a table of config.toml belongs to the record and not to the settings.
bool is_run_record_table(const std::string& table);

}  // namespace tercet
