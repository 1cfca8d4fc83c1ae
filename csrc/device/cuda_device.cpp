#include "device/cuda_device.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cublaslt.h"
#include "device/cuda_stream.h"
#include "device/memory_plan.h"

namespace tercet {
namespace {

// cublaslt_api.h repeats these.
static_assert(lt::kFloat == int{CUDA_R_32F} && lt::kHalf == int{CUDA_R_16F} && lt::kBfloat16 == int{CUDA_R_16BF});
static_assert(lt::kCompute32f == int{CUBLAS_COMPUTE_32F});
static_assert(lt::kTransposeA == int{CUBLASLT_MATMUL_DESC_TRANSA} &&
              lt::kTransposeB == int{CUBLASLT_MATMUL_DESC_TRANSB});
static_assert(lt::kEpilogue == int{CUBLASLT_MATMUL_DESC_EPILOGUE});
static_assert(lt::kBiasPointer == int{CUBLASLT_MATMUL_DESC_BIAS_POINTER});
static_assert(lt::kBiasType == int{CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE});
static_assert(lt::kNoTranspose == int{CUBLAS_OP_N} && lt::kTranspose == int{CUBLAS_OP_T});
static_assert(lt::kDefault == int{CUBLASLT_EPILOGUE_DEFAULT} && lt::kRelu == int{CUBLASLT_EPILOGUE_RELU});
static_assert(lt::kBias == int{CUBLASLT_EPILOGUE_BIAS} && lt::kReluBias == int{CUBLASLT_EPILOGUE_RELU_BIAS});
static_assert(lt::kMaxWorkspaceBytes == int{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES});
static_assert(lt::kReductionSchemes == int{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK});
static_assert(lt::kReductionInComputeType == uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
static_assert(lt::kMinAlignmentA == int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES});
static_assert(lt::kMinAlignmentD == int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES});
static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));

