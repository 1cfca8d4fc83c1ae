#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"
#include "data/records.h"

namespace tercet {
namespace {

constexpr size_t buffer_bytes = size_t{1} << 16;
constexpr size_t max_line_bytes = size_t{64} << 20;
constexpr int gzip_window = 15 + 16;  // zlib's largest window, gzip header and trailer expected
constexpr std::string_view gzip_magic("\x1f\x8b", 2);

}  // namespace

// The bytes of the file, inflated where it is gzip, in text[begin, end).
struct LineReader::Source {
  std::FILE* file = nullptr;
  bool gzip = false;
  bool in_member = false;  // inside a gzip member, which must end before the file does
  z_stream inflater{};
  std::array<char, buffer_bytes> compressed;
  std::array<char, buffer_bytes> text;
  size_t begin = 0;
  size_t end = 0;

  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (gzip) inflateEnd(&inflater);
    if (file != nullptr) std::fclose(file);
  }

  size_t read(std::array<char, buffer_bytes>& into, const std::string& path) {
    const size_t bytes = std::fread(into.data(), 1, into.size(), file);
    if (bytes == 0 && std::ferror(file) != 0) fail_errno("cannot read", path);
    return bytes;
  }

  void start_inflating() {
    gzip = true;
    TERCET_REQUIRE(inflateInit2(&inflater, gzip_window) == Z_OK, "zlib cannot start");
  }

  // Fills `text` with at least one byte; false at the end of the file.
  bool inflate_some(const std::string& path, const std::string& where) {
    inflater.next_out = reinterpret_cast<Bytef*>(text.data());
    inflater.avail_out = static_cast<uInt>(text.size());
    while (inflater.avail_out == text.size()) {
      if (inflater.avail_in == 0) {
        inflater.avail_in = static_cast<uInt>(read(compressed, path));
        inflater.next_in = reinterpret_cast<Bytef*>(compressed.data());
      }
      if (inflater.avail_in == 0) {
        if (in_member) fail_input("the gzip data ends early", where, "fetch the file again");
        return false;
      }
      in_member = true;
      const int status = inflate(&inflater, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        in_member = false;
        inflateReset(&inflater);
      } else if (status != Z_OK) {
        fail_input(fmt::format("the gzip data is damaged ({})", inflater.msg != nullptr ? inflater.msg : "zlib error"),
                   where, "fetch the file again");
      }
    }
    begin = 0;
    end = text.size() - inflater.avail_out;
    return true;
  }
};

LineReader::LineReader(const std::string& path) : path_(path), source_(std::make_unique<Source>()) {
  source_->file = std::fopen(path.c_str(), "rbe");
  if (source_->file == nullptr)
    fail_input(fmt::format("cannot open the file: {}", std::strerror(errno)), path, "check the path");
  std::array<char, 2> magic{};
  const bool is_gzip = std::fread(magic.data(), 1, magic.size(), source_->file) == magic.size() &&
                       std::string_view(magic.data(), 2) == gzip_magic;
  if (std::ferror(source_->file) != 0)
    fail_input(fmt::format("cannot read: {}", std::strerror(errno)), path, "give a file");
  if (std::fseek(source_->file, 0, SEEK_SET) != 0) fail_input("not a regular file", path, "give the path of a file");
  const bool named_gzip = path.ends_with(".gz");
  if (named_gzip && !is_gzip) fail_input("the name ends in .gz but the content is not gzip", path, "rename the file");
  if (!named_gzip && is_gzip) fail_input("the content is gzip", path, "let the name end in .gz");
  if (is_gzip) source_->start_inflating();
}

LineReader::~LineReader() = default;

bool LineReader::fill() {
  if (source_->gzip) return source_->inflate_some(path_, fmt::format("{}:{}", path_, line_number_ + 1));
  source_->begin = 0;
  source_->end = source_->read(source_->text, path_);
  return source_->end > 0;
}

bool LineReader::next(std::string& line) {
  line.clear();
  bool found = false;
  while (source_->begin < source_->end || fill()) {
    found = true;
    const char* start = source_->text.data() + source_->begin;
    const size_t available = source_->end - source_->begin;
    const auto* feed = static_cast<const char*>(std::memchr(start, '\n', available));
    const size_t taken = feed != nullptr ? static_cast<size_t>(feed - start) : available;
    if (line.size() + taken > max_line_bytes)
      fail_input(fmt::format("a line of more than {} MiB", max_line_bytes >> 20),
                 fmt::format("{}:{}", path_, line_number_ + 1), "write one record a line");
    line.append(start, taken);
    source_->begin += taken + (feed != nullptr ? 1 : 0);
    if (feed != nullptr) break;
  }
  if (found) ++line_number_;
  return found;
}

std::string LineReader::where() const { return fmt::format("{}:{}", path_, line_number_); }

void for_each_json_line(const std::string& path, const std::function<void(const Json&, const std::string&)>& visit) {
  LineReader reader(path);
  for (std::string line; reader.next(line);) {
    const std::string where = reader.where();
    visit(parse_json(line, where), where);
  }
}

}  // namespace tercet
