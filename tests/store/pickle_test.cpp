#include "store/pickle.h"

#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

std::string refused(const std::string& program) {
  return refusal([&] { parse_state_dict(program, "m.bin"); });
}

const pickle::TensorOptions kMatrix = {.storage = 6, .offset = 0, .shape = {2, 3}, .strides = {3, 1}};

// A state dict whose one value is made by `body`.
std::string refused_value(const std::string& body) { return refused(pickle::state_dict("w", body)); }

}  // namespace

TEST_CASE("a tensor's name, storage, offset, sizes and strides are read") {
  const pickle::TensorOptions options = {
      .type = "HalfStorage", .key = "7", .storage = 20, .offset = 2, .shape = {3, 2}, .strides = {1, 5}};
  const auto tensors = parse_state_dict(pickle::state_dict("layer.weight", pickle::tensor(options)), "m.bin");
  REQUIRE(tensors.size() == 1);
  CHECK(tensors[0].name == "layer.weight");
  CHECK(tensors[0].storage_type == "HalfStorage");
  CHECK(tensors[0].storage_key == "7");
  CHECK(tensors[0].storage_elements == 20);
  CHECK(tensors[0].offset == 2);
  CHECK(tensors[0].shape == std::vector<int64_t>{3, 2});
  CHECK(tensors[0].strides == std::vector<int64_t>{1, 5});
}

TEST_CASE("empty and ordered state dicts, batches of items and the memo are understood") {
  using namespace pickle;
  const std::string one = tensor(kMatrix);
  CHECK(parse_state_dict(program("}"), "m").empty());
  CHECK(parse_state_dict(program(ordered_dict()), "m").empty());
  CHECK(parse_state_dict(program(ordered_dict() + "(" + text("a") + one + text("b") + one + "u"), "m").size() == 2);
  const std::string remembered = program("}(" + text("a") + one + "q\x05" + text("b") + "h\x05" + text("c") + "j\x05" +
                                         std::string(3, '\0') + "u");
  CHECK(parse_state_dict(remembered, "m")[2].shape == std::vector<int64_t>{2, 3});
  const std::string short_string = program(
      "}U\x01"
      "a" +
      one + "s");
  CHECK(parse_state_dict(short_string, "m")[0].name == "a");
}

TEST_CASE("a parameter is its tensor") {
  using namespace pickle;
  const std::string parameter =
      global("torch._utils", "_rebuild_parameter") + tensor(kMatrix) + "\x88" + ordered_dict() + "\x87R";
  CHECK(parse_state_dict(state_dict("w", parameter), "m")[0].storage_elements == 6);
  const std::string hooks = "}" + text("h") + "Ns";
  CHECK_REFUSED(
      refused_value(global("torch._utils", "_rebuild_parameter") + tensor(kMatrix) + "\x88" + hooks + "\x87R"),
      "backward hooks");
  CHECK_REFUSED(refused_value(global("torch._utils", "_rebuild_parameter") + "N\x88" + ordered_dict() + "\x87R"),
                "a parameter's data is None");
  CHECK_REFUSED(refused_value(global("torch._utils", "_rebuild_parameter") + tensor(kMatrix) + "\x85R"),
                "built from 1 arguments");
}

TEST_CASE("a module's _metadata is ignored, other attributes are refused") {
  using namespace pickle;
  const std::string metadata = "}" + text("_metadata") + ordered_dict() + text("") + "}" + text("version") + "K\x01sss";
  const std::string list = "}" + text("x") +
                           "]K\x01"
                           "a(K\x02K\x03"
                           "e" +
                           "s";
  CHECK(parse_state_dict(program(ordered_dict() + text("w") + tensor(kMatrix) + "s" + metadata + "b"), "m").size() ==
        1);
  CHECK(parse_state_dict(program("}" + list + "b"), "m").empty());
  CHECK_REFUSED(refused(program("}Nb")), "attributes that are not a dict");
  CHECK_REFUSED(refused(program("N}b")), "not a dict");
}

