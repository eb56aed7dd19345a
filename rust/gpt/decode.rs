//! Running a model token by token: ids -> the logits after the last of them, with a KV cache.
//!
//! Everything is allocated once, and its bytes are known before. The logits are the same bits for any threads, and
//! however a text is divided into calls.

use super::cache::{Cache, CacheSizes, OutOfMemory, zero_lines, zeros};
use super::cached_attention::{Newest, Parts, attend};
use super::shape::{LayerPlaces, Place, Places, Shape};
use crate::kernels::{self, Element, Heads, Line, Rotary};
use crate::products::{self, Size};

/// The flat arrays that `Places` describes.
#[derive(Clone, Copy)]
pub struct Weights<'a, T> {
    pub matrices: &'a [T],
    pub gains: &'a [f32],
}

impl<T> Weights<'_, T> {
    fn matrix(&self, place: Place) -> &[T] {
        &self.matrices[place.range()]
    }

    fn gain(&self, place: Place) -> &[f32] {
        &self.gains[place.range()]
    }
}

/// From so many rows on, a product of more rows never needs less scratch memory.
const MANY: usize = 1024;

/// What is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Texts that are continued at the same time.
    pub rows: usize,
    /// Tokens of each that are cached.
    pub capacity: usize,
    /// Tokens in one call, of all rows together.
    pub tokens: usize,
    pub threads: usize,
}

impl Limits {
    /// Of the products of any number of tokens.
    fn scratch_lines(&self, shape: &Shape) -> usize {
        let most = |rows: usize, inner, columns| {
            let lines = |rows| products::forward_scratch(Size { rows, inner, columns }, self.threads);
            (1..=rows.min(MANY)).map(lines).max().unwrap_or(0).max(lines(rows))
        };
        most(self.tokens, shape.width, shape.qkv_width())
            .max(most(self.tokens, shape.queries_width(), shape.width))
            .max(most(self.tokens, shape.width, 2 * shape.feed_forward))
            .max(most(self.tokens, shape.feed_forward, shape.width))
            .max(most(self.rows, shape.width, shape.vocab))
    }

    /// Elements of what only a part of a layer, or the head, needs.
    fn block(&self, shape: &Shape) -> usize {
        let attention = shape.qkv_width() + queries_and_keys(shape) + shape.queries_width();
        (self.tokens * attention.max(3 * shape.feed_forward)).max(self.rows * shape.vocab)
    }

    /// Elements of a rotary table.
    pub fn table(&self, shape: &Shape) -> usize {
        self.capacity * shape.head_width / 2
    }
}

/// The width of the copy that QK-norm makes.
fn queries_and_keys(shape: &Shape) -> usize {
    if shape.qk_norm { shape.queries_width() + shape.keys_width() } else { 0 }
}

pub struct Decoder<T> {
    shape: Shape,
    places: Places,
    limits: Limits,
    cos: Vec<f32>,
    sin: Vec<f32>,
    cache: Cache<T>,
    positions: Vec<i64>,
    x: Vec<T>,
    /// What is normalized, then what `x` becomes.
    normed: Vec<T>,
    block: Vec<T>,
    /// The last token of each row in the last call.
    last: Vec<T>,
    last_rows: usize,
    parts: Parts,
    scratch: Vec<Line>,
}

impl<T: Element> Decoder<T> {
    /// All memory that it takes.
    pub fn bytes(shape: &Shape, limits: Limits) -> usize {
        let cache = CacheSizes::new(shape, limits.rows, limits.capacity);
        let elements =
            cache.elements() + (2 * limits.tokens + limits.rows) * shape.width + limits.block(shape);
        elements * size_of::<T>()
            + 2 * limits.table(shape) * size_of::<f32>()
            + limits.tokens * size_of::<i64>()
            + Parts::bytes(&cache, limits.threads)
            + limits.scratch_lines(shape) * size_of::<Line>()
    }

    /// Of `bytes`, those of the KV cache.
    pub fn cache_bytes(shape: &Shape, limits: Limits) -> usize {
        CacheSizes::new(shape, limits.rows, limits.capacity).elements() * size_of::<T>()
    }

