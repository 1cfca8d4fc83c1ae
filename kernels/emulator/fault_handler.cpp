#include "kernels/emulator/fault_handler.h"

#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "kernels/emulator/block_runner.h"
#include "kernels/emulator/device_memory.h"
#include "kernels/emulator/sanitizer.h"
#include "kernels/emulator/source_line.h"

namespace tercet::emu {
namespace {

constexpr size_t kHandlerStack = 256 * 1024;

constexpr int kSignals[] = {SIGSEGV, SIGBUS};

// The handlers that were there, in the order of kSignals.
struct sigaction previous[2];

std::string describe_fault(const siginfo_t& info) {
  if (block_runner().overflows_stack(info.si_addr))
    return fmt::format("the thread needs more than {} bytes of stack", FiberStack::kBytes);
  if (info.si_code == SI_KERNEL)
    return "access to an address that is not a multiple of the size that the access needs, or that cannot exist";
  return "access outside of device memory: " + DeviceMemory::instance().describe(info.si_addr);
}

// The fault is the running kernel's own, synchronous and in code that holds no lock, so that the message may be made
// here.
void abandon_kernel(const siginfo_t& info, ucontext_t& context) {
  auto* registers = context.uc_mcontext.gregs;
  const auto code = static_cast<uintptr_t>(registers[REG_RIP]);
  void* resume = block_runner().abandon({describe_fault(info), source_line(code), -1});
  registers[REG_RSP] = reinterpret_cast<greg_t>(resume);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&tercet_emu_resume);
}

void explain_host_access(const siginfo_t& info, const ucontext_t& context) {
  const std::string message =
      fmt::format("error: host code touches memory of the emu device ({}) at {}; use a copy of a stream\n",
                  DeviceMemory::instance().describe(info.si_addr),
                  source_line(static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP])));
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
}

void handle_fault(int signal, siginfo_t* info, void* context) {
  auto& machine = *static_cast<ucontext_t*>(context);
  if (current_thread != nullptr) return abandon_kernel(*info, machine);
  if (DeviceMemory::instance().owns(info->si_addr)) explain_host_access(*info, machine);
  // The faulting instruction runs again, now under the handler that was there before.
  sigaction(signal, &previous[signal == kSignals[0] ? 0 : 1], nullptr);
}

// A stack on which to handle a fault of a fiber whose own stack is spent.
void prepare_handler_stack() {
  static thread_local std::unique_ptr<std::byte[]> memory;
  if (memory) return;
  memory = std::make_unique<std::byte[]>(kHandlerStack);
  const stack_t stack{.ss_sp = memory.get(), .ss_flags = 0, .ss_size = kHandlerStack};
  sigaltstack(&stack, nullptr);
}

// False when the handler is in place already. Others (test frameworks) put theirs in its place.
bool install() {
  struct sigaction now {};
  sigaction(kSignals[0], nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle_fault) return false;
  struct sigaction action {};
  action.sa_sigaction = handle_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &previous[i]);
  return true;
}

}  // namespace

void explain_host_faults() {
  if constexpr (!kAddressSanitizer) install();
}

KernelFaultScope::KernelFaultScope() {
  if constexpr (kAddressSanitizer) return;
  prepare_handler_stack();
  installed_ = install();
}

KernelFaultScope::~KernelFaultScope() {
  if (installed_)
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

}  // namespace tercet::emu
