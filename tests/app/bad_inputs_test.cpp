// Bad inputs of every kind of file and flag: exit code 2, one message that says what, where and what to do, and nothing
// left behind.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "app/bad_files.h"

namespace tercet {
namespace {

struct BadInput {
  const char* command;  // words after `tercet`, run in the folder of BadFiles
  const char* message;  // a part of the error
  const char* input = "";
};

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

std::string last_line(const std::string& text) {
  const std::string trimmed = text.substr(0, text.find_last_not_of('\n') + 1);
  return trimmed.substr(trimmed.rfind('\n') + 1);
}

const std::vector<BadInput> kModels = {
    {"info absent.h5", "absent.h5: cannot open the file: No such file or directory; check the path"},
    {"info empty-folder", "empty-folder: not a regular file"},
    {"info empty.h5", "empty.h5: the file is empty; give a file that tercet wrote"},
    {"info text.h5", "text.h5: not an HDF5 file"},
    {"info foreign.h5", "foreign.h5: an HDF5 file, but not one that tercet wrote"},
    {"info unfinished.h5", "unfinished.h5: the file was never finished"},
    {"info truncated.h5", "truncated.h5: the file is truncated"},
    {"info longer.h5", "longer.h5: the file has 1 bytes after its end"},
    {"info flipped-block.h5", "flipped-block.h5: the file is altered"},
    {"info flipped-structure.h5", "flipped-structure.h5: the file is altered"},
    {"info flipped.h5 --verify", "flipped.h5: the file is altered"},
    {"info no-config.h5", "no-config.h5: the file holds no model configuration"},
    {"info run/checkpoints/step-00000002.h5", "step-00000002.h5: the file holds no model configuration"},
    {"info bad-config.h5", "bad-config.h5: not valid JSON"},
    {"info bad-head.h5", "bad-head.h5: unknown head \"three\""},
    {"info bad-affine-rm.h5", "bad-affine-rm.h5: the mean and standard deviation of the scores are damaged"},
    {"tokenize --model truncated.h5", "truncated.h5: the file is truncated"},
    {"score --model flipped.h5 --data texts.jsonl", "flipped.h5: the file is altered"},
    {"score --model missing.h5 --data texts.jsonl", "the tensor model.decoder.layers.1.fc1.weight is missing"},
    {"score --model extra.h5 --data texts.jsonl", "the tensor model.decoder.layers.2.fc1.weight is not one of this"},
    {"score --model other-sizes.h5 --data texts.jsonl", "does not have the shape [48, 16] of the configuration"},
    {"score --model small-vocabulary.h5 --data texts.jsonl", "the tokenizer has ids up to 267 but the model's"},
    {"generate --model small-vocabulary.h5 --prompt a", "the tokenizer has ids up to 267 but the model's"},
    {"eval --model small-vocabulary.h5 --data pairs.jsonl", "the tokenizer has ids up to 267 but the model's"},
    {"sft --model small-vocabulary.h5 --data pairs.jsonl --out new --max-length 32",
     "the tokenizer has ids up to 267 but the model's"},
    {"sft --model other-sizes.h5 --data pairs.jsonl --out new --max-length 32", "does not have the shape [48, 16]"},
    {"sft --model flipped.h5 --data pairs.jsonl --out new --max-length 32", "flipped.h5: the file is altered"},
    {"export other-sizes.h5 --out new", "of the shape [48, 16]"},
    {"export truncated.h5 --out new", "truncated.h5: the file is truncated"},
    {"export flipped.h5 --out new", "flipped.h5: the file is altered"},
};

const std::vector<BadInput> kNans = {
    {"sft --model nan.h5 --data pairs.jsonl --out new --max-length 32",
     "nan.h5: model.decoder.layers.1.fc1.weight: element 1 is nan; the weights are damaged"},
    {"sft --model nan.h5 --data pairs.jsonl --out run --overwrite --max-length 32", "fc1.weight: element 1 is nan"},
    {"reward --model nan.h5 --data pairs.jsonl --out new --max-length 32", "fc1.weight: element 1 is nan"},
    {"ppo --actor nan.h5 --reward-model rm.h5 --data pairs.jsonl --out new --max-prompt-tokens 32 --max-new-tokens 4",
     "nan.h5: model.decoder.layers.1.fc1.weight: element 1 is nan"},
    {"ppo --actor lm.h5 --reward-model nan-rm.h5 --data pairs.jsonl --out new --max-prompt-tokens 32 --max-new-tokens "
     "4",
     "nan-rm.h5: score.weight: element 1 is nan"},
    {"generate --model nan.h5 --prompt a --max-new-tokens 4", "fc1.weight: element 1 is nan"},
    {"export nan.h5 --out new", "model.decoder.layers.1.fc1.weight"},
    {"score --model nan.h5 --data texts.jsonl", "fc1.weight: element 1 is nan"},
    {"eval --model nan-rm.h5 --data pairs.jsonl", "score.weight: element 1 is nan"},
};

const std::vector<BadInput> kKinds = {
    {"sft --model rm.h5 --data pairs.jsonl --out new --max-length 32", "a language model is needed"},
    {"generate --model rm.h5 --prompt a", "--model rm.h5: a reward model cannot answer prompts"},
    {"ppo --actor rm.h5 --reward-model rm.h5 --data pairs.jsonl --out new",
     "--actor rm.h5: a language model is needed"},
    {"ppo --actor lm.h5 --reward-model lm.h5 --data pairs.jsonl --out new",
     "--reward-model lm.h5: a reward model is needed; this is a language model; give the file of the right step"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --critic lm.h5 --data pairs.jsonl --out new", "--critic lm.h5: a reward"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --reference rm.h5 --data pairs.jsonl --out new",
     "--reference rm.h5: a language model is needed"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --judge-model lm.h5 --data pairs.jsonl --out new",
     "--judge-model lm.h5: a reward model is needed"},
    {"ppo --actor lm.h5 --reward-model other-tokenizer-rm.h5 --data pairs.jsonl --out new --max-prompt-tokens 32"
     " --max-new-tokens 4",
     "the tokenizers of"},
    {"ppo --actor lm.h5 --reward-model no-affine-rm.h5 --data pairs.jsonl --out new --max-prompt-tokens 32"
     " --max-new-tokens 4",
     "--reward-model no-affine-rm.h5: the model has no mean and standard deviation"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --data pairs.jsonl --out new",
     "prompts of 256 and responses of 256 tokens"},
    {"eval --model rm.h5 --baseline lm.h5 --reward-model rm.h5 --data pairs.jsonl", "a reward model cannot answer"},
    {"eval --model lm.h5 --baseline rm.h5 --reward-model rm.h5 --data pairs.jsonl --max-prompt-tokens 32"
     " --max-new-tokens 4",
     "rm.h5"},
    {"eval --model lm.h5 --baseline lm.h5 --reward-model lm.h5 --data pairs.jsonl --max-prompt-tokens 32"
     " --max-new-tokens 4",
     "lm.h5"},
};

const std::vector<BadInput> kFolders = {
    {"import absent --out new.h5", "absent"},
    {"import empty-folder --out new.h5", "empty-folder/config.json: cannot open the file"},
    {"import lm.h5 --out new.h5", "lm.h5"},
    {"import hf-no-config --out new.h5", "hf-no-config/config.json: cannot open the file"},
    {"import hf-no-weights --out new.h5", "hf-no-weights: no weights in the folder"},
    {"import hf-no-merges --out new.h5", "hf-no-merges/merges.txt: cannot open the file"},
    {"import hf-broken-config --out new.h5", "hf-broken-config/config.json: not valid JSON"},
    {"import hf-bert --out new.h5", "hf-bert/config.json: model_type is \"bert\"; only \"opt\" is supported"},
    {"import hf-heads --out new.h5", "hidden_size 8 does not divide by num_attention_heads 3"},
    {"import hf-odd-head --out new.h5", "the head size 1 is odd"},
    {"import hf-layers --out new.h5", "num_hidden_layers: expected an integer"},
    {"import hf-huge --out new.h5", "ffn_dim is 4611686018427387904"},
    {"import hf-wide --out new.h5", "hf-wide/model.safetensors"},
    {"import hf-vocabulary --out new.h5", "the tokenizer has ids up to 267 but the model's vocabulary has 100"},
    {"import hf-untied --out new.h5", "tie_word_embeddings is false; only tied embeddings are supported"},
    {"import hf-vocab-json --out new.h5", "hf-vocab-json: vocab.json: not valid JSON"},
    {"import hf-gpt2 --out new.h5", "\"</s>\" has no entry but must have the id 2"},
    {"import hf-merges --out new.h5", "merges.txt: line 2 (\"nosuch pair\"): \"nosuch\" is not in the vocabulary"},
    {"import hf-tokenizer-json --out new.h5", "hf-tokenizer-json/tokenizer.json: not valid JSON"},
    {"import hf-unigram --out new.h5", "the model is of type \"Unigram\"; only BPE is supported"},
    {"import hf-cut --out new.h5", "hf-cut/model.safetensors: the file is truncated"},
    {"import hf-lfs --out new.h5", "a Git LFS pointer, not the weights themselves; fetch the weights"},
    {"import hf-header --out new.h5", "hf-header/model.safetensors: the header claims"},
    {"import hf-dtype --out new.h5", "hf-dtype/model.safetensors"},
    {"import hf-bin-cut --out new.h5", "hf-bin-cut/pytorch_model.bin: the zip archive is truncated"},
    {"import hf-bin-text --out new.h5", "hf-bin-text/pytorch_model.bin: not a PyTorch file"},
    {"import hf-bin-code --out new.h5", "the pickle asks for \"torch._utils _rebuild_tensor_v3\""},
    {"import hf-index --out new.h5", "the index names the shard \"../hf/model.safetensors\""},
    {"import hf-shard --out new.h5", "the shard model-00002-of-00003.safetensors is missing; download the model"},
    {"init --config heads.json --tokenizer hf --out new.h5", "heads.json: hidden_size 16 does not divide"},
    {"init --config small.json --tokenizer hf --out new.h5", "hf: the tokenizer has ids up to 267"},
    {"init --config broken.json --tokenizer hf --out new.h5", "broken.json: not valid JSON"},
    {"init --config opt-1b --tokenizer hf --out new.h5", "--config: no model size is called \"opt-1b\""},
    {"init --config config.json --tokenizer empty-folder --out new.h5", "empty-folder: there is no tokenizer here"},
};

const std::vector<BadInput> kData = {
    {"sft --model lm.h5 --data absent.jsonl --out new --max-length 32", "absent.jsonl: cannot open the file"},
    {"sft --model lm.h5 --data empty-folder --out new --max-length 32", "empty-folder: "},
    {"sft --model lm.h5 --data broken.jsonl --out new --max-length 32", "broken.jsonl:2: not valid JSON"},
    {"sft --model lm.h5 --data fields.jsonl --out new --max-length 32", "fields.jsonl:1: no field that tercet knows"},
    {"sft --model lm.h5 --data types.jsonl --out new --max-length 32",
     "types.jsonl:1: the field \"response\" is an int"},
    {"sft --model lm.h5 --data unicode.jsonl --out new --max-length 32", "unicode.jsonl:1: not valid JSON"},
    {"sft --model lm.h5 --data roles.jsonl --out new --max-length 32",
     "roles.jsonl:1: message 1 has the role \"robot\""},
    {"sft --model lm.h5 --data empty.jsonl --out new --max-length 32", "empty.jsonl: no usable record"},
    {"sft --model lm.h5 --data long.jsonl --out new --max-length 32", "long.jsonl: no usable record"},
    {"sft --model lm.h5 --data plain.jsonl.gz --out new --max-length 32",
     "the name ends in .gz but the content is not"},
    {"sft --model lm.h5 --data zipped.jsonl --out new --max-length 32",
     "zipped.jsonl: the content is gzip; let the name"},
    {"sft --model lm.h5 --data cut.jsonl.gz --out new --max-length 32", "cut.jsonl.gz:1: the gzip data ends early"},
    {"sft --model lm.h5 --data damaged.jsonl.gz --out new --max-length 32",
     "damaged.jsonl.gz:1: the gzip data is damaged"},
    {"sft --model lm.h5 --data pairs.jsonl --eval-data absent.jsonl --out new --max-length 32", "absent.jsonl: cannot"},
    {"reward --model lm.h5 --data texts.jsonl --out new --max-length 32", "texts.jsonl:1: "},
    {"ppo --actor lm.h5 --reward-model rm.h5 --data texts.jsonl --out new --max-prompt-tokens 32 --max-new-tokens 4",
     "texts.jsonl:1: "},
    {"score --model lm.h5 --data ids.jsonl", "ids.jsonl:2: the id 272 is not one of the model's 272"},
    {"score --model lm.h5 --data negative.jsonl", "negative.jsonl:1: -1 is not a token id"},
    {"tokenize --model lm.h5 --decode", "stdin:1: 272 is not one of the tokenizer's 268 ids", "{\"ids\": [272]}\n"},
    {"tokenize --model lm.h5 --decode", "stdin:2: -1 is not one of", "{\"ids\": [4]}\n{\"ids\": [-1]}\n"},
    {"tokenize --model lm.h5", "stdin:1: not valid JSON", "text\n"},
};

const std::vector<BadInput> kFlags = {
    {"sft --model lm.h5 --data pairs.jsonl --out new --max-length 500", "--max-length: 500 exceeds the 128 positions"},
    {"sft --model lm.h5 --data pairs.jsonl --out new --max-length 32 --micro-batch-tokens 16",
     "--micro-batch-tokens: 16 is too small"},
    {"reward --model lm.h5 --data pairs.jsonl --out new --max-length 32 --micro-batch-tokens 40",
     "--micro-batch-tokens: 40 is too small"},
    {"sft --model lm.h5 --data pairs.jsonl --out new --lr fast", "--lr: \"fast\" is not allowed; expected 0 or more"},
    {"sft --model lm.h5 --data pairs.jsonl --out new --batch-size 0", "--batch-size: 0 is not allowed"},
    {"sft --model lm.h5 --data pairs.jsonl --out new --nosuch 1", "--nosuch: unknown flag"},
    {"sft --model lm.h5 --data pairs.jsonl --out new --steps 5 --epochs 2", "both say when to stop"},
    {"sft --model lm.h5 --data pairs.jsonl", "sft needs --out"},
    {"reward --model lm.h5 --data pairs.jsonl --out new --loss first", "expected last or tokens"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --data pairs.jsonl --out new --batch-size 4", "ppo has no batch size"},
    {"ppo --actor lm.h5 --reward-model rm.h5 --data pairs.jsonl --out new --rollouts 2 --minibatches 3", "minibatches"},
    {"generate --model lm.h5 --prompt a --max-new-tokens 200", "--max-new-tokens: the longest prompt has"},
    {"generate --model lm.h5 --prompt a --temperature -1", "--temperature: -1 is not allowed"},
    {"generate --model lm.h5 --prompt a --data pairs.jsonl", "give one of them"},
    {"score --model lm.h5 --data texts.jsonl --dtype bf16 --device cpu", "--dtype: cpu does not compute in bf16"},
    {"score --model lm.h5 --data texts.jsonl --max-length 500", "--max-length: 500 exceeds the 128 positions"},
    {"eval --model lm.h5 --data pairs.jsonl --baseline lm.h5",
     "needs --baseline and either --reward-model or --reward-rule"},
    {"export lm.h5 --out new --max-shard-size 5TB", "--max-shard-size: \"5TB\" is not allowed"},
    {"import hf --out new.h5 --dtype int8", "--dtype: \"int8\" is not allowed"},
    {"init --config config.json --tokenizer hf --out new.h5 --seed -1", "--seed: -1 is not allowed"},
    {"info lm.h5 --verbose", "--verbose: unknown flag"},
    {"tokenize", "tokenize needs --model"},
    {"bench step --device cpu --repeats 3", "--repeats: it belongs to bench kernels"},
    {"sft --config syntax.toml --model lm.h5 --data pairs.jsonl --out new", "syntax.toml:2: cannot read the value"},
    {"sft --config unknown.toml --model lm.h5 --data pairs.jsonl --out new", "unknown.toml:2: learning: unknown flag"},
    {"sft --config type.toml --model lm.h5 --data pairs.jsonl --out new", "type.toml:1: lr: \"fast\" is not allowed"},
    {"sft --config table.toml --model lm.h5 --data pairs.jsonl --out new", "the table [sft] is not known"},
    {"sft --config twice.toml --model lm.h5 --data pairs.jsonl --out new",
     "twice.toml:2: the key \"lr\" appears twice; leave one"},
    {"sft --config absent.toml --model lm.h5 --data pairs.jsonl --out new", "absent.toml: cannot open the file"},
    {"rlhf --config absent.toml --out new", "absent.toml: cannot open the file"},
    {"rlhf --config pipeline.toml --out new", "pipeline.toml:4: rollouts: sft has no such flag; it belongs to ppo"},
};

const std::vector<BadInput> kOutputs = {
    {"sft --model lm.h5 --data pairs.jsonl --out run --max-length 32", "run: the folder holds a run already"},
    {"reward --model lm.h5 --data pairs.jsonl --out run --max-length 32", "run: the folder holds a run already"},
    {"sft --model lm.h5 --data pairs.jsonl --out mine --max-length 32", "mine: the folder holds thesis.tex but no run"},
    {"sft --model lm.h5 --data pairs.jsonl --out lm.h5 --max-length 32", "lm.h5: cannot create the run folder"},
    {"sft --model lm.h5 --data pairs.jsonl --out lm.h5/run --max-length 32", "lm.h5/run: cannot create the run folder"},
    {"sft --model lm.h5 --data pairs.jsonl --out /proc/run --max-length 32", "/proc/run: cannot create the run folder"},
    {"sft --resume --out empty-folder", "empty-folder: the folder holds no run to resume"},
    {"sft --resume --out absent", "absent: the folder holds no run to resume"},
    {"reward --resume --out run", "run: the folder holds a run of sft; resume it with that command"},
    {"sft --resume --out run --lr 1", "a resumed run keeps its settings: --lr was"},
    {"sft --resume --out run --steps 1", "run: the run has done 2 steps, more than the 1 asked for; raise --steps"},
    {"sft --resume --steps 3 --out lost-log", "lost-log/metrics.jsonl: the log has fewer than the"},
    {"sft --resume --steps 3 --out damaged-run", "damaged-run: none of the run's"},
    {"sft --resume --out bad-record", "bad-record/config.toml:1: cannot read the value"},
    {"sft --model run/model.h5 --data pairs.jsonl --out run --overwrite", "--overwrite would delete it with the run"},
    {"export lm.h5 --out mine", "mine: the folder is not empty"},
    {"export lm.h5 --out rm.h5", "rm.h5: there is a file of this name; choose another --out, or remove it first"},
    {"export lm.h5 --out absent/new", "there is no folder "},
    {"export lm.h5 --out /proc/new", "/proc/new: cannot create the folder"},
    {"import hf --out mine", "mine: this is a folder; give the name of a file"},
    {"import hf --out absent/new.h5", "absent/new.h5: there is no folder absent; create it first"},
    {"import hf --out lm.h5/new.h5", "lm.h5/new.h5: there is no folder lm.h5"},
    {"import hf --out /proc/new.h5", "/proc/new.h5: cannot create the file"},
    {"init --config config.json --tokenizer hf --out mine", "mine: this is a folder; give the name of a file"},
    {"init --config config.json --tokenizer hf --out absent/new.h5", "absent/new.h5: there is no folder absent"},
    {"init --config config.json --tokenizer hf --out /proc/new.h5", "/proc/new.h5: cannot create the file"},
};

void check_refused(const BadFiles& files, const std::vector<BadInput>& table) {
  const auto before = files.listing();
  for (const BadInput& bad : table) {
    const std::string command = bad.command;
    CAPTURE(command);
    const ProgramResult result = run_program(words(bad.command), bad.input, "cd " + files.path() + ";");
    CHECK(result.exit_code == 2);
    const std::string error = last_line(result.err);
    CHECK_MESSAGE(error.starts_with("tercet: error: "), result.err);
    CHECK_MESSAGE(contains(error, bad.message), error);
    const auto after = files.listing();
    CHECK_MESSAGE(after == before, "files have changed");
  }
}

TEST_CASE("bad inputs of every kind are refused with exit code 2 and one message, and leave every file as it was") {
  const BadFiles files;
  for (const auto* table : {&kModels, &kNans, &kKinds, &kFolders, &kData, &kFlags, &kOutputs})
    check_refused(files, *table);
}

}  // namespace
}  // namespace tercet
