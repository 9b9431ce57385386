#!/bin/sh
# Make the source of Horovod 0.28.1 in the folder $1 compile with gcc 14 against torch 2.6.
set -eu
cd "$1"
# torch asks for C++17 (horovod#3998).
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt
sed -i 's/-std=c++11 -fPIC/-std=c++17 -fPIC/' third_party/gloo/CMakeLists.txt
# Some files use what they do not include (horovod#3957).
headers='-include cstdint -include functional -include memory -include stdexcept -include string -include vector'
sed -i "s/^project(horovod CXX)/&\nset(CMAKE_CXX_FLAGS_RELWITHDEBINFO \"-O2 -DNDEBUG -w $headers\")/" CMakeLists.txt
# An assignment to a constant, which compilers now notice in templates.
sed -i 's/^  const size_type count_;/  size_type count_;/; s/^    count_ = other.count_;/&\n    return *this;/' \
  third_party/flatbuffers/include/flatbuffers/stl_emulation.h
