#include "app/commands.h"
#include "app/provenance.h"
#include "base/log.h"
#include "base/temporary_path.h"
#include "model/hf_import.h"

namespace tercet {

int run_import(const ImportSettings& settings, const Json& settings_as_json) {
  ImportOptions options;
  if (!settings.dtype.empty()) options.dtype = parse_dtype(settings.dtype, "--dtype");
  if (!settings.prompt_template.empty()) options.prompt_template = settings.prompt_template;
  options.provenance = make_provenance("import", settings_as_json);
  check_output_place(settings.out, PathKind::file);
  import_hugging_face(settings.folder, settings.out, options);

  const ModelInfo info = read_model_info(settings.out);
  log::info("{}: {} parameters in {}{}", settings.out, info.config.parameters(), dtype_name(info.dtype),
            info.head == Head::scalar ? ", with a scalar head" : "");
  return 0;
}

}  // namespace tercet