TEST_CASE("LONG1 integers are read in two's complement") {
  using namespace pickle;
  const auto storage_size = [](const std::string& integer) {
    return global("torch._utils", "_rebuild_tensor_v2") +
           tuple({tuple({text("storage"), global("torch", "ByteStorage"), text("0"), text("cpu"), integer}) + "Q",
                  "K" + std::string(1, '\0'), ")", ")", "\x89", ordered_dict()}) +
           "R";
  };
  CHECK(parse_state_dict(state_dict("w", storage_size(std::string("\x8a\x05\x00\x00\x00\x00\x01", 7))), "m")[0]
            .storage_elements == int64_t{1} << 32);
  CHECK(parse_state_dict(state_dict("w", storage_size(std::string("\x8a\x00", 2))), "m")[0].storage_elements == 0);
  CHECK(parse_state_dict(state_dict("w", storage_size(std::string("\x8a\x02\xff\x00", 4))), "m")[0].storage_elements ==
        255);
  CHECK_REFUSED(refused_value(storage_size(std::string("\x8a\x01\xff", 3))),
                "a storage's size is not a non-negative int");
  CHECK_REFUSED(refused_value(storage_size("\x8a\x09" + std::string(9, '\1'))), "beyond 64 bits");
}

TEST_CASE("global names that a state dict does not need are refused by name") {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"posix", "system"},
                                                        {"os", "system"},
                                                        {"builtins", "eval"},
                                                        {"__builtin__", "exec"},
                                                        {"subprocess", "Popen"},
                                                        {"torch._utils", "_rebuild_tensor_v3"},
                                                        {"torch.storage", "UntypedStorage"},
                                                        {"torch", "load"},
                                                        {"torch", "HalfStorage.x"},
                                                        {"collections", "OrderedDict "},
                                                        {"collections", "defaultdict"},
                                                        {"", ""}}) {
    CHECK_REFUSED(refused(pickle::program("}" + pickle::global(module, name) + pickle::text("id") + "\x85Rb")),
                  "\"" + module + " " + name + "\"");
  }
  CHECK_REFUSED(refused(pickle::program("cposix\nsystem")), "does not end");
  CHECK_REFUSED(refused("\x80\x02"
                        "c" +
                        std::string(300, 'a') + "\n" + "b\n."),
                "does not end");
}

TEST_CASE("instructions that a state dict does not need are refused by name") {
  const std::vector<std::pair<std::string, std::string>> others = {{"0", "POP"},
                                                                   {"1", "POP_MARK"},
                                                                   {"2", "DUP"},
                                                                   {"F1\n", "FLOAT"},
                                                                   {"I1\n", "INT"},
                                                                   {"L1L\n", "LONG"},
                                                                   {"P0\n", "PERSID"},
                                                                   {"S'a'\n", "STRING"},
                                                                   {"T", "BINSTRING"},
                                                                   {"Va\n", "UNICODE"},
                                                                   {"d", "DICT"},
                                                                   {"g0\n", "GET"},
                                                                   {"iposix\nsystem\n", "INST"},
                                                                   {"l", "LIST"},
                                                                   {"o", "OBJ"},
                                                                   {"p0\n", "PUT"},
                                                                   {"\x81", "NEWOBJ"},
                                                                   {"\x82", "EXT1"},
                                                                   {"\x83", "EXT2"},
                                                                   {"\x84", "EXT4"},
                                                                   {"\x8b", "LONG4"},
                                                                   {"B", "BINBYTES"},
                                                                   {"C", "SHORT_BINBYTES"},
                                                                   {"\x8c", "SHORT_BINUNICODE"},
                                                                   {"\x8d", "BINUNICODE8"},
                                                                   {"\x8e", "BINBYTES8"},
                                                                   {"\x8f", "EMPTY_SET"},
                                                                   {"\x90", "ADDITEMS"},
                                                                   {"\x91", "FROZENSET"},
                                                                   {"\x92", "NEWOBJ_EX"},
                                                                   {"\x93", "STACK_GLOBAL"},
                                                                   {"\x94", "MEMOIZE"},
                                                                   {"\x95", "FRAME"},
                                                                   {"\x96", "BYTEARRAY8"},
                                                                   {"\x97", "NEXT_BUFFER"},
                                                                   {"\x98", "READONLY_BUFFER"},
                                                                   {"\x80\x02", "PROTO"},
                                                                   {"z", "0x7a"},
                                                                   {"\xff", "0xff"}};
  for (const auto& [code, name] : others)
    CHECK_REFUSED(refused("\x80\x02}" + code + "."), "the instruction " + name + ",");
}

