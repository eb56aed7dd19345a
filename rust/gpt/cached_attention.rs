//! Attention of new tokens to everything in the KV cache up to themselves.
//!
//! A score is one chain over the width of a head, a number of the result one chain over the tokens, and the sum of the
//! exponentials has sixteen chains, by position. So the bits depend neither on the threads nor on which tokens are new.

use super::cache::{CacheSizes, OutOfMemory, zeros};
use crate::kernels::{Element, Kernel, LANES, Rows, Vector, exp, load, portion, run, store};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Queries that are computed together, and new tokens that a thread takes at a time.
const TOGETHER: usize = 4;

/// Scratch memory that is allocated once: a thread takes a part that no other has.
pub struct Parts {
    memory: Vec<f32>,
    taken: Vec<AtomicBool>,
}

impl Parts {
    /// Of the scores of `TOGETHER` queries.
    fn size(sizes: &CacheSizes) -> usize {
        TOGETHER * sizes.capacity.next_multiple_of(LANES)
    }

    pub fn bytes(sizes: &CacheSizes, threads: usize) -> usize {
        threads.max(1) * (Parts::size(sizes) * size_of::<f32>() + size_of::<AtomicBool>())
    }

    pub fn new(sizes: &CacheSizes, threads: usize) -> Result<Parts, OutOfMemory> {
        let threads = threads.max(1);
        Ok(Parts {
            memory: zeros(threads * Parts::size(sizes))?,
            taken: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        })
    }
}

#[cfg(test)]
impl Parts {
    pub fn allocated(&self) -> usize {
        size_of_val(&self.memory[..]) + size_of_val(&self.taken[..])
    }
}

/// The newest tokens of some rows.
pub struct Newest<'a, T> {
    /// A row for each token, of all query heads and possibly more.
    pub queries: &'a [T],
    pub stride: usize,
    pub heads: usize,
    /// Tokens of each row before the new ones, and new ones.
    pub before: usize,
    pub count: usize,
}

struct Attend<'a, T> {
    new: &'a Newest<'a, T>,
    keys: &'a [T],
    values: &'a [T],
    sizes: CacheSizes,
    scale: f32,
    scores: Rows<'a, f32>,
    taken: &'a [AtomicBool],
    /// A row for each token and key/value head: the query heads that share it.
    out: Rows<'a, T>,
}

/// Writes the result, (tokens, heads x head width), for new tokens that are in the cache already.
pub fn attend<T: Element>(
    new: &Newest<'_, T>,
    (keys, values): (&[T], &[T]),
    sizes: CacheSizes,
    parts: &mut Parts,
    out: &mut [T],
    threads: usize,
) {
    let width = sizes.head_width;
    let rows = out.len() / (new.heads * width) / new.count;
    assert!(rows <= sizes.rows && new.before + new.count <= sizes.capacity && threads <= parts.taken.len());
    let kernel = Attend {
        new,
        keys,
        values,
        sizes,
        scale: 1.0 / (width as f32).sqrt(),
        scores: Rows::new(&mut parts.memory, Parts::size(&sizes)),
        taken: &parts.taken,
        out: Rows::new(out, new.heads / sizes.kv_heads * width),
    };
    let units = rows * sizes.kv_heads * new.count.div_ceil(TOGETHER);
    let bytes = 2 * (new.before + new.count) * width * size_of::<T>();
    run(&kernel, units, portion(bytes), threads);
}

impl<T: Element> Kernel for Attend<'_, T> {
    /// What is handed out are `TOGETHER` tokens of a row, with the queries that share one key/value head.
    #[inline(always)]
    fn rows<V: Vector>(&self, units: Range<usize>) {
        let mut part = 0;
        while self.taken[part].swap(true, Ordering::Acquire) {
            part = (part + 1) % self.taken.len();
        }
        // SAFETY: a part is taken by one thread only.
        let scores = unsafe { self.scores.row(part) };
        for unit in units {
            self.unit::<V>(unit, scores);
        }
        self.taken[part].store(false, Ordering::Release);
    }
}

