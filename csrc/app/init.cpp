#include "app/commands.h"
#include "app/provenance.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/temporary_path.h"
#include "model/model_file.h"

namespace tercet {
namespace {

OptConfig read_config(const std::string& name) {
  if (!name.ends_with(".json")) return OptConfig::released(name);
  return OptConfig::from_json(parse_json(read_file(name), name), name);
}

}  // namespace

int run_init(const InitSettings& settings, const Json& settings_as_json) {
  const DType dtype = parse_dtype(settings.dtype, "--dtype");
  check_output_place(settings.out, PathKind::file);
  const Tokenizer tokenizer = Tokenizer::load(settings.tokenizer);
  ModelInfo info;
  info.config = read_config(settings.model_config);
  require_tokenizer_fits(tokenizer, info.config, settings.tokenizer);
  info.prompt_template = settings.prompt_template;
  info.vocab_json = tokenizer.vocab_json();
  info.merges_txt = tokenizer.merges_txt();
  info.dtype = dtype;
  info.provenance = make_provenance("init", settings_as_json);

  const std::unique_ptr<Device> device = open_device("cpu");
  const std::unique_ptr<Stream> stream = device->create_stream();
  const std::unique_ptr<Communicator> communicator = single_communicator();
  const std::vector<UnitSpec> specs = opt_units(info.config, info.head);
  const UnitOptions options{.prefix = "model", .dtype = dtype == DType::f64 ? DType::f64 : DType::f32};
  MemoryPlan plan;
  plan.add(UnitSet::footprint(specs, options));
  Arena arena(*device, std::move(plan));
  log::info("{}", arena.plan().table());
  UnitSet units(specs, options, arena, *stream, *communicator);
  arena.require_all_taken();

  init_weights(*stream, units, info.config, settings.seed);
  const InterruptGuard guard;
  write_model(*stream, settings.out, info, units, dtype);
  log::info("{}: {} parameters in {}", settings.out, units.parameters(), settings.dtype);
  return 0;
}

}  // namespace tercet
