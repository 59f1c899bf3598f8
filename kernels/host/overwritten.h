// Bytes that a kernel overwrote where it had no business, put back when its launch ends: the process goes on.
#pragma once

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

namespace qsa::host::checker {

class Overwritten {
 public:
  // Before the bytes are written. False when there are more than a launch may break.
  bool keep(uintptr_t address, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
      Piece piece{};
      piece.address = reinterpret_cast<unsigned char*>(address + done);
      piece.bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes - done, sizeof(piece.before)));
      memcpy(piece.before, piece.address, piece.bytes);
      pieces_.push_back(piece);
      done += piece.bytes;
    }
    return pieces_.size() <= kMostPieces;
  }

  void put_back() {
    for (size_t i = pieces_.size(); i > 0; --i) {
      const Piece& piece = pieces_[i - 1];
      memcpy(piece.address, piece.before, piece.bytes);
    }
    pieces_.clear();
  }

 private:
  static constexpr size_t kMostPieces = 1u << 20;
  struct Piece {
    unsigned char* address;
    uint32_t bytes;
    unsigned char before[16];
  };
  std::vector<Piece> pieces_;
};

}  // namespace qsa::host::checker
