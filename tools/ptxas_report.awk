# Reads a budget and then logs of ptxas whose names are demangled; prints a table of kernels and what breaks the budget.
# -v budget=FILE names the budget, -v update=1 prints a new budget instead, -v compare=0 looks at spills alone.

# "attention_forward" of ".../attention_forward.cu.o.ptxas"
function source_of(path) {
  sub(/.*\//, "", path)
  sub(/\..*/, "", path)
  return path
}

# "sample_kernel<bf16, true>" of "void tercet::gpu::(anonymous namespace)::sample_kernel<__nv_bfloat16, true>(...)"
function short_name(name,    i, depth, c) {
  gsub(/\(anonymous namespace\)::|tercet::|gpu::/, "", name)
  for (i = 1; i <= length(name); ++i) {
    c = substr(name, i, 1)
    if (c == "<") ++depth
    if (c == ">") --depth
    if (c == "(" && depth == 0) break
  }
  name = substr(name, 1, i - 1)
  gsub(/__nv_bfloat16/, "bf16", name)
  gsub(/__half/, "half", name)
  sub(/^void /, "", name)
  return name
}

# The number before `word` in the line, 0 when it is not there.
function number_before(word,    at, words, n) {
  at = index($0, " " word)
  if (!at) return 0
  n = split(substr($0, 1, at - 1), words, " ")
  return words[n] + 0
}

function broken(what) { faults[++fault_count] = what }

function row(key) { return sprintf("%-6s %9d %8d %6d  %s", arch[key], registers[key], shared[key], stack[key], kernel[key]) }

function regression(key, what, actual, allowed) {
  if (actual > allowed) broken(sprintf("%s on %s: %s %d, budget %d", kernel[key], arch[key], what, actual, allowed))
  if (actual < allowed) better = 1
}

FILENAME == budget {
  if ($0 ~ /^(#|$)/) next
  key = $1 " " substr($0, index($0, $5))
  budget_registers[key] = $2
  budget_shared[key] = $3
  budget_stack[key] = $4
  budget_arch[key] = $1
  next
}

/Compiling entry function/ {
  split($0, quoted, "'")
  key = quoted[4] " " source_of(FILENAME) ": " short_name(quoted[2])
  if (key in kernel) broken("two kernels are called " key)
  order[++count] = key
  arch[key] = quoted[4]
  compiled[quoted[4]] = 1
  kernel[key] = source_of(FILENAME) ": " short_name(quoted[2])
}

/bytes stack frame/ {
  if (number_before("bytes stack frame") > stack[key]) stack[key] = number_before("bytes stack frame")
  spills[key] += number_before("bytes spill stores") + number_before("bytes spill loads")
}

/ Used .* registers/ {
  registers[key] = number_before("registers")
  shared[key] = number_before("bytes smem")
}

END {
  if (update) {
    for (i = 1; i <= count; ++i) print row(order[i])
    exit 0
  }
  printf "%-6s %9s %8s %6s  %s\n", "", "registers", "shared", "stack", "kernel"
  for (i = 1; i <= count; ++i) {
    key = order[i]
    print row(key)
    if (spills[key] > 0) broken(sprintf("%s on %s: %d bytes of spills, budget 0", kernel[key], arch[key], spills[key]))
    if (!compare) continue
    if (!(key in budget_registers)) {
      broken(sprintf("%s on %s has no budget", kernel[key], arch[key]))
      continue
    }
    regression(key, "registers", registers[key], budget_registers[key])
    regression(key, "shared bytes", shared[key], budget_shared[key])
    regression(key, "stack bytes", stack[key], budget_stack[key])
  }
  if (compare)
    for (key in budget_registers)
      if (!(key in kernel) && budget_arch[key] in compiled) broken(key " has a budget and does not exist")
  for (i = 1; i <= fault_count; ++i) print "FAILED " faults[i]
  if (fault_count) print "make ptxas-report UPDATE=1 writes the budget again, when the change is meant (spills never are)"
  else if (better) print "some kernels need less than their budget: make ptxas-report UPDATE=1 tightens it"
  printf "%d kernels, %d faults\n", count, fault_count
  exit (fault_count > 0 || count == 0)
}