impl<T: Element> Attend<'_, T> {
    #[inline(always)]
    fn unit<V: Vector>(&self, unit: usize, scores: &mut [f32]) {
        let tiles = self.new.count.div_ceil(TOGETHER);
        let (head, first) = (unit / tiles, unit % tiles * TOGETHER);
        let group = self.new.heads / self.sizes.kv_heads;
        let queries = (self.new.count - first).min(TOGETHER) * group;
        let mut query = 0;
        while query + TOGETHER <= queries {
            self.some::<V, TOGETHER, 1>(head, first * group + query, scores);
            query += TOGETHER;
        }
        while query < queries {
            self.some::<V, 1, TOGETHER>(head, first * group + query, scores);
            query += 1;
        }
    }

    /// `QUERIES` from number `first` on of those that share this head of this row, with `PANELS` of keys at a time.
    #[inline(always)]
    fn some<V: Vector, const QUERIES: usize, const PANELS: usize>(
        &self,
        head: usize,
        first: usize,
        scores: &mut [f32],
    ) {
        let sizes = &self.sizes;
        let (width, stride) = (sizes.head_width, sizes.capacity.next_multiple_of(LANES));
        let group = self.new.heads / sizes.kv_heads;
        let (row, kv_head) = (head / sizes.kv_heads, head % sizes.kv_heads);
        let mut queries: [&[T]; QUERIES] = [&[]; QUERIES];
        // Tokens that each of them attends to; they never become fewer.
        let mut seen = [0; QUERIES];
        let mut query = 0;
        while query < QUERIES {
            let (token, member) = ((first + query) / group, (first + query) % group);
            let start = (row * self.new.count + token) * self.new.stride;
            queries[query] = &self.new.queries[start + (kv_head * group + member) * width..][..width];
            seen[query] = self.new.before + token + 1;
            query += 1;
        }

        let keys = &self.keys[head * sizes.head_keys()..][..sizes.head_keys()];
        let (panels, mut panel) = (seen[QUERIES - 1].div_ceil(LANES), 0);
        while panel + PANELS <= panels {
            self.score::<V, QUERIES, PANELS>(&queries, keys, panel, scores);
            panel += PANELS;
        }
        while panel < panels {
            self.score::<V, QUERIES, 1>(&queries, keys, panel, scores);
            panel += 1;
        }
        let mut sums = [0.0; QUERIES];
        let mut query = 0;
        while query < QUERIES {
            sums[query] = exponentials::<V>(&mut scores[query * stride..][..stride], seen[query]);
            query += 1;
        }

        let values = &self.values[head * sizes.head_values()..][..sizes.head_values()];
        let mut column = 0;
        while column + 2 * LANES <= sizes.value_width() {
            self.mean::<V, QUERIES, 2>(values, &seen, &sums, scores, (head, first), column);
            column += 2 * LANES;
        }
        if column < sizes.value_width() {
            self.mean::<V, QUERIES, 1>(values, &seen, &sums, scores, (head, first), column);
        }
    }

    /// The scores of the keys in some panels.
    #[inline(always)]
    fn score<V: Vector, const QUERIES: usize, const PANELS: usize>(
        &self,
        queries: &[&[T]; QUERIES],
        keys: &[T],
        panel: usize,
        scores: &mut [f32],
    ) {
        let (width, stride) = (self.sizes.head_width, self.sizes.capacity.next_multiple_of(LANES));
        let mut sums = [[V::splat(0.0); PANELS]; QUERIES];
        let mut i = 0;
        while i < width {
            let mut number = 0;
            while number < PANELS {
                let key = load::<V, T>(keys, ((panel + number) * width + i) * LANES);
                let mut query = 0;
                while query < QUERIES {
                    let factor = V::splat(queries[query][i].widen());
                    sums[query][number] = factor.mul_add(key, sums[query][number]);
                    query += 1;
                }
                number += 1;
            }
            i += 1;
        }
        let scale = V::splat(self.scale);
        let mut query = 0;
        while query < QUERIES {
            let mut number = 0;
            while number < PANELS {
                store(sums[query][number] * scale, scores, query * stride + (panel + number) * LANES);
                number += 1;
            }
            query += 1;
        }
    }

    /// Some columns of the mean of the values, weighted by the exponentials.
    #[inline(always)]
    fn mean<V: Vector, const QUERIES: usize, const VECTORS: usize>(
        &self,
        values: &[T],
        seen: &[usize; QUERIES],
        sums: &[f32; QUERIES],
        weights: &[f32],
        (head, first): (usize, usize),
        column: usize,
    ) {
        let sizes = &self.sizes;
        let (width, stride) = (sizes.value_width(), sizes.capacity.next_multiple_of(LANES));
        let mut means = [[V::splat(0.0); VECTORS]; QUERIES];
        let mut token = 0;
        while token < seen[0] {
            add::<V, T, QUERIES, VECTORS>(
                &mut means,
                &values[token * width + column..],
                weights,
                stride,
                token,
                0,
            );
            token += 1;
        }
        // The newest tokens are not seen by all queries.
        while token < seen[QUERIES - 1] {
            let mut unseeing = 0;
            while seen[unseeing] <= token {
                unseeing += 1;
            }
            add::<V, T, QUERIES, VECTORS>(
                &mut means,
                &values[token * width + column..],
                weights,
                stride,
                token,
                unseeing,
            );
            token += 1;
        }
        let (head_width, group) = (sizes.head_width, self.new.heads / sizes.kv_heads);
        let (row, kv_head) = (head / sizes.kv_heads, head % sizes.kv_heads);
        let mut query = 0;
        while query < QUERIES {
            let (token, member) = ((first + query) / group, (first + query) % group);
            // SAFETY: a token of a row and a key/value head are in one unit only.
            let out = unsafe { self.out.row((row * self.new.count + token) * sizes.kv_heads + kv_head) };
            let out = &mut out[member * head_width..][..head_width];
            let sum = V::splat(sums[query]);
            let mut vector = 0;
            while vector < VECTORS {
                let at = column + vector * LANES;
                if at < head_width {
                    store(means[query][vector] / sum, out, at);
                }
                vector += 1;
            }
            query += 1;
        }
    }
}

