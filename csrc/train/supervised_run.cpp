#include "train/supervised_run.h"

#include "base/file.h"
#include "base/log.h"
#include "device/profile_scope.h"
#include "store/hdf5_file.h"
#include "train/signals.h"

namespace tercet {

SupervisedRun::SupervisedRun(const CommonSettings& settings, const Json& recorded, std::string command,
                             std::string model_path, Head head)
    : settings_(settings),
      recorded_(recorded),
      command_(std::move(command)),
      model_path_(std::move(model_path)),
      weights_path_(resumed_input(settings, model_path_, "model.h5")),
      head_(head),
      run_(settings),
      info_(read_model_info(weights_path_)),
      tokenizer_(info_.tokenizer(weights_path_)),
      guard_(settings.max_skips) {}

int SupervisedRun::run() {
  throw_if_stop_requested();
  items_ = load_data();
  steps_.emplace(settings_, items_);
  order_.emplace(items_, settings_.seed);
  schedule_ = make_schedule(settings_, settings_.lr, steps_->total_steps);

  RunFolder folder({settings_.out, command_, settings_.resume, settings_.overwrite, settings_.tensorboard});
  std::vector<std::string> data_files = settings_.data;
  data_files.insert(data_files.end(), settings_.eval_data.begin(), settings_.eval_data.end());
  Json hashes = input_hashes(data_files, {});
  hashes.set(recorded_name(settings_, model_path_), hash_file(weights_path_));
  folder.check_config(recorded_, hashes);
  require_resumable(folder, settings_, steps_->total_steps);
  prepare();
  throw_if_stop_requested();
  folder.write_or_check_config(recorded_, hashes);
  folder.keep_input(weights_path_, "model.h5");

  return run_until_stopped(settings_, command_, [&] {
    run_training_loop(folder, settings_, steps_->total_steps, hooks(folder));
    finish(folder, hashes);
  });
}

void SupervisedRun::write_samples(RunFolder& folder, int64_t step, const std::vector<Json>& samples) {
  for (const Json& sample : samples) {
    Json line = Json::object();
    line.set("step", step);
    for (const auto& [name, value] : sample.as_object()) line.set(name, value);
    folder.sample(line);
  }
}

void SupervisedRun::finish(RunFolder& folder, const Json& hashes) {
  std::vector<Json> samples;
  complete(info_, samples);
  write_samples(folder, steps_->total_steps, samples);
  info_.head = head_;
  info_.provenance = Json::object();
  info_.provenance.set("command", command_).set("settings", recorded_).set("inputs", hashes);
  info_.dtype = statistics_dtype(run_.dtype);
  write_model(*run_.stream, folder.file("model.h5"), info_, model_->units(), info_.dtype);
  write_report(folder.path(), {.tables = {records_table()}, .memory_plan = arena_->plan().table()});
  log::info("model: {}", folder.file("model.h5"));
  log::info("report: {}", folder.file("report.html"));
}

HtmlTable SupervisedRun::records_table() const {
  std::vector<std::pair<std::string, const DropCounts*>> sources = {{"training", &drops(false)}};
  if (has_held_out()) sources.emplace_back("held out", &drops(true));
  return dropped_records_table(sources);
}

void SupervisedRun::prepare() {
  const int64_t tokens = micro_batch_tokens(settings_, largest_item());
  limits_ = {tokens, tokens};
  const ModelInstanceOptions options{.prefix = "model",
                                     .config = info_.config,
                                     .head = head_,
                                     .dtype = run_.dtype,
                                     .capacity = {tokens, tokens},
                                     .training = true,
                                     .recompute = parse_recompute(settings_.recompute),
                                     .optimizer = adamw_options(settings_)};
  arena_ = allocate_plan(*run_.device, {ModelInstance::footprint(options), own_footprint()});
  model_.emplace(options, *arena_, *run_.stream, *run_.communicator);
  take_own_slots();
  arena_->require_all_taken();
  read_weights(*run_.stream, weights_path_, model_->units(),
               head_ == Head::scalar ? std::optional(FreshHead{settings_.seed}) : std::nullopt);
}

StepHooks SupervisedRun::hooks(RunFolder& folder) {
  StepHooks hooks;
  hooks.train = [this](int64_t step) { return train(step); };
  if (has_held_out())
    hooks.evaluate = [this, &folder](int64_t step) {
      const ProfileScope scope(*run_.stream, "evaluate");
      std::vector<Json> samples;
      Json metrics = evaluate(step == steps_->total_steps, samples);
      write_samples(folder, step, samples);
      return metrics;
    };
  hooks.checkpoint_bytes = [this] { return model_->checkpoint_bytes(); };
  hooks.save = [this](Hdf5Writer& file, Json& state) {
    const ProfileScope scope(*run_.stream, "save");
    model_->save(file, state);
    guard_.save(state);
    state.set("tokens_seen", tokens_seen_);
  };
  hooks.load = [this](const Hdf5Reader& file, const Json& state) {
    model_->load(file, state);
    guard_.load(state);
    tokens_seen_ = state.at("tokens_seen").as_int();
  };
  hooks.summary = [this](const Json& metrics) { return summary(metrics); };
  hooks.flops = [this] { return model_->flops(); };
  hooks.peak_flops = run_.peak_flops();
  hooks.products = run_.products();
  return hooks;
}

Json SupervisedRun::train(int64_t step) {
  std::vector<int64_t> items;
  for (int64_t i = 0; i < steps_->item_count(step); ++i) items.push_back(order_->at(steps_->first_item(step) + i));
  const DropoutOptions dropout{.rate = settings_.dropout, .seed = settings_.seed, .step = static_cast<uint64_t>(step)};
  model_->units().zero_gradients(*run_.stream);
  double loss = 0;
  Json metrics = accumulate(items, dropout, loss);

  AdamW& optimizer = model_->optimizer();
  const double norm = optimizer.gradient_norm(*run_.stream);
  const double lr = schedule_.at(step);
  const StepGuard::Gradients gradients[] = {{optimizer, norm, ""}};
  if (guard_.accept(*run_.stream, {&loss, 1}, gradients)) {
    optimizer.step(*run_.stream, lr, norm);
    const AdamW::StepNorms norms = optimizer.step_norms(*run_.stream);
    metrics.set("update_norm", norms.update).set("param_norm", norms.parameters);
  }
  if (optimizer.loss_scale().dynamic()) metrics.set("loss_scale", optimizer.loss_scale().value());
  metrics.set("grad_norm", norm).set("lr", lr).set("skipped_steps", guard_.skipped()).set("tokens_seen", tokens_seen_);
  const int64_t items_seen = steps_->first_item(step) + steps_->item_count(step);
  metrics.set("epoch", static_cast<double>(items_seen) / static_cast<double>(items_));
  return metrics;
}

}  // namespace tercet
