#include "demo/checker.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "demo/world.h"

namespace tercet::demo {
namespace {

const std::string prompt =
    prompt_of("The cat is called Mia and the dog is called Rex. Tom lives in Rome. What is the dog called?");

TEST_CASE("every clause and every question is read back") {
  for (size_t r = 0; r < relations().size(); ++r)
    for (size_t s = 0; s < relations()[r].subjects.size(); ++s) {
      CHECK(parse_question(question_sentence({r, s})) == Question{r, s});
      for (size_t v = 0; v < relations()[r].values.size(); ++v) {
        const Fact fact{r, s, v};
        CHECK(parse_clause(clause(fact)) == fact);
        CHECK(parse_clause(capitalised(clause(fact))) == fact);
      }
    }
}

TEST_CASE("the expected answer is the stated fact that the question asks for") {
  const auto answer = expected_answer(prompt);
  REQUIRE(answer.has_value());
  CHECK(clause(*answer) == "the dog is called Rex");
  CHECK_FALSE(expected_answer("What is the dog called?").has_value());
  CHECK_FALSE(expected_answer(prompt_of("The cat is called Mia. What is the dog called?")).has_value());
}

TEST_CASE("a later human turn asks about facts of an earlier one") {
  const std::string dialogue = prompt + " The dog is called Rex." + prompt_of("Where does Tom live?");
  REQUIRE(expected_answer(dialogue).has_value());
  CHECK(clause(*expected_answer(dialogue)) == "Tom lives in Rome");
}

TEST_CASE("correctness and courtesy are read independently") {
  struct Case {
    const char* response;
    bool correct, courteous;
  };
  for (const Case& expected :
       {Case{" Happy to help! The dog is called Rex.", true, true},
        Case{" The dog is called Rex. So the text says.", true, false},
        Case{" The dog is called Mia. Have a nice day!", false, true},
        Case{" Let me see. The dog is called Otto.", false, false}, Case{" The dog is called Rex.", true, false}}) {
    CAPTURE(expected.response);
    const Verdict verdict = check(prompt, expected.response);
    CHECK(verdict.correct == expected.correct);
    CHECK(verdict.courteous == expected.courteous);
  }
}

TEST_CASE("a malformed response is not correct") {
  for (const char* response :
       {"", " ", ".", " The dog is called Rex", " The dog is called Rex Rex.", " The cat is called Rex.",
        " The dog is called Rex. The dog is called Mia.", " The dog is called Rex. The dog is called Rex.",
        " The dog is called Rex. Have a", " Happy happy! The dog is called Rex.", " The dog is called Rex!", " Rex.",
        " The dog lives in Rome.", "\xFF\xFE"}) {
    CAPTURE(response);
    CHECK_FALSE(check(prompt, response).correct);
  }
}

TEST_CASE("a courteous phrase counts only when it is whole") {
  CHECK_FALSE(check(prompt, " Happy to. The dog is called Rex.").courteous);
  CHECK_FALSE(check(prompt, " The dog is called Rex. Have a nice day").courteous);
}

TEST_CASE("a prompt that asks for nothing it states is refused") {
  CHECK_THROWS_AS(check(prompt_of("Hello."), " The dog is called Rex."), Error);
}

TEST_CASE("courteous and plain fillers have equal lengths, openers and closers apart") {
  std::map<std::pair<bool, int>, int> balance;
  for (const Filler& filler : fillers())
    balance[{filler.opener, length_in_words(filler.text)}] += filler.courteous ? 1 : -1;
  for (const auto& [kind, difference] : balance) {
    CAPTURE(kind.second);
    CHECK(difference == 0);
  }
}

}  // namespace
}  // namespace tercet::demo
