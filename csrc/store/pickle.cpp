#include "store/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"
#include "store/tensor_file.h"

namespace tercet {
namespace {

constexpr size_t kMaxPickleBytes = size_t{32} << 20;
constexpr size_t kMaxValues = 4'000'000;
constexpr size_t kMaxStack = 100'000;
constexpr size_t kMaxStringBytes = kMaxTensorNameBytes;
constexpr size_t kMaxGlobalBytes = 256;
constexpr uint8_t kProtocol = 2;
constexpr const char* kRemedy = "save the weights alone, with torch.save(model.state_dict(), ...)";

enum class Kind { mark, none, boolean, integer, real, string, tuple, list, dict, global, storage, tensor };

constexpr const char* kKindNames[] = {"a mark",  "None",   "a bool", "an int",        "a float",   "a string",
                                      "a tuple", "a list", "a dict", "a global name", "a storage", "a tensor"};

// One object on the pickle machine's stack; texts are views of the pickle. Items are those of a tuple or list, a dict's
// keys and values in turn, a storage's type, and a tensor's arguments. A storage's text is its key, its integer its
// size.
struct Value {
  Kind kind = Kind::none;
  int64_t integer = 0;
  std::string_view text;
  std::vector<const Value*> items;
};

struct Opcode {
  char code;
  const char* name;
};

constexpr std::array kOpcodes = {
    Opcode{'(', "MARK"},
    Opcode{'.', "STOP"},
    Opcode{'0', "POP"},
    Opcode{'1', "POP_MARK"},
    Opcode{'2', "DUP"},
    Opcode{'F', "FLOAT"},
    Opcode{'I', "INT"},
    Opcode{'J', "BININT"},
    Opcode{'K', "BININT1"},
    Opcode{'L', "LONG"},
    Opcode{'M', "BININT2"},
    Opcode{'N', "NONE"},
    Opcode{'P', "PERSID"},
    Opcode{'Q', "BINPERSID"},
    Opcode{'R', "REDUCE"},
    Opcode{'S', "STRING"},
    Opcode{'T', "BINSTRING"},
    Opcode{'U', "SHORT_BINSTRING"},
    Opcode{'V', "UNICODE"},
    Opcode{'X', "BINUNICODE"},
    Opcode{'a', "APPEND"},
    Opcode{'b', "BUILD"},
    Opcode{'c', "GLOBAL"},
    Opcode{'d', "DICT"},
    Opcode{'}', "EMPTY_DICT"},
    Opcode{'e', "APPENDS"},
    Opcode{'g', "GET"},
    Opcode{'h', "BINGET"},
    Opcode{'i', "INST"},
    Opcode{'j', "LONG_BINGET"},
    Opcode{'l', "LIST"},
    Opcode{']', "EMPTY_LIST"},
    Opcode{'o', "OBJ"},
    Opcode{'p', "PUT"},
    Opcode{'q', "BINPUT"},
    Opcode{'r', "LONG_BINPUT"},
    Opcode{'s', "SETITEM"},
    Opcode{'t', "TUPLE"},
    Opcode{')', "EMPTY_TUPLE"},
    Opcode{'u', "SETITEMS"},
    Opcode{'G', "BINFLOAT"},
    Opcode{'\x80', "PROTO"},
    Opcode{'\x81', "NEWOBJ"},
    Opcode{'\x82', "EXT1"},
    Opcode{'\x83', "EXT2"},
    Opcode{'\x84', "EXT4"},
    Opcode{'\x85', "TUPLE1"},
    Opcode{'\x86', "TUPLE2"},
    Opcode{'\x87', "TUPLE3"},
    Opcode{'\x88', "NEWTRUE"},
    Opcode{'\x89', "NEWFALSE"},
    Opcode{'\x8a', "LONG1"},
    Opcode{'\x8b', "LONG4"},
    Opcode{'B', "BINBYTES"},
    Opcode{'C', "SHORT_BINBYTES"},
    Opcode{'\x8c', "SHORT_BINUNICODE"},
    Opcode{'\x8d', "BINUNICODE8"},
    Opcode{'\x8e', "BINBYTES8"},
    Opcode{'\x8f', "EMPTY_SET"},
    Opcode{'\x90', "ADDITEMS"},
    Opcode{'\x91', "FROZENSET"},
    Opcode{'\x92', "NEWOBJ_EX"},
    Opcode{'\x93', "STACK_GLOBAL"},
    Opcode{'\x94', "MEMOIZE"},
    Opcode{'\x95', "FRAME"},
    Opcode{'\x96', "BYTEARRAY8"},
    Opcode{'\x97', "NEXT_BUFFER"},
    Opcode{'\x98', "READONLY_BUFFER"},
};

constexpr std::string_view kOrderedDict = "collections\nOrderedDict";
constexpr std::string_view kRebuildTensor = "torch._utils\n_rebuild_tensor_v2";
constexpr std::string_view kRebuildParameter = "torch._utils\n_rebuild_parameter";
constexpr std::string_view kStorageModule = "torch\n";

constexpr std::array<std::string_view, 13> kGlobals = {
    kOrderedDict,          kRebuildTensor,           kRebuildParameter,      "torch\nHalfStorage",
    "torch\nFloatStorage", "torch\nBFloat16Storage", "torch\nDoubleStorage", "torch\nLongStorage",
    "torch\nIntStorage",   "torch\nShortStorage",    "torch\nCharStorage",   "torch\nByteStorage",
    "torch\nBoolStorage"};

// "module name" of a global, for messages.
std::string global_name(std::string_view text) {
  std::string name(text);
  std::replace(name.begin(), name.end(), '\n', ' ');
  return printable(name);
}

const char* kind_name(const Value& value) { return kKindNames[static_cast<size_t>(value.kind)]; }

class Machine {
 public:
  Machine(std::string_view pickle, const std::string& where) : pickle_(pickle), where_(where) {}

