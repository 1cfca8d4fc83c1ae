// The folder of one training run: who may write into it, and the files that every step writes.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"

namespace tercet {

struct RunFolderOptions {
  std::string path;
  std::string step;  // "sft", "reward" or "ppo"
  bool resume = false;
  bool overwrite = false;
  bool tensorboard = false;  // metrics and timings also go to RUN/tensorboard/events.out.tfevents.tercet
};

// An open run folder. Holds a lock on it (flock on RUN/.lock) and sends messages to RUN/logs/rank-000.log while it
// lives. Not for concurrent use.
class RunFolder {
 public:
  // Creates the folder, or opens it under --resume / --overwrite. Throws Error(Fault::input): it holds a run and
  // neither flag is given; --resume without a run, or a run of another step; it holds files but no run; in use by
  // another process. --overwrite deletes the files of a run and leaves all others.
  explicit RunFolder(const RunFolderOptions& options);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const;
  std::string file(const std::string& name) const;  // path + "/" + name

  // Writes config.toml: every setting (flag name, value), the hash of every input file, the version. On a resumed run
  // compares instead: settings may differ only in lengths, cadences and logs (steps, epochs, eval-every, save-every,
  // keep, log-every, tensorboard, threads); other differences and other input hashes are an Error(Fault::input) that
  // names them. What differs and may is written to config.toml. `input_hashes` is {name: hash}.
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
  // cutting them back to such sizes on resume. Throws Error(Fault::input) when a log is shorter than that. Event files
  // of TensorBoard are among them while they are written; one that `positions` does not know is begun anew.
  Json log_positions();
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

// Whether a table of config.toml belongs to the record and not to the settings.
bool is_run_record_table(const std::string& table);

// Signals: SIGINT and SIGTERM ask for a stop at the end of the optimiser step (a second one exits at once with 128 +
// its number), SIGUSR1 too. Install once per training command.
void install_signal_handlers();
// 0, or the signal that asked for a stop; the latest one when SIGUSR1 was followed by another.
int stop_signal();
// Exit code after a graceful stop: 130, 143, or 0 for SIGUSR1.
int stop_exit_code(int signal);

}  // namespace tercet
