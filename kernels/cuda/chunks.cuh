/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunks.cuh - tiles for a warp: found by one lane, told to the other lanes; and each thread's
 * chunks of a tile. Only for codec.cu.
 */
#pragma once

#include "mem.cuh"
#include "team.cuh"
#include "tile.h"

MEM_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece)
{
	return mem_load4(plan->pieces + piece * sizeof(struct cuda_piece) +
			 offsetof(struct cuda_piece, first_tile));
}

MEM_FN struct cuda_piece load_piece(const struct cuda_plan *plan, uint32_t i)
{
	const uint64_t at = plan->pieces + i * sizeof(struct cuda_piece);
	const uint4 a = mem_table16(at), b = mem_table16(at + 16), c = mem_table16(at + 32),
		    d = mem_table16(at + 48), e = mem_table16(at + 64);
	struct cuda_piece p;

	p.base = mem_u64(a.x, a.y);
	p.page_stride = mem_u64(a.z, a.w);
	p.head_stride = mem_u64(b.x, b.y);
	p.token_stride = mem_u64(b.z, b.w);
	p.length = c.x;
	p.kind = (uint16_t)c.y;
	p.rows = (uint16_t)(c.y >> 16);
	p.first_tile = c.z;
	p.planes_k = c.w;
	p.planes_v = d.x;
	p.typed = d.y;
	p.opaque_bytes = d.z;
	p.row_chunks = d.w;
	p.row_step = e.x;
	p.row_multiplier = e.y;
	return p;
}

/*
 * A thread's chunks of a tile: 0, 1, ..., which lie page_step apart in the page and image_step in
 * the image. Side by side, the team's threads cover `step` rows or, where the tile is one row,
 * `step` chunks. A thread has chunk i if at + i * step < end.
 */
struct chunks {
	uint64_t page, page_step;
	uint64_t image; /* address of the tile's first byte of payload */
	uint32_t image_at, image_step;
	uint32_t at, step, end;
	uint32_t left, left_step; /* bytes of the row from the chunk on */
	uint32_t channel;         /* of strips: the first of the chunk's */
	bool wide;                /* whole chunks, aligned in page and image */
};

/* One row of a tile, its chunks dealt out one by one. */
MEM_FN struct chunks chunks_row(const struct tile *u, const struct team *team, uint64_t image,
				uint32_t row)
{
	struct chunks s;

	s.page = u->address + row * u->stride + team->lane * CUDA_CHUNK_BYTES;
	s.image = image;
	s.image_at = (row * u->row_bytes + team->lane * CUDA_CHUNK_BYTES) >> tile_shift(u->codec);
	s.page_step = s.left_step = team->lanes * CUDA_CHUNK_BYTES;
	s.image_step = s.left_step >> tile_shift(u->codec);
	s.left = u->row_bytes - team->lane * CUDA_CHUNK_BYTES;
	s.at = team->lane;
	s.step = team->lanes;
	s.end = (u->row_bytes + CUDA_CHUNK_BYTES - 1) / CUDA_CHUNK_BYTES;
	return s;
}

/* A tile, found. */
struct work {
	struct tile tile;      /* its scale and payload are not used any more */
	uint64_t scale, image; /* addresses: of its scale, of its first byte of payload */
	uint32_t task, at;     /* at: its number in the launch */
	uint32_t row_step, row_multiplier; /* of the piece */
	uint32_t strip, row;               /* this warp's strip: its column, its first row */
	bool wide;
};

/* Tile `at` of the launch. Tiles come in order, so the search for its task goes on where it stood:
 * at *task. */
MEM_FN struct work find(const struct cuda_plan *plan, const struct cuda_tasks *tasks, bool packs,
			uint32_t *task, uint32_t at)
{
	const struct cuda_task *t = &tasks->task[*task];
	struct cuda_piece piece;
	struct work w;
	uint32_t tile, bits;

	while (at - t->start >= t->n_tiles)
		t = &tasks->task[++*task];
	tile = t->first_tile + (at - t->start);
	piece = load_piece(plan, tile_piece(plan, tile));
	w.tile = packs ? tile_of_packs(plan, &piece, t->codec_k, t->page, tile) :
			 tile_of(plan, &piece, t->codec_k, t->codec_v, t->page, tile);
	w.scale = t->scales + w.tile.scale;
	w.image = t->payload + w.tile.payload;
	w.task = *task;
	w.row_step = piece.row_step;
	w.row_multiplier = piece.row_multiplier;
	bits = (uint32_t)w.tile.address | (uint32_t)w.image << tile_shift(w.tile.codec);
	if (packs && w.tile.codec == CODEC_LOSSLESS)
		bits = (uint32_t)w.tile.address; /* chunks of a page alone */
	if (w.tile.codec == CODEC_FP8 && w.tile.stride == w.tile.row_bytes)
		bits |= w.tile.rows * w.tile.row_bytes; /* groups whose rows are joined */
	else
		bits |= w.tile.row_bytes | (w.tile.rows > 1 ? (uint32_t)w.tile.stride : 0);
	w.wide = bits % CUDA_CHUNK_BYTES == 0;
	return w;
}

