#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_path.h"
#include "train/comparison.h"

namespace tercet {

int run_compare(const CompareSettings& settings) {
  if (!settings.out.empty()) check_output_place(settings.out, PathKind::file);
  const Comparison comparison = compare_runs(settings.runs);
  if (!settings.out.empty()) write_file_atomically(settings.out, comparison_page(comparison));
  fmt::print("{}", comparison_text(comparison));
  return 0;
}

}  // namespace tercet
