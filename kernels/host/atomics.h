// CUDA's atomics. One OS thread runs every CUDA thread and none is interrupted inside an atomic, so a plain
// read and write is one; the checker is told that the access is atomic.
#pragma once

#include <stdint.h>

#include "host/intrinsics.h"

namespace qsa::host {

// Out of line, where no instrumentation takes them for plain accesses. The load is checked as an atomic
// update.
#pragma GCC visibility push(hidden)
uint32_t atomic_load(const uint32_t* address);
uint64_t atomic_load(const uint64_t* address);
void atomic_store(uint32_t* address, uint32_t value);
void atomic_store(uint64_t* address, uint64_t value);
uint32_t atomic_swap(uint32_t* address, uint32_t value);
uint64_t atomic_swap(uint64_t* address, uint64_t value);
#pragma GCC visibility pop

template <int kBytes>
struct WordOf;
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint64_t;
};

template <class T>
using word_of = typename WordOf<sizeof(T)>::type;

template <class T>
QSA_HOST_INLINE T atomic_read(const T* address) {
  return qsa_host_bit_cast<T>(atomic_load(reinterpret_cast<const word_of<T>*>(address)));
}
template <class T>
QSA_HOST_INLINE void atomic_write(T* address, T value) {
  atomic_store(reinterpret_cast<word_of<T>*>(address), qsa_host_bit_cast<word_of<T>>(value));
}
template <class T>
QSA_HOST_INLINE T atomic_exchange(T* address, T value) {
  return qsa_host_bit_cast<T>(
      atomic_swap(reinterpret_cast<word_of<T>*>(address), qsa_host_bit_cast<word_of<T>>(value)));
}

}  // namespace qsa::host

#define QSA_HOST_ATOMIC(name, type, next)                        \
  QSA_HOST_INLINE type name(type* address, type value) {         \
    const type old = ::qsa::host::atomic_read(address);          \
    ::qsa::host::atomic_write(address, static_cast<type>(next)); \
    return old;                                                  \
  }
#define QSA_HOST_ATOMIC_EXCHANGE(type)                         \
  QSA_HOST_INLINE type atomicExch(type* address, type value) { \
    return ::qsa::host::atomic_exchange(address, value);       \
  }
#define QSA_HOST_ATOMICS(type)                                               \
  QSA_HOST_ATOMIC(atomicMin, type, old < value ? old : value)                \
  QSA_HOST_ATOMIC(atomicMax, type, old > value ? old : value)                \
  QSA_HOST_ATOMIC(atomicAnd, type, (old) & (value))                          \
  QSA_HOST_ATOMIC(atomicOr, type, old | value)                               \
  QSA_HOST_ATOMIC(atomicXor, type, old ^ value)                              \
  QSA_HOST_ATOMIC_EXCHANGE(type)                                             \
  QSA_HOST_INLINE type atomicCAS(type* address, type expected, type value) { \
    const type old = ::qsa::host::atomic_read(address);                      \
    ::qsa::host::atomic_write(address, old == expected ? value : old);       \
    return old;                                                              \
  }
QSA_HOST_ATOMICS(int)
QSA_HOST_ATOMICS(unsigned)
QSA_HOST_ATOMICS(long long)
QSA_HOST_ATOMICS(unsigned long long)
QSA_HOST_ATOMIC_EXCHANGE(float)
// Signed sums wrap, as on a GPU.
QSA_HOST_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
QSA_HOST_ATOMIC(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
QSA_HOST_ATOMIC(atomicAdd, unsigned, old + value)
QSA_HOST_ATOMIC(atomicSub, unsigned, old - value)
QSA_HOST_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
QSA_HOST_ATOMIC(atomicAdd, unsigned long long, old + value)
QSA_HOST_ATOMIC(atomicAdd, float, old + value)
QSA_HOST_ATOMIC(atomicAdd, double, old + value)
#undef QSA_HOST_ATOMIC
#undef QSA_HOST_ATOMICS
#undef QSA_HOST_ATOMIC_EXCHANGE

namespace qsa {

// Words that threads count in together, those from index `first` on.
class SharedWords {
 public:
  QSA_HOST_INLINE SharedWords(uint32_t* words, uint32_t first) : words_(words), first_(first) {}
  QSA_HOST_INLINE uint32_t take(uint32_t index) const { return atomicAdd(words_ + (index - first_), 1u); }
  QSA_HOST_INLINE void increment(uint32_t index) const { atomicAdd(words_ + (index - first_), 1u); }

 private:
  uint32_t* words_;
  uint32_t first_;
};

}  // namespace qsa