/* A struct work as a lane keeps it until its turn comes, and tells it to the warp. */
struct found {
	uint64_t address, stride, scale, image;
	uint32_t row_bytes;
	uint32_t rows; /* rows <= 4,096, row_step <= 512 */
	uint32_t more; /* row_multiplier <= 2^20, wide, codec < 16 */
};

MEM_FN struct found found_of(const struct work *w)
{
	struct found f;

	f.address = w->tile.address;
	f.stride = w->tile.stride;
	f.scale = w->scale;
	f.image = w->image;
	f.row_bytes = w->tile.row_bytes;
	f.rows = w->tile.rows << 16 | w->row_step;
	f.more = w->row_multiplier << 5 | (w->wide ? 16u : 0) | w->tile.codec;
	return f;
}

MEM_FN struct work told(const struct found *f, uint32_t task, uint32_t lane)
{
	const uint32_t rows = warp_told(f->rows, lane), more = warp_told(f->more, lane);
	struct work w = { 0 };

	w.tile.address = warp_told8(f->address, lane);
	w.tile.stride = warp_told8(f->stride, lane);
	w.tile.rows = rows >> 16;
	w.tile.row_bytes = warp_told(f->row_bytes, lane);
	w.tile.codec = more & 15;
	w.scale = warp_told8(f->scale, lane);
	w.image = warp_told8(f->image, lane);
	w.task = warp_told(task, lane);
	w.row_step = rows & 0xffff;
	w.row_multiplier = more >> 5;
	w.wide = more & 16;
	return w;
}

/* Cuts an fp8 tile to the group that has its scale `at`, and joins its rows. True: more follow. */
MEM_FN bool work_group(struct work *w, uint32_t at)
{
	const uint32_t row = at * IMAGE_GROUP_TOKENS, left = w->tile.rows - row;

	w->tile.address += row * w->tile.stride;
	w->tile.rows = left < IMAGE_GROUP_TOKENS ? left : IMAGE_GROUP_TOKENS;
	w->scale += at;
	w->image += row * w->tile.row_bytes / 2;
	tile_join(&w->tile);
	return left > IMAGE_GROUP_TOKENS;
}

/*
 * A strip of a tile of channels, for a warp: some columns of all its rows, up to CUDA_CHUNKS a
 * thread. A chunk's thread finds others with its columns `width`, 2 * width, ... lanes on. Few rows
 * leave room for more columns. v4 has no channels: of 16 rows more of what a warp writes lies
 * together.
 */
struct strips {
	uint32_t width; /* of a strip, in chunks: a power of two up to WARP */
	uint32_t rows;
	uint32_t across, n; /* side by side; all */
};

MEM_FN struct strips strips_of(const struct tile *u)
{
	const uint32_t chunks = (u->row_bytes + CUDA_CHUNK_BYTES - 1) / CUDA_CHUNK_BYTES;
	struct strips s;

	s.rows =
		u->codec == CODEC_V4 && u->rows > IMAGE_GROUP_TOKENS ? IMAGE_GROUP_TOKENS : u->rows;
	s.width = s.rows > 32 ? 4 : s.rows > 16 ? 8 : s.rows > 8 ? 16 : 32;
	while (s.width / 2 >= chunks) /* the other half would be idle */
		s.width /= 2;
	s.across = (chunks + s.width - 1) / s.width;
	s.n = s.across;
	if (u->codec == CODEC_V4)
		s.n *= (u->rows + IMAGE_GROUP_TOKENS - 1) / IMAGE_GROUP_TOKENS;
	return s;
}

/* The team's warps take the strips of a tile in turn. True: more follow. A warp whose first strip
 * is behind the last has no chunk of it. */
MEM_FN bool work_strip(struct work *w, const struct team *team, uint32_t at)
{
	const struct strips strips = strips_of(&w->tile);
	const uint32_t warps = team->lanes / WARP, strip = at * warps + team->lane / WARP;

	w->row = strip / strips.across * strips.rows;
	w->strip = strip % strips.across;
	return strip + warps < strips.n;
}

/* Rows that are too long to lie side by side, and are done one by one. */
MEM_FN bool work_is_single(const struct work *w)
{
	return w->tile.rows > 1 && w->row_step == 0;
}

