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

// A sequence's new tokens: their raw keys, and the keys of the blocks that they complete.
//
// fused_qk       [row_count, 640] bf16, rows of the tokens first_position .. first_position + row_count - 1
// k_norm_weight  [128] bf16
// cos, sin       [tokens, 64] bf16, by absolute position
// raw_keys       [tokens, 128] bf16, of every token so far; the new ones are written
// block_keys     [tokens / 4, 128] bf16; blocks whose fourth token is among the new ones are written
// first_position, row_count, tokens   first_position + row_count <= tokens, the sequence's capacity
// fused_stride   640
// rotary_dim     64
// eps            added to the mean square; 0 or more
// stream         cudaStream_t; null is the default stream
// With row_count 0 there is nothing to do.
int32_t qsa_ingest(const uint16_t* fused_qk, const uint16_t* k_norm_weight, const uint16_t* cos,
                   const uint16_t* sin, uint16_t* raw_keys, uint16_t* block_keys, int64_t first_position,
                   int64_t row_count, int64_t tokens, int64_t fused_stride, int64_t rotary_dim, float eps,
                   void* stream);

// The same for one token whose position lies on the device, with what the launches behind it in a captured
// step read.
//
// fused_qk       [1, 640] bf16
// k_norm_weight  [128] bf16
// cos, sin       [tokens, 64] bf16, by absolute position
// position       [1] i32: -1 is an empty slot; outside -1 .. tokens - 1 it traps
// raw_keys       [tokens, 128] bf16; block_keys [tokens / 4, 128] bf16, as for qsa_ingest
// step           [4] i32, written: tokens visible, 1, position, 0; of an empty slot zeros
// cos_row, sin_row   [64] bf16, written: the tables' row of the position; not for an empty slot
// tokens         the sequence's capacity
// fused_stride   640
// rotary_dim     64
// eps            added to the mean square; 0 or more
// stream         cudaStream_t; null is the default stream
int32_t qsa_ingest_step(const uint16_t* fused_qk, const uint16_t* k_norm_weight, const uint16_t* cos,
                        const uint16_t* sin, const int32_t* position, uint16_t* raw_keys,
                        uint16_t* block_keys, int32_t* step, uint16_t* cos_row, uint16_t* sin_row,
                        int64_t tokens, int64_t fused_stride, int64_t rotary_dim, float eps, void* stream);

// Keys and values of selected tokens, out of a paged cache into a contiguous one.
//
// k_pages, v_pages   [page_count] pages of [page_tokens, kv_heads, head_dim] bf16, page_stride elements apart
// block_table    [row_count, table_pages] i32, page ids
// ids            [row_count, ids_stride] i32, ascending; only the first counts[r] are read
// counts         [row_count] i32; outside 0 .. min(scratch_tokens, ids_stride) it traps
// k_scratch, v_scratch   [row_count, scratch_tokens, kv_heads, head_dim] bf16; slots past the count keep what
//                they held
// identity       [row_count, scratch_tokens / page_tokens] i32, written: a block table of the scratch
// lengths        [row_count] i32, written: the counts
// page_tokens    8 or more
// head_dim       a multiple of 8
// scratch_tokens a multiple of page_tokens
// stream         cudaStream_t; null is the default stream
// With row_count 0 there is nothing to do.
int32_t qsa_gather(const uint16_t* k_pages, const uint16_t* v_pages, const int32_t* block_table,
                   const int32_t* ids, const int32_t* counts, uint16_t* k_scratch, uint16_t* v_scratch,
                   int32_t* identity, int32_t* lengths, int64_t row_count, int64_t page_count,
                   int64_t page_stride, int64_t page_tokens, int64_t table_pages, int64_t kv_heads,
                   int64_t head_dim, int64_t ids_stride, int64_t scratch_tokens, void* stream);

// The context of one token a sequence over a paged cache, as qsa_gather leaves one.
//
// q              [row_count, 16, 256] bf16, roped queries
// k_pages, v_pages   [page_count] pages of [page_tokens, 2, 256] bf16, page_stride elements apart
// block_table    [row_count, table_pages] i32, page ids
// lengths        [row_count] i32, tokens of each row; 0 is an empty slot, whose context is zero
// context        [row_count, 16, 256] bf16, every element written
// page_tokens    8 or more
// query_heads    16
// kv_heads       2
// head_dim       256
// stream         cudaStream_t; null is the default stream
// With row_count 0 there is nothing to do; 2^28 rows or more are refused.
int32_t qsa_decode_attention(const uint16_t* q, const uint16_t* k_pages, const uint16_t* v_pages,
                             const int32_t* block_table, const int32_t* lengths, uint16_t* context,
                             int64_t row_count, int64_t page_count, int64_t page_stride, int64_t page_tokens,
                             int64_t table_pages, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                             void* stream);

// The context of a slab's selective rows, those at a position of budget + 3 or more, over the blocks that
// they selected and the tail behind their last complete block. Other rows keep every bit of their context.
//
// q              [row_count, 16, 256] bf16, roped queries
// rows           [row_count] i32, the position of each row
// k_pages, v_pages   [page_count] pages of [page_tokens, 2, 256] bf16, page_stride elements apart
// block_table    [table_pages] i32, one sequence's page ids
// ids, counts    [row_count, ids_stride] i32 and [row_count] i32, as qsa_select_ids leaves them
// context        [row_count, 16, 256] bf16, selective rows only are written
// page_tokens    8 or more
// query_heads    16
// kv_heads       2
// head_dim       256
// ids_stride     budget + 3 or more
// budget         of the selection, in tokens
// stream         cudaStream_t; null is the default stream
// With row_count 0 there is nothing to do.
int32_t qsa_prefill_attention(const uint16_t* q, const int32_t* rows, const uint16_t* k_pages,
                              const uint16_t* v_pages, const int32_t* block_table, const int32_t* ids,
                              const int32_t* counts, uint16_t* context, int64_t row_count, int64_t page_count,
                              int64_t page_stride, int64_t page_tokens, int64_t table_pages,
                              int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t ids_stride,
                              int64_t budget, void* stream);

#ifdef __cplusplus
}
#endif

#endif  // QSA_H
