# The libraries that tercet stands on, all of them Debian packages (the Makefile installs them).

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# CLI11's headers trip our own warnings.
add_library(tercet_cli11 INTERFACE)
get_target_property(cli11_include CLI11::CLI11 INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(tercet_cli11 SYSTEM INTERFACE ${cli11_include})

# The system BLAS. OpenBLAS is told to use one thread; tercet's own pool splits the products.
pkg_check_modules(OPENBLAS REQUIRED openblas)
add_library(tercet_blas INTERFACE)
target_include_directories(tercet_blas SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIRS})
target_link_libraries(tercet_blas INTERFACE ${OPENBLAS_LINK_LIBRARIES})

pkg_check_modules(HDF5 REQUIRED hdf5-serial)
add_library(tercet_hdf5 INTERFACE)
target_include_directories(tercet_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(tercet_hdf5 INTERFACE ${HDF5_LINK_LIBRARIES})

# Editing of lines on a terminal (`chat`).
pkg_check_modules(LIBEDIT REQUIRED libedit)
add_library(tercet_libedit INTERFACE)
target_include_directories(tercet_libedit SYSTEM INTERFACE ${LIBEDIT_INCLUDE_DIRS})
target_link_libraries(tercet_libedit INTERFACE ${LIBEDIT_LINK_LIBRARIES})
