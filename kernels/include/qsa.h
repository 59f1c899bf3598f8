// The entries of the QSA kernels, for engines: C and C++, nothing else needed.
//
// Every entry launches work on a stream and returns a status at once, without waiting and without allocating.
// All pointers are device memory unless said otherwise; bf16 elements are the 16 bits of one. Buffers that
// are read and buffers that are written may not overlap.
//
// Extents are capacities. Live lengths come from device buffers (rows, visible_len, live_rows), so a launch
// captured in a CUDA graph serves every length, and its time follows the live length.
//
// A position is a token's index from 0; a block is four tokens in a row, and block b begins at token 4 * b.
// A row at position p sees the tokens 0 .. p; token 0 is the first visible one: a list whose first tokens
// were evicted is out of contract. An input that breaks a rule which only the device can check traps: the
// launch fails, and with it the CUDA context.
#ifndef QSA_H
#define QSA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What an entry returns. Zero is the only success; with everything else nothing was launched.
#define QSA_OK 0
#define QSA_NULL_POINTER 1
#define QSA_BAD_EXTENT 2  // negative, zero where zero is refused, or beyond what the kernel serves
#define QSA_BAD_BUDGET 3
#define QSA_BAD_STRIDE 4
#define QSA_BAD_ROTARY 5
#define QSA_BAD_EPS 6
#define QSA_LAUNCH_FAILED 7  // the CUDA runtime refused the launch
#define QSA_UNSUPPORTED 8    // this device, or the alignment of a pointer, is none that the kernel serves

// One key a block: the mean of the block's four raw keys, to bf16; RMSNorm with weight (1 + w), to bf16;
// rotated at the block's first token, to bf16.
//
// fused_qk       [tokens, 640] bf16, 16-byte aligned; the raw key in columns 512 .. 639
// k_norm_weight  [128] bf16, 16-byte aligned
// cos, sin       [tokens, 64] bf16 by absolute position, 16-byte aligned
// block_keys     [first_block + block_count or more, 128] bf16, 16-byte aligned; of the rows only
//                first_block .. first_block + block_count - 1 are written
// first_block, block_count   the blocks to pool, all complete: first_block + block_count <= tokens / 4;
//                with block_count 0 there is nothing to do
// fused_stride   640, rotary_dim 64, eps 0 or more (1e-6 in the model)
// stream         cudaStream_t; null is the default stream
int32_t qsa_pool(const uint16_t* fused_qk, const uint16_t* k_norm_weight, const uint16_t* cos,
                 const uint16_t* sin, uint16_t* block_keys, int64_t tokens, int64_t first_block,
                 int64_t block_count, int64_t fused_stride, int64_t rotary_dim, float eps, void* stream);

// How much each row wants each block: scores[r, b] = sum over the 4 query heads of
// relu(query . block_keys[b]) / sqrt(128), for every block b < visible_len[r] / 4.
//
// fused_qk       [fused_rows, 640] bf16, 16-byte aligned; the query heads in columns 0 .. 511; row 0 belongs
//                to position first_position, so decoding needs the new rows alone
// q_norm_weight  [128] bf16, 16-byte aligned
// cos, sin       [tokens, 64] bf16 by absolute position, 16-byte aligned
// block_keys     [block_capacity, 128] bf16, as qsa_pool leaves them, 16-byte aligned
// rows           [row_count] i32, the position of each row; outside 0 .. tokens - 1, or without its row in
//                fused_qk, it traps
// visible_len    [row_count] i32, how many tokens the row sees; outside 0 .. tokens, or with more blocks than
//                block_capacity, it traps; with 0 nothing is written
// scores         [row_count, score_cols] f32; the columns from visible_len[r] / 4 on are left untouched
// score_cols     the row stride in elements, max(1, tokens / 4) or more
// fused_stride   640, rotary_dim 64, eps 0 or more
// stream         cudaStream_t; null is the default stream
// With row_count 0 there is nothing to do.
int32_t qsa_score(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                  const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                  const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                  int64_t first_position, int64_t fused_rows, int64_t block_capacity, int64_t score_cols,
                  int64_t fused_stride, int64_t rotary_dim, float eps, void* stream);

// The same contract by one body. qsa_score takes the fastest that the device has for so many rows; its scores
// and these differ by what f32 sums in another order do, which moves no block past another unless the two are
// that close.
// qsa_score_mma     tensor cores, as on a device without warpgroup multiplication; QSA_UNSUPPORTED before
//                   compute capability 8.0
// qsa_score_scalar  the CUDA cores, on any device
// All else as for qsa_score.
int32_t qsa_score_mma(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                      const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                      const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                      int64_t first_position, int64_t fused_rows, int64_t block_capacity, int64_t score_cols,
                      int64_t fused_stride, int64_t rotary_dim, float eps, void* stream);

int32_t qsa_score_scalar(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                         const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                         const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                         int64_t first_position, int64_t fused_rows, int64_t block_capacity,
                         int64_t score_cols, int64_t fused_stride, int64_t rotary_dim, float eps,
                         void* stream);

// Which tokens each row attends to, as a mask. A row at position p has (p + 1) / 4 complete blocks; the
// budget / 4 of them with the highest scores are kept (all, if there are no more), of equal scores those with
// the lowest index, -0.0 being equal to +0.0. Selected are the tokens of the kept blocks and the (p + 1) % 4
// tokens after the last complete block.
//
// scores         [row_count, score_cols] f32; of row r only its complete blocks are read, and one of these
//                that is not finite traps
// rows           [row_count] i32, the position of each row; outside 0 .. tokens - 1 it traps
// live_rows      null, or [1] i32: rows at or past it are padding, of which nothing is read
// mask           [row_count, tokens] u8, every byte written: 1 for a selected token, else 0; padding rows 0
// row_count, tokens   1 or more
// score_cols     the row stride in elements, max(1, tokens / 4) or more
// budget         in tokens: a multiple of 4 from 4 to 2048
// stream         cudaStream_t; null is the default stream
int32_t qsa_select(const float* scores, const int32_t* rows, const int32_t* live_rows, uint8_t* mask,
                   int64_t row_count, int64_t tokens, int64_t score_cols, int64_t budget, void* stream);

// The same selection as a list.
//
// ids            [row_count, budget + 3] i32, every element written: the selected tokens in ascending order,
//                then -1; padding rows -1
// counts         [row_count] i32, how many tokens are selected; padding rows 0
// All else as for qsa_select.
int32_t qsa_select_ids(const float* scores, const int32_t* rows, const int32_t* live_rows, int32_t* ids,
                       int32_t* counts, int64_t row_count, int64_t tokens, int64_t score_cols, int64_t budget,
                       void* stream);

#ifdef __cplusplus
}
#endif

#endif  // QSA_H
