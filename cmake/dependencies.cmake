# What the build needs from the system. Required ones name the Debian package; optional ones say what is lost.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)

# The OpenMP build of OpenBLAS: the serial build gives wrong results when called from several threads.
find_library(OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp openblas-pthread)
find_path(OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
  ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread ${CMAKE_LIBRARY_ARCHITECTURE} openblas)
if(NOT OPENBLAS_LIBRARY OR NOT OPENBLAS_INCLUDE)
  message(FATAL_ERROR "OpenBLAS not found: install libopenblas-openmp-dev (or run `make deps`)")
endif()
find_path(RANDOM123_INCLUDE Random123/philox.h)
if(NOT RANDOM123_INCLUDE)
  message(FATAL_ERROR "Random123 not found: install librandom123-dev (or run `make deps`)")
endif()

add_library(blurry_dependencies INTERFACE)
target_include_directories(blurry_dependencies SYSTEM INTERFACE ${OPENBLAS_INCLUDE} ${RANDOM123_INCLUDE})
# gomp is the runtime under that build; kernels/blas.c tells it to leave the threads to us.
target_link_libraries(blurry_dependencies INTERFACE PkgConfig::JANSSON PkgConfig::YAML PkgConfig::SQLITE
  ${OPENBLAS_LIBRARY} gomp Threads::Threads m)

# Open MPI: sweeps and training over several processes and machines.
option(BLURRY_MPI "Use MPI where it is found" ON)
if(BLURRY_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    target_link_libraries(blurry_dependencies INTERFACE MPI::MPI_C)
    target_compile_definitions(blurry_dependencies INTERFACE BLURRY_HAVE_MPI)
  else()
    message(STATUS "MPI not found (Debian: libopenmpi-dev): sweeps and training run in one process")
  endif()
endif()

# The command line adds OpenBLAS for the sgemm it measures itself against, and jansson for --json.
add_library(blurry_cli_dependencies INTERFACE)
target_include_directories(blurry_cli_dependencies SYSTEM INTERFACE ${OPENBLAS_INCLUDE})
target_link_libraries(blurry_cli_dependencies INTERFACE ${OPENBLAS_LIBRARY} PkgConfig::JANSSON Threads::Threads m)
