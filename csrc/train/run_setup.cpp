#include "train/run_setup.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/gpu_stream.h"
#include "device/peak_rate.h"
#include "train/signals.h"

namespace tercet {

RunDevice::RunDevice(const CommonSettings& settings) : communicator(single_communicator()) {
  set_threads(settings.threads > 0 ? settings.threads : available_cores());
  device = open_device(settings.device);
  stream = device->create_stream();
  dtype = checked_dtype(*device, settings.dtype);
  log::info("device: {}, {}", device->description(), dtype_name(dtype));
}

ProductAlgorithms* RunDevice::products() const {
  return device->kind() == DeviceKind::cpu ? nullptr : static_cast<GpuStream&>(*stream).product_algorithms();
}

double RunDevice::peak_flops() const { return known_peak(device->description(), dtype); }

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return Recompute::none;
  if (text == "block") return Recompute::block;
  fail_input(fmt::format("unknown choice \"{}\"", text), "--recompute", "use none or block");
}

DataOptions data_options(const CommonSettings& settings, const std::vector<std::string>& paths, const ModelInfo& model,
                         int split_share) {
  if (settings.max_length > model.config.max_position_embeddings)
    fail_input(fmt::format("{} exceeds the {} positions of the model", settings.max_length,
                           model.config.max_position_embeddings),
               "--max-length", "give a smaller length");
  DataOptions options;
  options.paths = paths;
  options.fields = settings.fields;
  options.prompt_template = settings.prompt_template.empty() ? model.prompt_template : settings.prompt_template;
  options.turns = settings.turns;
  options.max_length = settings.max_length;
  options.truncate = settings.truncate;
  options.max_bad_records = settings.max_bad_records;
  if (!settings.split.empty()) options.split = parse_split(settings.split);
  options.split_share = split_share;
  options.seed = settings.seed;
  return options;
}

int64_t micro_batch_tokens(const CommonSettings& settings, int64_t largest_item) {
  if (settings.micro_batch_tokens == 0) return std::max<int64_t>(2048, largest_item);
  if (settings.micro_batch_tokens < largest_item)
    fail_input(fmt::format("{} is too small: one item can have {} tokens", settings.micro_batch_tokens, largest_item),
               "--micro-batch-tokens", "raise it or lower --max-length");
  return settings.micro_batch_tokens;
}

int64_t ItemOrder::at(int64_t position) {
  const int64_t epoch = position / items_;
  if (epoch != epoch_) {
    order_ = epoch_order(items_, seed_, static_cast<uint64_t>(epoch));
    epoch_ = epoch;
  }
  return order_[static_cast<size_t>(position % items_)];
}

StepSchedule::StepSchedule(const CommonSettings& settings, int64_t items) : batch_size(settings.batch_size) {
  if (settings.steps > 0) {
    total_steps = settings.steps;
    total_items = checked_mul(total_steps, batch_size);
    return;
  }
  total_items = std::max<int64_t>(1, std::llround(settings.epochs * static_cast<double>(items)));
  total_steps = ceil_div(total_items, batch_size);
}

int64_t StepSchedule::item_count(int64_t step) const { return std::min(batch_size, total_items - first_item(step)); }

AdamWOptions adamw_options(const CommonSettings& settings) {
  return {.beta1 = settings.adam_beta1,
          .beta2 = settings.adam_beta2,
          .epsilon = settings.adam_eps,
          .weight_decay = settings.weight_decay,
          .max_grad_norm = settings.max_grad_norm};
}

std::unique_ptr<Arena> allocate_plan(Device& device, const std::vector<std::vector<Slot>>& footprints) {
  MemoryPlan plan;
  for (const auto& slots : footprints) plan.add(slots);
  plan.add_outside(device.stream_footprint());
  plan.place();
  log::write_line(plan.table());
  return std::make_unique<Arena>(device, std::move(plan));
}

Json input_hashes(const std::vector<std::string>& data_paths, const std::vector<std::string>& model_paths) {
  Json hashes = Json::object();
  for (const std::string& text : data_paths) {
    throw_if_stop_requested();
    const std::string path = parse_data_path(text).path;
    hashes.set(path, hash_file(path));
  }
  for (const std::string& path : model_paths) hashes.set(path, hash_file(path));
  return hashes;
}

std::string recorded_name(const CommonSettings& settings, const std::string& path) {
  const auto found = settings.recorded_names.find(path);
  return found == settings.recorded_names.end() ? path : found->second;
}

std::string resumed_input(const CommonSettings& settings, const std::string& path, const std::string& name) {
  const std::string kept = settings.out + "/inputs/" + name;
  return settings.resume && std::filesystem::exists(kept) ? kept : path;
}

int run_with_signals(const std::function<int()>& body) {
  install_signal_handlers();
  try {
    return body();
  } catch (const Interrupted& stop) {
    log::info("stopped before the run began; the same command starts it");
    return stop_exit_code(stop.signal());
  }
}

int run_until_stopped(const CommonSettings& settings, const std::string& command, const std::function<void()>& body) {
  try {
    body();
    if (stop_signal() != 0) log::info("the run is complete");
    return stop_exit_code(stop_signal());
  } catch (const Interrupted& stop) {
    log::info("to go on: {}", settings.resume_command.empty()
                                  ? fmt::format("tercet {} --resume --out {}", command, settings.out)
                                  : settings.resume_command);
    return stop_exit_code(stop.signal());
  }
}

bool StepGuard::accept(Stream& stream, std::span<const double> losses, std::span<const Gradients> gradients) {
  if (!std::ranges::all_of(losses, [](double loss) { return std::isfinite(loss); })) {
    skip("the loss");
    return false;
  }
  std::string culprit;
  bool lowered = false;
  for (const Gradients& gradient : gradients) {
    if (std::isfinite(gradient.norm)) continue;
    const std::string tensor = gradient.optimizer.first_non_finite_gradient(stream);
    if (culprit.empty()) culprit = fmt::format("the gradient of {}{}", gradient.owner, tensor);
    if (!gradient.optimizer.loss_scale().lower()) continue;
    lowered = true;
    log::info("the gradient of {}{} overflows; the loss scale falls to {} and the step is skipped ({} so far)",
              gradient.owner, tensor, gradient.optimizer.loss_scale().value(), skipped_ + 1);
  }
  if (culprit.empty()) {
    in_a_row_ = 0;
    return true;
  }
  if (lowered)
    ++skipped_;
  else
    skip(culprit);
  return false;
}

void StepGuard::skip(const std::string& what) {
  ++skipped_;
  ++in_a_row_;
  if (in_a_row_ > max_skips_)
    fail_run(fmt::format("{} is not finite, {} steps in a row", what, in_a_row_), "",
             "lower the learning rate, check the data and the weights, or raise --max-skips");
  log::warn("{} is not finite; the step is skipped ({} so far)", what, skipped_);
}

void StepGuard::save(Json& state) const { state.set("skipped", skipped_).set("skips_in_a_row", in_a_row_); }

void StepGuard::load(const Json& state) {
  skipped_ = state.at("skipped").as_int();
  in_a_row_ = state.at("skips_in_a_row").as_int();
}

}  // namespace tercet