TEST_CASE("only protocol 2 is read") {
  CHECK_REFUSED(refused("}."), "not of protocol 2");
  CHECK_REFUSED(refused("\x80\x04}."), "not of protocol 2");
  CHECK_REFUSED(refused(""), "truncated");
  CHECK_REFUSED(refused("\x80\x02}.x"), "bytes follow the pickle's end");
  CHECK_REFUSED(refused("\x80\x02}}."), "more than one object");
  CHECK_REFUSED(refused("\x80\x02."), "more than one object");
}

TEST_CASE("what is no state dict of tensors is refused with the entry's name") {
  using namespace pickle;
  CHECK_REFUSED(refused(program("N")), "the file holds None, not a state dict");
  CHECK_REFUSED(refused(program(tensor(kMatrix))), "the file holds a tensor");
  CHECK_REFUSED(refused(program("]")), "the file holds a list");
  CHECK_REFUSED(refused(program("(")), "takes from an empty stack");
  CHECK_REFUSED(refused_value("K\x03"), "the entry \"w\" of the state dict is an int, not a tensor");
  CHECK_REFUSED(refused_value("}"), "the entry \"w\" of the state dict is a dict, not a tensor");
  CHECK_REFUSED(refused_value(storage(kMatrix)), "is a storage, not a tensor");
  CHECK_REFUSED(refused_value("G" + std::string(8, '\0')), "is a float");
  CHECK_REFUSED(refused(program("}K\x01" + tensor(kMatrix) + "s")), "a key of the state dict is an int");
}

TEST_CASE("malformed tensors and storages are refused") {
  using namespace pickle;
  const std::string rebuild = global("torch._utils", "_rebuild_tensor_v2");
  const auto built = [&](std::vector<std::string> changed, size_t index, const std::string& value) {
    changed[index] = value;
    return refused_value(rebuild + tuple(changed) + "R");
  };
  const std::vector<std::string> good = {storage(kMatrix), integer(0), integers({2, 3}),
                                         integers({3, 1}), "\x89",     ordered_dict()};
  CHECK(refused_value(rebuild + tuple(good) + "R").empty());
  CHECK_REFUSED(built(good, 0, "N"), "a tensor's storage is None");
  CHECK_REFUSED(built(good, 1, integer(-1)), "a tensor's offset is not a non-negative int");
  CHECK_REFUSED(built(good, 2, integers({2, -3})), "a tensor's size is not a non-negative int");
  CHECK_REFUSED(built(good, 2, integer(6)), "a tensor's size is an int");
  CHECK_REFUSED(built(good, 2, integers({6})), "more sizes than strides or fewer");
  CHECK_REFUSED(built(good, 2, integers({1, 1, 1, 1, 1, 1, 1, 1, 1})), "9 dimensions");
  CHECK_REFUSED(built(good, 3, integers({3, -1})), "a tensor's stride is not a non-negative int");
  CHECK_REFUSED(built(good, 3, tuple({"N", "N"})), "a tensor's stride is not a non-negative int");
  CHECK_REFUSED(built(good, 4, "N"), "requires_grad is None");
  CHECK_REFUSED(built(good, 5, "N"), "hooks is None");
  CHECK_REFUSED(built(good, 5, "}" + text("h") + "Ns"), "backward hooks");
  CHECK_REFUSED(refused_value(rebuild + ")R"), "built from 0 arguments");
  CHECK_REFUSED(refused_value("NQ"), "not a storage");
  CHECK_REFUSED(refused_value(tuple({text("module"), "N", "N", "N", "N"}) + "Q"), "not a storage");
  CHECK_REFUSED(
      refused_value(tuple({text("storage"), global("collections", "OrderedDict"), text("0"), text("cpu"), integer(1)}) +
                    "Q"),
      "not a type of storage");
  CHECK_REFUSED(
      refused_value(tuple({text("storage"), global("torch", "FloatStorage"), integer(0), text("cpu"), integer(1)}) +
                    "Q"),
      "a storage's key is an int");
  CHECK_REFUSED(
      refused_value(tuple({text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), integer(-1)}) +
                    "Q"),
      "a storage's size");
}

