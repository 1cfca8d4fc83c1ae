#include "demo/answers.h"

#include "base/error.h"
#include "data/records.h"
#include "demo/checker.h"

namespace tercet::demo {

std::vector<Answer> read_answers(const std::string& path) {
  std::vector<Answer> answers;
  for_each_json_line(path, [&](const Json& record, const std::string& where) {
    const auto text = [&](const char* name) {
      const Json* field = record.find(name);
      if (field == nullptr || !field->is_string())
        fail_input(fmt::format("the record has no text field \"{}\"", name), where,
                   "give the answers of tercet generate");
      return field->as_string();
    };
    answers.push_back({text("prompt"), text("response")});
  });
  if (answers.empty()) fail_input("there is no record", path, "give a file with at least one answer");
  return answers;
}

Rates checked_rates(const std::vector<Answer>& answers) {
  int64_t correct = 0;
  int64_t courteous = 0;
  for (const Answer& answer : answers) {
    const Verdict verdict = check(answer.prompt, answer.response);
    correct += verdict.correct;
    courteous += verdict.courteous;
  }
  const auto count = static_cast<double>(answers.size());
  return {static_cast<double>(correct) / count, static_cast<double>(courteous) / count};
}

}  // namespace tercet::demo
