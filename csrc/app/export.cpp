#include "app/commands.h"
#include "base/log.h"
#include "model/hf_export.h"
#include "model/model_file.h"

namespace tercet {

int run_export(const ExportSettings& settings) {
  ExportOptions options;
  if (!settings.dtype.empty()) options.dtype = parse_dtype(settings.dtype, "--dtype");
  options.max_shard_size = parse_shard_size(settings.max_shard_size).value();  // checked as the flag was set
  export_hugging_face(settings.model, settings.out, options);

  const ModelInfo info = read_model_info(settings.model);
  log::info("{}: {} parameters in {}, for transformers' {}", settings.out, info.config.parameters(),
            dtype_name(options.dtype.value_or(info.dtype)),
            info.head == Head::scalar ? "OPTForSequenceClassification" : "OPTForCausalLM");
  return 0;
}

}  // namespace tercet