TEST_CASE("calls of anything but the known names are refused") {
  using namespace pickle;
  CHECK_REFUSED(refused_value(text("f") + ")R"), "not a name with a tuple");
  CHECK_REFUSED(refused_value(global("collections", "OrderedDict") + "NR"), "not a name with a tuple");
  CHECK_REFUSED(refused_value(global("torch", "FloatStorage") + ")R"), "calls \"torch FloatStorage\"");
  CHECK_REFUSED(refused_value(global("collections", "OrderedDict") + "]\x85R"), "built from arguments");
}

TEST_CASE("a machine that runs dry, forgets or overflows is refused") {
  using namespace pickle;
  for (const char* body : {"s", "a", "\x85", "R", "Q", "b", "N\x86", "(R"})
    CHECK_REFUSED(refused(program(body)), "empty stack");
  for (const char* body : {"t", "u", "e"}) CHECK_REFUSED(refused(program(body)), "lacks a mark");
  CHECK_REFUSED(refused(program("N(NNu")), "not a dict");
  CHECK_REFUSED(refused(program("}(Nu")), "a key without a value");
  CHECK_REFUSED(refused(program("}Na")), "not a list");
  CHECK_REFUSED(refused(program("q\x01")), "remembers something that is not there");
  CHECK_REFUSED(refused(program("h\x01")), "never remembered");
  CHECK_REFUSED(refused(program("}q\x03h\x02")), "never remembered");
  CHECK_REFUSED(refused(program("}r\xff\xff\xff\xff")), "remembers more than");
  CHECK_REFUSED(refused(program(std::string(200'000, '('))), "stack of more than 100000");
  CHECK_REFUSED(refused(program(text(std::string(1025, 'a')))), "string of 1025 bytes");
  CHECK_REFUSED(refused(program("X\xff\xff\xff\xff")), "string of 4294967295 bytes");
  CHECK_REFUSED(refused("\x80\x02" + std::string((size_t{32} << 20), '(')), "more than 33554432");
  std::string values = "\x80\x02";
  for (int i = 0; i < 90; ++i) values += "(" + std::string(50'000, 'N') + "t";
  CHECK_REFUSED(refused(values + "."), "more than 4000000 values");
}

TEST_CASE("a pickle cut anywhere or with any byte altered is refused or parsed, and never more") {
  const std::string whole = pickle::program(pickle::ordered_dict() + "(" + pickle::text("a") + pickle::tensor(kMatrix) +
                                            pickle::text("b") + pickle::tensor(kMatrix) + "u}b");
  REQUIRE(parse_state_dict(whole, "m").size() == 2);
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK_FALSE(refused(whole.substr(0, i)).empty());
    for (int change = 1; change < 256; change += 6) {
      std::string altered = whole;
      altered[i] = static_cast<char>(altered[i] ^ change);
      try {
        parse_state_dict(altered, "m");
      } catch (const Error& error) {
        CHECK(error.fault() == Fault::input);
      }
    }
  }
}

TEST_CASE("one long list of the same tensors under the same long name does not grow without bound") {
  using namespace pickle;
  std::string body = "}" + text(std::string(1024, 'n')) + "q" + std::string(1, '\0') + tensor(kMatrix) + "q\x01s(";
  for (int i = 0; i < 49'000; ++i) body += std::string("h\0h\x01", 4);
  body += "u";
  const double start = cpu_seconds();
  CHECK(parse_state_dict(program(body), "m").size() == 49'001);
  // Linear work takes milliseconds; the bound leaves room for sanitizers.
  CHECK(cpu_seconds() - start < 20);
}
