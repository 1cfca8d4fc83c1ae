# The cuda device: csrc/device's CUDA part and all kernels/*.cu compiled by nvcc for sm_80 and sm_90 (and PTX of sm_90, for
# newer GPUs), in a shared library that is opened when a GPU is asked for, so that tercet itself starts without CUDA. The
# runtime is linked statically; cuBLASLt is opened at the first product.
set(TERCET_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "GPUs that the cuda device has code for")
set(CMAKE_CUDA_ARCHITECTURES ${TERCET_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)

# Links the CUDA runtime into a target and sets how nvcc compiles its kernels; what ptxas says of them is kept beside the
# object files, for make ptxas-report.
function(tercet_cuda_target target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  set_property(TARGET ${target} PROPERTY CUDA_COMPILER_LAUNCHER
    bash ${CMAKE_SOURCE_DIR}/tools/keep_ptxas_log.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  # fmt 9 takes nvcc's front end for one without constexpr.
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Werror=all-warnings;-Xptxas=-v>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()

file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu)
add_library(tercet_cuda SHARED ${cuda_kernels} ${CMAKE_SOURCE_DIR}/kernels/gpu_ops.cpp
  ${CMAKE_SOURCE_DIR}/kernels/cuda_library.cpp ${CMAKE_SOURCE_DIR}/csrc/device/cuda_device.cpp)
tercet_cuda_target(tercet_cuda)
set_target_properties(tercet_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(tercet_cuda PRIVATE tercet_kernels tercet_device tercet_base)
target_link_options(tercet_cuda PRIVATE -Wl,--exclude-libs,ALL)
