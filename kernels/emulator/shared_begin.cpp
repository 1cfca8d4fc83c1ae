// Linked before all .cu files: see shared_memory.cpp.
extern "C" {
alignas(128) char tercet_emu_shared_begin[128];
}