    /// `cos` and `sin` have a row of half a head's width for each of `capacity` positions.
    pub fn new(
        shape: Shape,
        limits: Limits,
        cos: Vec<f32>,
        sin: Vec<f32>,
    ) -> Result<Decoder<T>, OutOfMemory> {
        assert!(limits.rows > 0 && limits.capacity > 0 && limits.tokens >= limits.rows);
        assert!([cos.len(), sin.len()] == [limits.table(&shape); 2]);
        let cache = CacheSizes::new(&shape, limits.rows, limits.capacity);
        Ok(Decoder {
            places: Places::new(&shape),
            cos,
            sin,
            cache: Cache::new(cache)?,
            positions: Vec::with_capacity(limits.tokens),
            x: zeros(limits.tokens * shape.width)?,
            normed: zeros(limits.tokens * shape.width)?,
            block: zeros(limits.block(&shape))?,
            last: zeros(limits.rows * shape.width)?,
            last_rows: 0,
            parts: Parts::new(&cache, limits.threads)?,
            scratch: zero_lines(limits.scratch_lines(&shape))?,
            shape,
            limits,
        })
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens that are cached of each row.
    pub fn length(&self) -> usize {
        self.cache.length
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.cache.length = 0;
    }

    /// Copies what is cached of the first row to all others.
    pub fn spread(&mut self) {
        self.cache.spread();
    }

    /// The next ids of the first `rows` rows, row by row, equally many of each.
    ///
    /// # Panics
    /// If an id is outside the vocabulary, or there are more than the limits allow.
    pub fn feed(&mut self, weights: Weights<'_, T>, ids: &[i64], rows: usize) {
        let (shape, width) = (self.shape, self.shape.width);
        let count = ids.len() / rows;
        let tokens = ids.len();
        assert!(count > 0 && tokens == rows * count && rows <= self.limits.rows);
        assert!(tokens <= self.limits.tokens && self.cache.length + count <= self.limits.capacity);
        let first = self.cache.length as i64;
        self.positions.clear();
        self.positions.extend((0..tokens).map(|token| first + (token % count) as i64));
        let embedding = weights.matrix(self.places.embedding);
        for (to, &id) in self.x.chunks_exact_mut(width).zip(ids) {
            assert!((0..shape.vocab as i64).contains(&id));
            to.copy_from_slice(&embedding[id as usize * width..][..width]);
        }
        for layer in 0..shape.layers {
            self.attention(weights, layer, rows, count);
            self.feed_forward(weights, layer, tokens);
        }
        self.cache.length += count;
        for (row, to) in self.last.chunks_exact_mut(width).take(rows).enumerate() {
            to.copy_from_slice(&self.x[((row + 1) * count - 1) * width..][..width]);
        }
        self.last_rows = rows;
    }

    /// How many rows the last call had.
    pub fn last_rows(&self) -> usize {
        self.last_rows
    }

    /// The logits after the last ids of the last call, (rows, vocabulary).
    pub fn logits(&mut self, weights: Weights<'_, T>, out: &mut [f32]) {
        let Shape { width, vocab, eps, .. } = self.shape;
        let (rows, threads) = (self.last_rows, self.limits.threads);
        assert_eq!(out.len(), rows * vocab);
        let normed = &mut self.normed[..rows * width];
        kernels::norm(&self.last[..rows * width], weights.gain(self.places.norm), eps, normed, threads);
        let logits = &mut self.block[..rows * vocab];
        // Without the rows that only pad the vocabulary.
        let head = &weights.matrix(self.places.head)[..vocab * width];
        let size = Size { rows, inner: width, columns: vocab };
        products::forward(normed, head, None, logits, size, &mut self.scratch, threads);
        for (out, logit) in out.iter_mut().zip(logits) {
            *out = logit.widen();
        }
    }

    fn norm(&mut self, gain: &[f32], tokens: usize) {
        let used = tokens * self.shape.width;
        kernels::norm(&self.x[..used], gain, self.shape.eps, &mut self.normed[..used], self.limits.threads);
    }

    fn attention(&mut self, weights: Weights<'_, T>, layer: usize, rows: usize, count: usize) {
        let (shape, threads, tokens) = (self.shape, self.limits.threads, rows * count);
        let LayerPlaces { norm_attention, qkv: qkv_place, out: out_place, norm_q, norm_k, .. } =
            self.places.layers[layer];
        self.norm(weights.gain(norm_attention), tokens);

        let (qkv_width, queries, keys) = (shape.qkv_width(), shape.queries_width(), shape.keys_width());
        let (qkv, rest) = self.block.split_at_mut(tokens * qkv_width);
        let (qk, rest) = rest.split_at_mut(tokens * queries_and_keys(&shape));
        let attended = &mut rest[..tokens * queries];
        let normed = &mut self.normed[..tokens * shape.width];
        let size = Size { rows: tokens, inner: shape.width, columns: qkv_width };
        products::forward(normed, weights.matrix(qkv_place), None, qkv, size, &mut self.scratch, threads);

        // Positions are below the capacity, which the tables have.
        let (cos, sin, positions) = (&self.cos[..], &self.sin[..], &self.positions[..]);
        let (ready, stride) = match (norm_q, norm_k) {
            (Some(norm_q), Some(norm_k)) => {
                let heads = Heads {
                    query_gain: weights.gain(norm_q),
                    key_gain: weights.gain(norm_k),
                    eps: shape.eps,
                    cos,
                    sin,
                    positions,
                    heads: shape.heads,
                    kv_heads: shape.kv_heads,
                };
                kernels::qk_norm(qkv, &heads, qk, threads).expect("a position below the capacity");
                (&*qk, queries + keys)
            }
            _ => {
                let heads = shape.heads + shape.kv_heads;
                let rotary =
                    Rotary { cos, sin, half: shape.head_width / 2, positions, heads, inverse: false };
                kernels::rotate(qkv, &rotary, threads).expect("a position below the capacity");
                (&*qkv, qkv_width)
            }
        };
        for token in 0..tokens {
            let new_keys = &ready[token * stride + queries..][..keys];
            let new_values = &qkv[token * qkv_width + queries + keys..][..keys];
            let (row, position) = (token / count, self.cache.length + token % count);
            self.cache.add(layer, row, position, new_keys, new_values);
        }
        let new = Newest { queries: ready, stride, heads: shape.heads, before: self.cache.length, count };
        attend(&new, self.cache.layer(layer), self.cache.sizes, &mut self.parts, attended, threads);

        let size = Size { rows: tokens, inner: queries, columns: shape.width };
        let x = Some(&self.x[..tokens * shape.width]);
        products::forward(attended, weights.matrix(out_place), x, normed, size, &mut self.scratch, threads);
        std::mem::swap(&mut self.x, &mut self.normed);
    }

    fn feed_forward(&mut self, weights: Weights<'_, T>, layer: usize, tokens: usize) {
        let (Shape { width, feed_forward: wide, .. }, threads) = (self.shape, self.limits.threads);
        let LayerPlaces { norm_feed_forward, gate_up: gate_up_place, down, .. } = self.places.layers[layer];
        self.norm(weights.gain(norm_feed_forward), tokens);

        let (gate_up, rest) = self.block.split_at_mut(tokens * 2 * wide);
        let act = &mut rest[..tokens * wide];
        let normed = &mut self.normed[..tokens * width];
        let size = Size { rows: tokens, inner: width, columns: 2 * wide };
        let up = weights.matrix(gate_up_place);
        products::forward(normed, up, None, gate_up, size, &mut self.scratch, threads);
        kernels::gate(gate_up, wide, act, threads);
        let size = Size { rows: tokens, inner: wide, columns: width };
        let x = Some(&self.x[..tokens * width]);
        products::forward(act, weights.matrix(down), x, normed, size, &mut self.scratch, threads);
        std::mem::swap(&mut self.x, &mut self.normed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Bf16;

    const SHAPE: Shape = Shape {
        vocab: 131,
        context: 48,
        layers: 2,
        width: 24,
        heads: 6,
        kv_heads: 2,
        head_width: 10,
        feed_forward: 40,
        eps: 1e-5,
        tied: false,
        qk_norm: true,
    };

    fn allocated<T: Element>(shape: Shape, limits: Limits) -> usize {
        let table = vec![0.0; limits.table(&shape)];
        let decoder = Decoder::<T>::new(shape, limits, table.clone(), table).unwrap();
        let cache = decoder.cache.layer(0);
        let cache = shape.layers * (cache.0.len() + cache.1.len());
        let elements = [&decoder.x, &decoder.normed, &decoder.block, &decoder.last].map(Vec::capacity);
        (cache + elements.iter().sum::<usize>()) * size_of::<T>()
            + (decoder.cos.capacity() + decoder.sin.capacity()) * size_of::<f32>()
            + decoder.positions.capacity() * size_of::<i64>()
            + decoder.parts.allocated()
            + size_of_val(&decoder.scratch[..])
    }

    #[test]
    fn the_bytes_are_those_that_are_allocated() {
        for qk_norm in [false, true] {
            for (rows, capacity, tokens, threads) in [(1, 1, 1, 1), (3, 37, 60, 2), (5, 48, 256, 4)] {
                let shape = Shape { qk_norm, ..SHAPE };
                let limits = Limits { rows, capacity, tokens, threads };
                assert_eq!(allocated::<f32>(shape, limits), Decoder::<f32>::bytes(&shape, limits));
                assert_eq!(allocated::<Bf16>(shape, limits), Decoder::<Bf16>::bytes(&shape, limits));
            }
        }
    }
}