/// Adds the values of a token to the means of the queries from number `from` on.
#[inline(always)]
fn add<V: Vector, T: Element, const QUERIES: usize, const VECTORS: usize>(
    means: &mut [[V; VECTORS]; QUERIES],
    values: &[T],
    weights: &[f32],
    stride: usize,
    token: usize,
    from: usize,
) {
    let mut vector = 0;
    while vector < VECTORS {
        let value = load::<V, T>(values, vector * LANES);
        let mut query = 0;
        while query < QUERIES {
            if query >= from {
                let weight = V::splat(weights[query * stride + token]);
                means[query][vector] = weight.mul_add(value, means[query][vector]);
            }
            query += 1;
        }
        vector += 1;
    }
}

/// Replaces the first `count` scores by the exponentials of their distance to the greatest; returns the sum of these.
#[inline(always)]
fn exponentials<V: Vector>(scores: &mut [f32], count: usize) -> f32 {
    let end = count.next_multiple_of(LANES);
    let mut beyond = count;
    while beyond < end {
        scores[beyond] = f32::NEG_INFINITY;
        beyond += 1;
    }
    let mut most = V::splat(f32::NEG_INFINITY);
    let mut at = 0;
    while at < end {
        most = load::<V, f32>(scores, at).greater(most);
        at += LANES;
    }
    let most = V::splat(most.greatest());
    let mut sum = V::splat(0.0);
    let mut at = 0;
    while at < end {
        let power = exp(load::<V, f32>(scores, at) - most);
        store(power, scores, at);
        sum = sum + power;
        at += LANES;
    }
    sum.sum()
}