/* Several rows: threads behind the last that has a whole row are idle. */
MEM_FN struct chunks chunks_rows(const struct work *w, const struct team *team)
{
	const struct tile *u = &w->tile;
	const uint32_t chunks = (u->row_bytes + CUDA_CHUNK_BYTES - 1) / CUDA_CHUNK_BYTES,
		       row = team->lane * w->row_multiplier >> 20,
		       byte = (team->lane - row * chunks) * CUDA_CHUNK_BYTES;
	struct chunks s;

	s.page = u->address + row * u->stride + byte;
	s.page_step = w->row_step * u->stride;
	s.image = w->image;
	s.image_at = (row * u->row_bytes + byte) >> tile_shift(u->codec);
	s.image_step = (w->row_step * u->row_bytes) >> tile_shift(u->codec);
	s.left = u->row_bytes - byte;
	s.left_step = 0;
	s.at = row < w->row_step ? row : u->rows;
	s.step = w->row_step;
	s.end = u->rows;
	return s;
}

/* A thread behind the last column has no chunk, and `left` is 0. */
MEM_FN struct chunks chunks_strip(const struct work *w)
{
	const struct strips strips = strips_of(&w->tile);
	const struct tile *u = &w->tile;
	const uint32_t lane = threadIdx.x % WARP, row = w->row + lane / strips.width,
		       byte = (w->strip * strips.width + lane % strips.width) * CUDA_CHUNK_BYTES,
		       image_row = tile_row(u->codec, u->row_bytes);
	struct chunks s;

	s.step = WARP / strips.width;
	s.page = u->address + row * u->stride + byte;
	s.page_step = s.step * u->stride;
	s.image = w->image;
	s.image_at = row * image_row + (byte >> tile_shift(u->codec));
	s.image_step = s.step * image_row;
	s.left = byte < u->row_bytes ? u->row_bytes - byte : 0;
	s.left_step = 0;
	s.channel = byte / 2;
	s.at = s.left ? row : u->rows;
	s.end = w->row + strips.rows < u->rows ? w->row + strips.rows : u->rows;
	return s;
}

MEM_FN struct chunks chunks_of(const struct work *w, const struct team *team)
{
	struct chunks s = tile_in_strips(w->tile.codec) ? chunks_strip(w) :
			  w->tile.rows == 1 || work_is_single(w) ?
							  chunks_row(&w->tile, team, w->image, 0) :
							  chunks_rows(w, team);

	s.wide = w->wide;
	return s;
}

/* Chunk i: is there; where; how many bytes it has. */
MEM_FN bool chunk_is(const struct chunks *s, uint32_t i)
{
	return s->at + i * s->step < s->end;
}

MEM_FN uint64_t chunk_page(const struct chunks *s, uint32_t i)
{
	return s->page + i * s->page_step;
}

MEM_FN uint64_t chunk_image(const struct chunks *s, uint32_t i)
{
	return s->image + s->image_at + i * s->image_step;
}

MEM_FN uint32_t chunk_bytes(const struct chunks *s, uint32_t i)
{
	const uint32_t left = s->left - i * s->left_step;

	return left < CUDA_CHUNK_BYTES ? left : CUDA_CHUNK_BYTES;
}

/*
 * The tiles of a team are `stride` apart. To find one takes half as many instructions as to encode
 * it. So each lane of a warp finds one of the next 32, and tells the others when its turn comes.
 */
struct round {
	struct found mine;
	uint32_t task; /* of it */
	uint32_t first,
		stride; /* the tile of lane 0 in this round; from one of the team to the next */
	uint32_t lane;  /* whose tile is next; WARP: a new round */
	uint32_t part;  /* of that tile */
};

MEM_FN struct round round_of(const struct team *team)
{
	struct round r = { 0 };

	r.stride = gridDim.x * team->teams;
	r.first = blockIdx.x * team->teams + team->index - WARP * r.stride;
	r.lane = WARP;
	return r;
}

/* packs: the plan has some, which is known when this is compiled. The team's next tile, or, of a
 * tile with scales, its next group or strip: to tell it again takes
 * fewer registers than to keep the rest. False: the last one was before. */
MEM_FN bool next_work(const struct cuda_plan *plan, const struct cuda_tasks *tasks, bool packs,
		      const struct team *team, struct round *r, struct work *ret)
{
	bool more = false;

	if (r->lane == WARP) {
		uint32_t at;

		r->first += WARP * r->stride;
		r->lane = 0;
		at = r->first + threadIdx.x % WARP * r->stride;
		if (at < tasks->n_tiles) {
			const struct work w = find(plan, tasks, packs, &r->task, at);

			r->mine = found_of(&w);
		}
	}
	if (r->first + r->lane * r->stride >= tasks->n_tiles)
		return false;
	*ret = told(&r->mine, r->task, r->lane);
	ret->at = r->first + r->lane * r->stride;
	if (!packs && ret->tile.codec == CODEC_FP8)
		more = work_group(ret, r->part);
	else if (!packs && tile_in_strips(ret->tile.codec))
		more = work_strip(ret, team, r->part);
	r->part = more ? r->part + 1 : 0;
	r->lane += !more;
	return true;
}