// Whether two functions are called alike: arguments and results of the same sizes, pointers where there are pointers.
template <class R, class... A, class S, class... B>
constexpr bool called_alike(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  else
    return false;
}
template <class F, class G>
inline constexpr bool kCalledAlike = called_alike(F{}, G{});
static_assert(kCalledAlike<decltype(lt::Functions::create), decltype(&cublasLtCreate)>);
static_assert(kCalledAlike<decltype(lt::Functions::destroy), decltype(&cublasLtDestroy)>);
static_assert(kCalledAlike<decltype(lt::Functions::version), decltype(&cublasLtGetVersion)>);
static_assert(kCalledAlike<decltype(lt::Functions::status_text), decltype(&cublasLtGetStatusString)>);
static_assert(kCalledAlike<decltype(lt::Functions::descriptor_create), decltype(&cublasLtMatmulDescCreate)>);
static_assert(kCalledAlike<decltype(lt::Functions::descriptor_destroy), decltype(&cublasLtMatmulDescDestroy)>);
static_assert(kCalledAlike<decltype(lt::Functions::descriptor_set), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(kCalledAlike<decltype(lt::Functions::layout_create), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(kCalledAlike<decltype(lt::Functions::layout_destroy), decltype(&cublasLtMatrixLayoutDestroy)>);
static_assert(kCalledAlike<decltype(lt::Functions::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(kCalledAlike<decltype(lt::Functions::preference_destroy), decltype(&cublasLtMatmulPreferenceDestroy)>);
static_assert(kCalledAlike<decltype(lt::Functions::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(kCalledAlike<decltype(lt::Functions::heuristic), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(kCalledAlike<decltype(lt::Functions::check), decltype(&cublasLtMatmulAlgoCheck)>);
static_assert(kCalledAlike<decltype(lt::Functions::matmul), decltype(&cublasLtMatmul)>);

constexpr int kOldestMajor = 8;

void require_success(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fail_run(fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)), "cuda",
           "CUDA_LAUNCH_BLOCKING=1 shows where it happened");
}

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    require_success(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
    require_success(cudaEventRecord(event_, stream), "recording an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void synchronize() override { require_success(cudaEventSynchronize(event_), "waiting for an event"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t graph) : graph_(graph) {
    require_success(cudaGraphInstantiate(&executable_, graph_, 0), "making a graph");
  }
  ~CudaGraph() override {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t get() const { return executable_; }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
};

// Pinned host memory through which copies to the device go, in pieces: a piece is filled while the ones before it
// travel, and reused when its own has arrived.
class Staging {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  Staging() {
    void* memory = nullptr;
    require_success(cudaMallocHost(&memory, kPieces * kPieceBytes), "pinned memory for copies");
    memory_ = static_cast<char*>(memory);
    for (cudaEvent_t& event : arrived_)
      require_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  }
  ~Staging() {
    for (const cudaEvent_t event : arrived_) cudaEventDestroy(event);
    cudaFreeHost(memory_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void copy(cudaStream_t stream, void* target, const void* source, size_t bytes) {
    for (size_t done = 0; done < bytes; done += kPieceBytes) {
      const size_t piece = std::min(kPieceBytes, bytes - done);
      const cudaEvent_t arrived = arrived_[next_];
      char* staged = memory_ + next_ * kPieceBytes;
      next_ = (next_ + 1) % kPieces;
      require_success(cudaEventSynchronize(arrived), "waiting for a copy");
      std::memcpy(staged, static_cast<const char*>(source) + done, piece);
      require_success(cudaMemcpyAsync(static_cast<char*>(target) + done, staged, piece, cudaMemcpyHostToDevice, stream),
                      "a copy to the device");
      require_success(cudaEventRecord(arrived, stream), "recording an event");
    }
  }

 private:
  static constexpr size_t kPieces = 4;

  char* memory_ = nullptr;
  std::array<cudaEvent_t, kPieces> arrived_{};
  size_t next_ = 0;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, Device::Implementation (*find_op)(std::string_view)) : index_(index), find_op_(find_op) {
    require_success(cudaSetDevice(index), "choosing the GPU");
    require_success(cudaGetDeviceProperties(&properties_, index), "asking for the GPU's properties");
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override {
    return fmt::format("cuda:{} ({}, sm_{}{}, {} GiB)", index_, properties_.name, properties_.major, properties_.minor,
                       properties_.totalGlobalMem >> 30);
  }
  bool supports(DType dtype) const override {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  }
  std::unique_ptr<Stream> create_stream() override;
  std::vector<Slot> stream_footprint() const override;
  Implementation implementation(std::string_view op) const override { return find_op_(op); }
  ProductLibrary product_library(size_t version) const {
    return {.version = static_cast<int64_t>(version),
            .gpu = properties_.name,
            .multiprocessors = properties_.multiProcessorCount};
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the next call is not to report it again
      size_t free_bytes = 0, total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      fail_run(fmt::format("not enough GPU memory for {} bytes: {} of {} are free", bytes, free_bytes, total_bytes),
               "cuda", "use a smaller --micro-batch-tokens or --recompute");
    }
    require_success(error, "allocating GPU memory");
    allocated_bytes_ += bytes;
    return memory;
  }
  void release(void* memory, size_t bytes) override {
    cudaFree(memory);
    allocated_bytes_ -= bytes;
  }
  void stream_begins() { ++streams_; }
  void stream_ends() { --streams_; }

 private:
  int index_;
  size_t streams_ = 0;
  Device::Implementation (*find_op_)(std::string_view);
  cudaDeviceProp properties_{};
};

class CudaStreamOfDevice final : public CudaStream {
 public:
  explicit CudaStreamOfDevice(CudaDevice& device) : device_(device) {
    require_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    workspace_ = Buffer(device, kWorkspaceBytes);
    product_workspace_ = Buffer(device, LtProducts::kWorkspaceBytes);
    device.stream_begins();
  }
  ~CudaStreamOfDevice() override {
    device_.stream_ends();
    products_.reset();
    cudaStreamDestroy(stream_);
  }
  CudaStreamOfDevice(const CudaStreamOfDevice&) = delete;
  CudaStreamOfDevice& operator=(const CudaStreamOfDevice&) = delete;

  Device& device() override { return device_; }

  void copy_to_device(void* target, const void* source, size_t bytes) override {
    require_not_capturing("a copy to the device");
    staging_.copy(stream_, target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, size_t bytes) override {
    require_not_capturing("a copy to the host");
    if (bytes > 0)
      require_success(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream_), "a copy to the host");
  }
  void copy_on_device(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) require_success(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy");
  }
  void fill_zero(void* target, size_t bytes) override {
    if (bytes > 0) require_success(cudaMemsetAsync(target, 0, bytes, stream_), "filling with zeros");
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(stream_); }
  void wait(Event& event) override {
    require_not_capturing("waiting for an event");
    require_success(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), 0), "waiting for an event");
  }
  void synchronize() override {
    require_not_capturing("synchronising");
    require_success(cudaStreamSynchronize(stream_), "the work on the GPU");
  }
  void begin_profile_range(const char* name) override { nvtxRangePushA(name); }
  void end_profile_range() override { nvtxRangePop(); }

  void* workspace(size_t bytes) override {
    TERCET_REQUIRE(bytes <= kWorkspaceBytes, "an op needs {} bytes of scratch memory, a stream has {}", bytes,
                   kWorkspaceBytes);
    return workspace_.data();
  }

  void product(const Product& product) override { products().queue.run(product); }
  ProductAlgorithms* product_algorithms() override { return &products().algorithms; }

  void begin_capture() override {
    require_not_capturing("a second capture");
    require_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "starting a capture");
    capturing_ = true;
  }
  std::unique_ptr<Graph> end_capture() override {
    TERCET_REQUIRE(capturing_, "no capture was begun");
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    require_success(cudaStreamEndCapture(stream_, &graph), "ending a capture");
    return std::make_unique<CudaGraph>(graph);
  }
  void launch(Graph& graph) override {
    require_success(cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), stream_), "launching a graph");
  }

  void launch_kernel(const char* name, const void* kernel, const LaunchShape& shape, void** addresses) override {
    allow_shared_memory(kernel, shape.shared_bytes);
    require_success(cudaLaunchKernel(kernel, dim3(shape.grid_x, shape.grid_y, shape.grid_z), dim3(shape.threads),
                                     addresses, shape.shared_bytes, stream_),
                    name);
  }

 private:
  static constexpr size_t kDefaultSharedBytes = 48 << 10;  // above it a kernel must be told

  struct Products {
    Products(const lt::Functions& functions, ProductLibrary library, void* workspace, cudaStream_t stream)
        : algorithms(std::move(library)), queue(functions, algorithms, workspace, stream) {}

    ProductAlgorithms algorithms;
    LtProducts queue;
  };

  // The first call opens cuBLASLt.
  Products& products() {
    if (!products_) {
      const lt::Functions& functions = lt::open_library();
      products_ = std::make_unique<Products>(functions, device_.product_library(functions.version()),
                                             product_workspace_.data(), stream_);
    }
    return *products_;
  }

  void allow_shared_memory(const void* kernel, size_t bytes) {
    if (bytes <= kDefaultSharedBytes) return;
    size_t& allowed = shared_bytes_[kernel];
    if (bytes <= allowed) return;
    TERCET_REQUIRE(bytes <= size_t{std::numeric_limits<int>::max()}, "{} bytes of shared memory", bytes);
    require_success(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                    "shared memory of a kernel");
    allowed = bytes;
  }

  void require_not_capturing(const char* what) const { TERCET_REQUIRE(!capturing_, "{} during a capture", what); }

  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  Buffer workspace_, product_workspace_;
  Staging staging_;
  std::unique_ptr<Products> products_;
  std::map<const void*, size_t> shared_bytes_;
  bool capturing_ = false;
};

std::unique_ptr<Stream> CudaDevice::create_stream() { return std::make_unique<CudaStreamOfDevice>(*this); }

std::vector<Slot> CudaDevice::stream_footprint() const {
  return {{"streams/scratch", MemoryClass::workspace, streams_ * GpuStream::kWorkspaceBytes},
          {"streams/products", MemoryClass::workspace, streams_ * LtProducts::kWorkspaceBytes}};
}

// The launcher's index of this process on its server.
int local_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"})
    if (const char* rank = std::getenv(name); rank != nullptr) return std::atoi(rank);
  return 0;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // the next call is not to report it again
  return 0;
}

std::unique_ptr<Device> open_cuda_device(Device::Implementation (*find_op)(std::string_view)) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess)
    fail_input(fmt::format("there is no usable GPU: {}", cudaGetErrorString(error)), "--device",
               "install NVIDIA's driver (nvidia-smi must list the GPU), or use --device cpu");
  const int index = local_rank();
  if (index >= count)
    fail_input(fmt::format("this process is number {} of its server, which has {} GPU(s)", index, count), "--device",
               "launch one process per GPU");
  int major = 0, minor = 0;
  require_success(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "asking for the GPU");
  require_success(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "asking for the GPU");
  if (major < kOldestMajor)
    fail_input(fmt::format("GPU {} has compute capability {}.{}, tercet needs {}.0 (A100, H100 or newer)", index, major,
                           minor, kOldestMajor),
               "--device", "use another GPU or --device cpu");
  return std::make_unique<CudaDevice>(index, find_op);
}

}  // namespace tercet
