# The CUDA part: src/**/*.cu and src/device/cuda*.c, built where nvcc is. BLURRY_CUDA is AUTO (the default: where
# nvcc is found), ON (fail without it) or OFF. Code is made for Hopper; -DCMAKE_CUDA_ARCHITECTURES=80;90 for others.
# Files *_hopper.cu have instructions that no other GPU knows: they are compiled for Hopper alone, and their callers ask
# whether the GPU at hand is one.
# The runtime is linked statically, cuBLASLt is opened when the first CUDA device is made: the programs start on
# machines without CUDA and say there what is missing.
set(BLURRY_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE BLURRY_CUDA PROPERTY STRINGS AUTO ON OFF)
file(GLOB_RECURSE BLURRY_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.cu)
file(GLOB BLURRY_CUDA_C_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/cuda*.c)

set(BLURRY_HAVE_CUDA OFF)
if(BLURRY_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(BLURRY_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
    if(BLURRY_NVCC)
      set(CMAKE_CUDA_COMPILER ${BLURRY_NVCC})
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(BLURRY_HAVE_CUDA ON)
  elseif(NOT BLURRY_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "BLURRY_CUDA is ON and nvcc was not found: put it in PATH, or set CUDACXX to it")
  endif()
endif()
if(BLURRY_SANITIZE OR BLURRY_FUZZ)
  set(BLURRY_HAVE_CUDA OFF) # sanitizers look at host code; kernels are tested under the emulator
endif()

# The C files beside the kernels; the emulator's build uses them too.
function(blurry_c_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE BLURRY_BUILD)
  target_link_libraries(${name} PRIVATE blurry_flags blurry_dependencies)
endfunction()
blurry_c_objects(blurry_cuda_c_objects ${BLURRY_CUDA_C_SOURCES})

if(BLURRY_HAVE_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}, for compute capability ${CMAKE_CUDA_ARCHITECTURES}")
  set(hopper_sources ${BLURRY_CUDA_SOURCES})
  list(FILTER hopper_sources INCLUDE REGEX "_hopper\\.cu$")
  set(other_sources ${BLURRY_CUDA_SOURCES})
  list(REMOVE_ITEM other_sources ${hopper_sources})
  add_library(blurry_cuda_objects OBJECT ${other_sources})
  add_library(blurry_hopper_objects OBJECT ${hopper_sources})
  set(BLURRY_HOPPER_ARCHITECTURE 90a-real CACHE STRING "What *_hopper.cu are compiled for")
  set_target_properties(blurry_hopper_objects PROPERTIES CUDA_ARCHITECTURES ${BLURRY_HOPPER_ARCHITECTURE})
  foreach(objects blurry_cuda_objects blurry_hopper_objects)
    set_target_properties(${objects} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
      CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(${objects} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
      ${RANDOM123_INCLUDE})
    target_compile_definitions(${objects} PRIVATE BLURRY_BUILD R123_USE_SSE=0 R123_USE_AES_NI=0)
    # Host code without the C++ library, so that C programs link it.
    target_compile_options(${objects} PRIVATE -Werror=all-warnings
      "SHELL:-Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics")
  endforeach()
  set(blurry_device_objects $<TARGET_OBJECTS:blurry_cuda_objects> $<TARGET_OBJECTS:blurry_hopper_objects>
    $<TARGET_OBJECTS:blurry_cuda_c_objects>)
  target_link_libraries(blurry_dependencies INTERFACE CUDA::cudart_static)
else()
  message(STATUS "CUDA: not built (BLURRY_CUDA is ${BLURRY_CUDA}, nvcc ${CMAKE_CUDA_COMPILER})")
  file(GLOB BLURRY_NO_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/no_cuda.c)
  blurry_c_objects(blurry_no_cuda_objects ${BLURRY_NO_CUDA_SOURCES})
  set(blurry_device_objects $<TARGET_OBJECTS:blurry_no_cuda_objects>)
endif()