  // Runs to STOP and returns the one value that is left.
  const Value& run() {
    if (pickle_.size() > kMaxPickleBytes)
      fail(fmt::format("the pickle has {} bytes, more than {}", pickle_.size(), kMaxPickleBytes));
    if (take(1) != "\x80" || take_integer<uint8_t>() != kProtocol) fail("the pickle is not of protocol 2");
    while (step()) {
    }
    if (position_ != pickle_.size()) fail("bytes follow the pickle's end");
    if (stack_.size() != 1) fail("the pickle leaves more than one object");
    return *pop();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    fail_input(fmt::format("{} (data.pkl, byte {})", what, position_), where_, kRemedy);
  }

  std::string_view take(size_t bytes) {
    if (bytes > pickle_.size() - position_) fail("the pickle is truncated");
    const std::string_view text = pickle_.substr(position_, bytes);
    position_ += bytes;
    return text;
  }

  template <class T>
  T take_integer() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view take_line() {
    const size_t end = pickle_.substr(position_, kMaxGlobalBytes).find('\n');
    if (end == std::string_view::npos) fail("the pickle has a global name that does not end");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  void push(const Value* value) {
    if (stack_.size() == kMaxStack) fail(fmt::format("the pickle needs a stack of more than {}", kMaxStack));
    stack_.push_back(value);
  }

  Value& create(Kind kind) {
    if (values_.size() == kMaxValues) fail(fmt::format("the pickle has more than {} values", kMaxValues));
    Value& value = values_.emplace_back();
    value.kind = kind;
    return value;
  }

  void push_new(Kind kind, int64_t integer = 0, std::string_view text = {}) {
    Value& value = create(kind);
    value.integer = integer;
    value.text = text;
    push(&value);
  }

  void push_string(size_t bytes) {
    if (bytes > kMaxStringBytes)
      fail(fmt::format("the pickle has a string of {} bytes, more than {}", bytes, kMaxStringBytes));
    push_new(Kind::string, 0, take(bytes));
  }

  const Value* pop() {
    if (stack_.empty() || stack_.back()->kind == Kind::mark) fail("the pickle takes from an empty stack");
    const Value* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  // The topmost value, to be changed: every value lives in values_ of this machine.
  Value& top(Kind kind) {
    if (stack_.empty() || stack_.back()->kind != kind)
      fail(fmt::format("the pickle changes something that is not {}", kKindNames[static_cast<size_t>(kind)]));
    return const_cast<Value&>(*stack_.back());
  }

  std::vector<const Value*> pop_to_mark() {
    const auto mark =
        std::find_if(stack_.rbegin(), stack_.rend(), [](const Value* value) { return value->kind == Kind::mark; });
    if (mark == stack_.rend()) fail("the pickle lacks a mark");
    std::vector<const Value*> items(mark.base(), stack_.end());
    stack_.erase(std::prev(mark.base()), stack_.end());
    return items;
  }

  std::vector<const Value*> pop_many(size_t count) {
    std::vector<const Value*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  void push_tuple(std::vector<const Value*> items) {
    Value& tuple = create(Kind::tuple);
    tuple.items = std::move(items);
    push(&tuple);
  }

  void extend(Kind kind, const std::vector<const Value*>& items) {
    if (kind == Kind::dict && items.size() % 2 != 0) fail("the pickle sets a key without a value");
    std::vector<const Value*>& target = top(kind).items;
    target.insert(target.end(), items.begin(), items.end());
  }

  void put(size_t index) {
    if (index >= kMaxValues) fail(fmt::format("the pickle remembers more than {} values", kMaxValues));
    if (stack_.empty() || stack_.back()->kind == Kind::mark) fail("the pickle remembers something that is not there");
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = stack_.back();
  }

  void get(size_t index) {
    if (index >= memo_.size() || memo_[index] == nullptr) fail("the pickle recalls something that it never remembered");
    push(memo_[index]);
  }

  void push_long() {
    const std::string_view bytes = take(take_integer<uint8_t>());
    if (bytes.size() > sizeof(int64_t)) fail("the pickle has an integer beyond 64 bits");
    uint64_t value = !bytes.empty() && (static_cast<uint8_t>(bytes.back()) & 0x80u) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    push_new(Kind::integer, static_cast<int64_t>(value));
  }

  void push_global() {
    const size_t begin = position_;
    take_line();
    take_line();
    const std::string_view name = pickle_.substr(begin, position_ - begin - 1);
    if (std::find(kGlobals.begin(), kGlobals.end(), name) == kGlobals.end())
      fail(fmt::format("the pickle asks for \"{}\", which a state dict does not need; it is not loaded",
                       global_name(name)));
    push_new(Kind::global, 0, name);
  }

  const Value& item(const Value& tuple, size_t index, Kind kind, const char* what) const {
    const Value& value = *tuple.items[index];
    if (value.kind != kind)
      fail(fmt::format("{} is {}, not {}", what, kind_name(value), kKindNames[static_cast<size_t>(kind)]));
    return value;
  }

  int64_t count(const Value& value, const char* what) const {
    if (value.kind != Kind::integer || value.integer < 0) fail(fmt::format("{} is not a non-negative int", what));
    return value.integer;
  }

  // ('storage', type, key, location, number of elements)
  void push_storage() {
    const Value& id = *pop();
    if (id.kind != Kind::tuple || id.items.size() != 5 ||
        item(id, 0, Kind::string, "a persistent id's tag").text != "storage")
      fail("the pickle has a persistent id that is not a storage");
    const Value& type = item(id, 1, Kind::global, "a storage's type");
    const Value& key = item(id, 2, Kind::string, "a storage's key");
    item(id, 3, Kind::string, "a storage's location");
    if (!type.text.starts_with(kStorageModule))
      fail(fmt::format("\"{}\" is not a type of storage", global_name(type.text)));
    Value& storage = create(Kind::storage);
    storage.text = key.text;
    storage.integer = count(*id.items[4], "a storage's size");
    storage.items = {&type};
    push(&storage);
  }

  void check_counts(const Value& tuple, const char* what) const {
    if (tuple.items.size() > kMaxTensorRank)
      fail(fmt::format("a tensor has {} dimensions, more than {}", tuple.items.size(), kMaxTensorRank));
    for (const Value* value : tuple.items) count(*value, what);
  }

  // (storage, offset, size, stride, requires_grad, backward_hooks)
  void push_tensor(const Value& arguments) {
    if (arguments.items.size() != 6)
      fail(fmt::format("a tensor is built from {} arguments, not 6", arguments.items.size()));
    item(arguments, 0, Kind::storage, "a tensor's storage");
    count(*arguments.items[1], "a tensor's offset");
    const Value& size = item(arguments, 2, Kind::tuple, "a tensor's size");
    const Value& stride = item(arguments, 3, Kind::tuple, "a tensor's stride");
    check_counts(size, "a tensor's size");
    check_counts(stride, "a tensor's stride");
    if (size.items.size() != stride.items.size()) fail("a tensor has more sizes than strides or fewer");
    item(arguments, 4, Kind::boolean, "a tensor's requires_grad");
    if (!item(arguments, 5, Kind::dict, "a tensor's hooks").items.empty()) fail("a tensor has backward hooks");
    Value& tensor = create(Kind::tensor);
    tensor.items = arguments.items;
    push(&tensor);
  }

  // (tensor, requires_grad, backward_hooks)
  void push_parameter(const Value& arguments) {
    if (arguments.items.size() != 3)
      fail(fmt::format("a parameter is built from {} arguments, not 3", arguments.items.size()));
    const Value& tensor = item(arguments, 0, Kind::tensor, "a parameter's data");
    item(arguments, 1, Kind::boolean, "a parameter's requires_grad");
    if (!item(arguments, 2, Kind::dict, "a parameter's hooks").items.empty()) fail("a parameter has backward hooks");
    push(&tensor);
  }

  void reduce() {
    const Value& arguments = *pop();
    const Value& callable = *pop();
    if (callable.kind != Kind::global || arguments.kind != Kind::tuple)
      fail("the pickle calls something that is not a name with a tuple");
    if (callable.text == kRebuildTensor) return push_tensor(arguments);
    if (callable.text == kRebuildParameter) return push_parameter(arguments);
    if (callable.text != kOrderedDict) fail(fmt::format("the pickle calls \"{}\"", global_name(callable.text)));
    if (!arguments.items.empty()) fail("an OrderedDict is built from arguments");
    push_new(Kind::dict);
  }

  // Sets attributes of a dict: the `_metadata` of a module's state dict, which holds no weights.
  void build() {
    if (pop()->kind != Kind::dict) fail("the pickle sets attributes that are not a dict");
    top(Kind::dict);
  }

  [[noreturn]] void refuse(char code) {
    const auto* opcode =
        std::find_if(kOpcodes.begin(), kOpcodes.end(), [&](const Opcode& o) { return o.code == code; });
    const std::string name =
        opcode == kOpcodes.end() ? fmt::format("0x{:02x}", static_cast<uint8_t>(code)) : opcode->name;
    fail(fmt::format("the pickle has the instruction {}, which a state dict does not need", name));
  }

  // Executes one instruction; false at STOP.
  bool step() {
    const char code = take(1)[0];
    switch (code) {
      case '.':
        return false;
      case '(':
        push_new(Kind::mark);
        break;
      case 'N':
        push_new(Kind::none);
        break;
      case '\x88':
        push_new(Kind::boolean, 1);
        break;
      case '\x89':
        push_new(Kind::boolean, 0);
        break;
      case 'J':
        push_new(Kind::integer, take_integer<int32_t>());
        break;
      case 'K':
        push_new(Kind::integer, take_integer<uint8_t>());
        break;
      case 'M':
        push_new(Kind::integer, take_integer<uint16_t>());
        break;
      case '\x8a':
        push_long();
        break;
      case 'G':
        take(sizeof(double));
        push_new(Kind::real);
        break;
      case 'X':
        push_string(take_integer<uint32_t>());
        break;
      case 'U':
        push_string(take_integer<uint8_t>());
        break;
      case ')':
        push_new(Kind::tuple);
        break;
      case '\x85':
        push_tuple(pop_many(1));
        break;
      case '\x86':
        push_tuple(pop_many(2));
        break;
      case '\x87':
        push_tuple(pop_many(3));
        break;
      case 't':
        push_tuple(pop_to_mark());
        break;
      case ']':
        push_new(Kind::list);
        break;
      case 'a':
        extend(Kind::list, pop_many(1));
        break;
      case 'e':
        extend(Kind::list, pop_to_mark());
        break;
      case '}':
        push_new(Kind::dict);
        break;
      case 's':
        extend(Kind::dict, pop_many(2));
        break;
      case 'u':
        extend(Kind::dict, pop_to_mark());
        break;
      case 'q':
        put(take_integer<uint8_t>());
        break;
      case 'r':
        put(take_integer<uint32_t>());
        break;
      case 'h':
        get(take_integer<uint8_t>());
        break;
      case 'j':
        get(take_integer<uint32_t>());
        break;
      case 'c':
        push_global();
        break;
      case 'Q':
        push_storage();
        break;
      case 'R':
        reduce();
        break;
      case 'b':
        build();
        break;
      default:
        refuse(code);
    }
    return true;
  }

  std::string_view pickle_;
  const std::string& where_;
  size_t position_ = 0;
  std::deque<Value> values_;
  std::vector<const Value*> stack_;
  std::vector<const Value*> memo_;
};

std::vector<int64_t> integers(const Value& tuple) {
  std::vector<int64_t> result;
  for (const Value* value : tuple.items) result.push_back(value->integer);
  return result;
}

PickledTensor to_tensor(std::string_view name, const Value& tensor) {
  const Value& storage = *tensor.items[0];
  PickledTensor result;
  result.name = name;
  result.storage_type = storage.items[0]->text.substr(kStorageModule.size());
  result.storage_key = storage.text;
  result.storage_elements = storage.integer;
  result.offset = tensor.items[1]->integer;
  result.shape = integers(*tensor.items[2]);
  result.strides = integers(*tensor.items[3]);
  return result;
}

}  // namespace

std::vector<PickledTensor> parse_state_dict(std::string_view pickle, const std::string& where) {
  const auto fail = [&](const std::string& what) { fail_input(what, where, kRemedy); };
  Machine machine(pickle, where);
  const Value& dict = machine.run();
  if (dict.kind != Kind::dict) fail(fmt::format("the file holds {}, not a state dict", kind_name(dict)));
  if (dict.items.size() / 2 > kMaxTensorsPerFile) fail(fmt::format("more than {} tensors", kMaxTensorsPerFile));
  std::vector<PickledTensor> tensors;
  for (size_t i = 0; i < dict.items.size(); i += 2) {
    const Value& key = *dict.items[i];
    const Value& value = *dict.items[i + 1];
    if (key.kind != Kind::string) fail(fmt::format("a key of the state dict is {}, not a string", kind_name(key)));
    if (value.kind != Kind::tensor)
      fail(
          fmt::format("the entry \"{}\" of the state dict is {}, not a tensor", printable(key.text), kind_name(value)));
    tensors.push_back(to_tensor(key.text, value));
  }
  return tensors;
}

}  // namespace tercet
