// `compare` on runs that the program has made.
#include "app/program.h"
#include "train/page.h"

namespace tercet {
namespace {

namespace fs = std::filesystem;

const std::string kData =
    "{\"prompt\": \"<script>alert(1)</script> & a\", \"response\": \"b c\"}\n"
    "{\"prompt\": \"bb\", \"response\": \"x\"}\n{\"prompt\": \"c\", \"response\": \"mn\"}\n";

std::string train(const TemporaryFolder& folder, const std::string& model, const std::string& name,
                  const std::string& lr) {
  const std::string out = folder.path + "/" + name, data = folder.file("data.jsonl", kData);
  const ProgramResult result =
      run_program({"sft", "--model",      model, "--data",       data, "--eval-data",  data, "--steps",
                   "3",   "--eval-every", "2",   "--batch-size", "2",  "--max-length", "64", "--threads",
                   "1",   "--lr",         lr,    "--out",        out});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return out;
}

}  // namespace

TEST_CASE("two runs are compared in a table and on a page whose curves are their logs'") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string a = train(folder, model, "low", "1e-3"), b = train(folder, model, "high", "1e-2");
  const std::string page_path = folder.path + "/page.html";
  const ProgramResult result = run_program({"compare", a, b, "--out", page_path});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  CHECK(contains(result.out, "2 runs of sft"));
  CHECK(contains(result.out, "\nSettings that differ\n  flag  low    high\n  lr    0.001  0.01\n"));
  CHECK_FALSE(contains(result.out, "hashes differ"));
  CHECK(run_program({"compare", a, b}).out == result.out);
  const std::string page = read_file(page_path);
  CHECK(testing::is_self_contained(page));
  size_t held_out = 0;
  for (const testing::PlottedSeries& series : testing::plotted_series(page)) {
    CAPTURE(series.figure);
    CAPTURE(series.label);
    CHECK(series.placed);
    CHECK(series.points == testing::logged_points(folder.path + "/" + series.run, series));
    held_out += series.y_name == "eval/loss" && series.points.size() == 3 ? 1 : 0;
  }
  CHECK(held_out == 4);  // of two runs, against steps and tokens
}

TEST_CASE("a run's own report shows its held-out records, escaped, and plots what its logs say") {
  const TemporaryFolder folder;
  const std::string run = train(folder, make_model(folder), "run", "1e-2");
  const std::string page = read_file(run + "/report.html");
  CHECK(testing::is_self_contained(page));
  CHECK(contains(page, "Fixed records, before and after"));
  CHECK(contains(page, "Human: &lt;script&gt;alert(1)&lt;/script&gt; &amp; a"));
  CHECK_FALSE(contains(page, "<script"));
  const std::vector<Json> samples = json_lines(read_file(run + "/samples.jsonl"));
  REQUIRE(samples.size() == 9);  // three records at steps 0, 2 and 3
  CHECK(samples[3].at("step").as_int() == 2);
  CHECK(samples[3].at("record").as_int() == 0);
  CHECK(contains(samples[3].at("prompt").as_string(), "<script>alert(1)</script> & a"));
  CHECK(samples[3].at("response").as_string() == " b c");
  CHECK(samples[3].at("loss").as_double() > 0);
  size_t series_count = 0;
  for (const testing::PlottedSeries& series : testing::plotted_series(page)) {
    CAPTURE(series.label);
    CHECK(series.points == testing::logged_points(run, series));
    ++series_count;
  }
  CHECK(series_count == 12);  // four figures twice (loss, perplexity, accuracy, entropy), two rates, two norms
}

TEST_CASE("compare refuses what it cannot compare and leaves no page") {
  const TemporaryFolder folder;
  const std::string page = folder.path + "/page.html";
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramResult result = run_program(arguments);
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(contains(result.err, message), result.err);
    CHECK(result.out == "");
    CHECK_FALSE(fs::exists(page));
  };
  refused({"compare"}, "compare needs RUN...");
  refused({"compare", folder.path, "--out", page}, "give two runs or more");
  refused({"compare", folder.path, folder.path, "--out", page}, "the folder holds no run");
  refused({"compare", folder.path, folder.path, "--out", folder.path}, folder.path);
}

}  // namespace tercet
